"""Starts processes, and ends them when the process that asked for them is gone.

A native abort, SIGKILL and the kernel's out-of-memory killer run no handler, and a signal may
interrupt any line of Python. So the processes are children of a launcher, a small process that ends
them once its connection is closed or its parent has died, and then ends itself.

A dozen parties on one machine would each spend seconds on the same imports. A launcher may
therefore import modules itself: a module of this interpreter then runs in a fork of it, with its
own session, environment, folder, output and random numbers.

The fork server of `multiprocessing` does not fit: there is one per process, so it would also serve
the pools of the caller of `ps.up`, would outlive `ps.up`, and would run the caller's script in each
fork.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from setproctitle import setproctitle

from secureps.errors import OperatorError

MODULE = (sys.executable, "-P", "-m")
"""The first arguments of a program that can be a fork; a module's name follows."""

SECUREPS = (*MODULE, "secureps")
"""The command `secureps`, with -P because `python -m` alone would import modules of the current
folder."""

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""

_TASKS = Path("/proc/self/task")
_TICK = 0.02
_LENGTH = struct.Struct("<q")
"""The message before an order: the length of its JSON. Open files travel with it."""
_NEWS = struct.Struct("<qqq")
"""A message about a process: the number of its order, its pid, and its exit status or RUNNING."""
_RUNNING = 1 << 16

