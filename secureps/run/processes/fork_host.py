"""The process whose forks are programs: `python -m secureps.run.processes.fork_host SOCKET
MODULE...`.

It imports what it is told to, forks when it is told to, and says how forks end. A fork gets what
the interpreter would give a new process: a session, the environment, the folder, stdout and
stderr, random numbers of its own. What must not live here: anything that a fork should not
inherit, as a thread, an open file or a secret.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

MOST_BYTES = 1 << 16
"""The longest message of either side."""
_TASKS = Path("/proc/self/task")


def serve(channel: socket.socket) -> list[str]:
    """Does as it is told until the other end of the channel is closed; then the process ends.

    Returns:
        in a fork alone: the module that it is to run, and the module's arguments.
    """
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        readable, _, _ = select.select([channel, woken], [], [])
        if woken in readable:
            woken.recv(MOST_BYTES)
            _tell_ends(channel)
        if channel not in readable:
            continue
        data, files, _, _ = socket.recv_fds(channel, MOST_BYTES, 2)
        if not data:
            os._exit(0)
        match json.loads(data):
            case {"import": name}:
                _import(name)
                _send(channel, {"imported": name})
            case {"run": list(arguments), "environment": environment, "folder": folder}:
                if len(list(_TASKS.iterdir())) > 1:
                    os._exit(1)  # another thread may hold a lock, and would be missing in a fork
                if not os.fork():
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    woken.close()
                    wakes.close()
                    log, begins = files
                    _become(channel, log, begins, environment, folder)
                    setproctitle(" ".join((sys.executable, "-P", "-m", *arguments)))
                    return arguments
                for file in files:
                    os.close(file)


def _import(name: str) -> None:
    with suppress(Exception):  # whoever needs it fails at it, and says so
        found = pkgutil.resolve_name(name)
        if ":" in name:
            found()
    gc.collect()
    gc.freeze()  # forks share what is not touched


def _tell_ends(channel: socket.socket) -> None:
    """Ends what is left of sessions whose first process has ended, and tells of each.

    It is reaped after that: until then its number, which is its group's too, is nobody else's.
    """
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, options)) is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(found.si_pid, signal.SIGKILL)
            _, status = os.waitpid(found.si_pid, 0)
            ended = {"ended": found.si_pid, "status": os.waitstatus_to_exitcode(status)}
            _send(channel, ended)


def _become(
    channel: socket.socket, log: int, begins: int, environment: dict[str, Any], folder: str
) -> None:
    """Makes a fork a process of its own, which goes on when it is told to."""
    os.setsid()
    _send(channel, {"began": os.getpid()})
    channel.close()
    if not os.read(begins, 1):  # whoever asked for it has ended
        os._exit(1)
    os.close(begins)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(folder)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "numpy.random" in sys.modules:  # Python's own generator sees to this by itself
        import numpy as np

        np.random.seed()


def _send(channel: socket.socket, said: dict[str, Any]) -> None:
    with suppress(ConnectionError):  # nobody listens: the next message says so
        channel.send(json.dumps(said).encode())


if __name__ == "__main__":
    to_supervisor = socket.socket(fileno=int(sys.argv[1]))
    for each in sys.argv[2:]:
        _import(each)
    _send(to_supervisor, {"imported": sys.argv[2:]})
    module, *rest = serve(to_supervisor)
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
