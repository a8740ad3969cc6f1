"""A process without a network: `python -m secureps.run.script.no_network FD` serves a trainer.

It leaves the network before it imports anything of the script's, in user and network namespaces
of its own, whose only interface is down; then it makes the trainer that it is told, and calls what
it is asked for (`run.script.cut_off`, which starts it). It has no key, no connection, and of the
client's open files none but its output, which may be a socket, and FD.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secureps.run.script.channel import Channel

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG = 1


def leave_network() -> None:
    """Leaves it for good; OSError where the system does not allow it.

    The user namespace has this user alone. Without it a process of root could come back.
    """
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no network namespaces")
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # whoever started it takes it along


def serve(channel: Channel) -> None:
    from secureps.client.script import Script
    from secureps.client.trainer import blamed
    from secureps.run.script.channel import as_failure
    from secureps.run.script.cut_off import OPTIONAL, answer_call

    trainer = None
    while (asked := channel.receive()) is not None:
        record, tensors = asked
        try:
            if trainer is None:
                sys.argv = [record["script"]]  # the script may read its command line
                script = Script(Path(record["script"]))
                trainer = script.make(record["settings"], Path(record["state"]), record["name"])
                has = [name for name in OPTIONAL if callable(getattr(trainer, name, None))]
                channel.send({"has": has})
                continue
            with blamed(record["do"]):
                replied, given = answer_call(trainer, record, tensors)
            channel.send(replied, given)
        except Exception as error:
            channel.send(as_failure(error))


def main(arguments: list[str]) -> None:
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)  # a program that the script starts does not speak for it
    failed = ""
    try:
        leave_network()
    except OSError as error:
        failed = error.strerror or str(error)
    from secureps.run.script.channel import Channel

    channel = Channel(connection)
    channel.send({"failed": ["ConfigError", failed]} if failed else {})
    if not failed:
        serve(channel)


if __name__ == "__main__":
    main(sys.argv[1:])