Order = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """The command of a process.

    Args:
        may_finish: it may end by itself, with exit status 0 or `UNFINISHED`.
        launcher: starts it; None: one that imports nothing.
        done: a text in its log after which it may finish too.
        may_fail: the other processes go on without it, as without a data holder's script.
        inherits: an open file, which keeps its number in the process.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    may_finish: bool = False
    launcher: Launcher | None = None
    done: str = ""
    may_fail: bool = False
    inherits: int | None = None


def can_fork(environment: Mapping[str, str]) -> bool:
    """True if forks behave like new processes in this environment.

    They do on Linux (libraries of macOS break in forks), and with one thread per process, the
    default, because the import of NumPy and torch fixes the number of threads.
    """
    return sys.platform == "linux" and environment.get("OMP_NUM_THREADS") == "1"


class Launcher:
    """Starts processes, in a `with` that leaves none of them. One thread may use it at a time.

    Args:
        modules: to import, or MODULE:FUNCTION to call, before any process is started, if processes
            can be forks; if one fails, the program that needs it reports the error. Without any
            each process is a new interpreter.
        environment: of the launcher.
        grace: seconds between SIGTERM and SIGKILL at the end.
    """

    def __init__(
        self,
        modules: Iterable[str] = (),
        environment: Mapping[str, str] = os.environ,
        grace: float = GRACE,
    ) -> None:
        self._processes = list[Process]()
        self._line, theirs = socket.socketpair()
        with theirs:
            own = map(str, (theirs.fileno(), os.getpid(), grace))
            self._process = subprocess.Popen(
                (*MODULE, __name__, *own, *(modules if can_fork(environment) else ())),
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        with self._line, suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)  # a fork of this process may keep it open
            while self._line.recv(_NEWS.size):  # until the launcher has ended its processes
                pass
        self._process.wait()

    def start(self, program: Program, log: IO[bytes]) -> Process:
        """Orders a process, with its output to `log`; OSError if the launcher has ended."""
        process = Process(self)
        order = {
            "number": len(self._processes),
            "arguments": program.arguments,
            "environment": dict(program.environment),
            "folder": os.getcwd(),
            "inherits": program.inherits,
        }
        self._processes.append(process)
        text, files = json.dumps(order).encode(), [log.fileno()]
        if program.inherits is not None:
            files.append(program.inherits)
        socket.send_fds(self._line, [_LENGTH.pack(len(text))], files)
        self._line.sendall(text)
        self.hear()  # unread news would block the launcher, and then this process
        return process

    def hear(self) -> None:
        """Takes in what the launcher has said; OperatorError if it has ended."""
        try:
            while news := self._line.recv(_NEWS.size, socket.MSG_DONTWAIT):
                number, pid, code = _NEWS.unpack(news)
                process = self._processes[number]
                process.pid, process.code = pid, None if code == _RUNNING else code
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        raise OperatorError("the process that starts all others was ended")


class Process:
    """A process of a launcher, which leads its own session and process group, `pid`."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.pid: int | None = None
        self.code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit status, negative after a signal; None while the process runs."""
        self._launcher.hear()
        return self.code

    def signal(self, number: int) -> bool:
        """Signals the process and its children; returns whether it still ran."""
        with suppress(OperatorError):  # its pid is still known
            self._launcher.hear()
        return self.pid is not None and self.code is None and _signal_group(self.pid, number)


def _signal_group(group: int, number: int) -> bool:
    """Signals a process group; returns whether it still had a process.

    A group has the number of the process that leads it. The kernel cannot reuse this number while a
    member is left, and does not in the instant after.
    """
    with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a zombie
        os.killpg(group, number)
        return True
    return False


# --- the launcher's process -------------------------------------------------------


def main(connection: str, parent: str, grace: str, *modules: str) -> None:
    """Imports modules, starts processes until the parent is gone, and ends those that are left."""
    line = socket.socket(fileno=int(connection))
    for name in modules:
        with suppress(Exception):  # the program that needs it reports the error
            found = pkgutil.resolve_name(name)
            if ":" in name:
                found()
    logging.getLogger().handlers.clear()  # opacus adds a handler, which forks should not have
    gc.collect()
    gc.freeze()  # forks share memory that is not written to
    # Forks lack other threads, and a lock that one of them held would stay locked for ever.
    forks = bool(modules) and len(os.listdir(_TASKS)) == 1
    running, asked = dict[int, int](), None
    with suppress(OSError):  # the parent is gone, or the kernel refuses a fork
        asked = _serve(line, int(parent), running)
    if asked is None:
        _end(running, float(grace))
        return
    order, files = asked
    os.setsid()  # its group must exist before others hear of it
    line.sendall(_NEWS.pack(order["number"], os.getpid(), _RUNNING))
    line.close()
    _become(order, files, forks)


def _serve(
    line: socket.socket, parent: int, running: dict[int, int]
) -> tuple[Order, list[int]] | None:
    """Starts processes until the parent is gone; in a fork returns its order and open files.

    `running` gets the number of each process's order, by its pid.
    """
    while os.getppid() == parent:
        for news in _reap(running):
            line.sendall(_NEWS.pack(*news))
        if not select.select([line], [], [], _TICK)[0]:
            continue
        length, files, _, _ = socket.recv_fds(line, _LENGTH.size, 2)
        size = _LENGTH.unpack(length)[0] if length else 0
        text = line.recv(size, socket.MSG_WAITALL)
        if not text or len(text) < size:
            break
        order = json.loads(text)
        if not (pid := os.fork()):
            return order, files
        running[pid] = order["number"]
        for file in files:
            os.close(file)
    return None


def _reap(running: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """Yields the news of processes that have ended, which then no longer run."""
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _signal_group(pid, signal.SIGKILL)  # its children may still run
            yield running.pop(pid), pid, os.waitstatus_to_exitcode(status)


def _end(running: dict[int, int], grace: float) -> None:
    for pid in running:
        if not _signal_group(pid, signal.SIGTERM):
            os.kill(pid, signal.SIGTERM)  # it does not lead its group yet
    until = time.monotonic() + grace
    while running and time.monotonic() < until:
        time.sleep(_TICK)
        list(_reap(running))
    for pid in running:
        _signal_group(pid, signal.SIGKILL)


def _become(order: Order, files: list[int], forks: bool) -> None:
    """Turns this fork of the launcher into the process of an order."""
    log, *inherited = files
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for file in inherited:
        if file != order["inherits"]:
            os.dup2(file, order["inherits"])
            os.close(file)
    os.chdir(order["folder"])
    arguments, environment = order["arguments"], order["environment"]
    if not (forks and tuple(arguments[: len(MODULE)]) == MODULE):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, other programs do not
        os.execvpe(arguments[0], arguments, environment)
    setproctitle(" ".join(arguments))  # needs the original environ
    os.environ.clear()
    os.environ.update(environment)
    if "numpy.random" in sys.modules:  # Python's own generator reseeds itself
        import numpy as np

        np.random.seed()
    sys.argv = arguments[len(MODULE) :]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
