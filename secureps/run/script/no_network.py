"""A process without a network that serves a trainer: `python -m secureps.run.script.no_network FD`.

`run.script.cut_off` starts it. Before it imports the script it enters its own user and network
namespaces, whose only interface is down. It has no key and no connection, and of the client's open
files only FD and its output, which may be a socket.
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
    """Leaves the network for good; OSError if the system does not allow it.

    The user namespace maps only this user, because a process of root could otherwise return.
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
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it dies with its starter


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
    connection.set_inheritable(False)  # a program that the script starts must not answer
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
