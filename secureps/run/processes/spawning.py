"""Starts single processes, each of which waits until its supervisor knows of it.

A process starts as a new interpreter (`Subprocess`), or as a fork of a process that has already
imported its packages (`ForkServers`), because a dozen parties on one machine would each spend
seconds on the same imports. A fork gets its own session, environment, folder, output and random
numbers.

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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from setproctitle import setproctitle

ONCE_KNOWN = ("/bin/sh", "-c", 'read -r known && exec "$@" </dev/null', "sh")
"""Put before a command: it starts on a line of input, and never if this process ends before."""

MODULE = (sys.executable, "-P", "-m")
"""The first arguments of a program that can be a fork; a module's name follows."""

SECUREPS = (*MODULE, "secureps")
"""The command `secureps`, with -P because `python -m` alone would import modules of the current
folder."""

_TASKS = Path("/proc/self/task")
_TICK = 0.005
_NUMBER = struct.Struct("<q")
"""The message with a fork's process number, from the fork, or its exit status, from its server."""


@dataclass(frozen=True, slots=True)
class Program:
    """The command of a process.

    Args:
        environment: its variables; None: those of this process.
        may_finish: it may end by itself, with exit status 0 or `UNFINISHED`.
        preloaded: it is forked from the server that also imports the scripts' packages.
        done: a text in its log after which it may finish too.
        may_fail: the other processes go on without it, as without a data holder's script.
        inherits: an open file, which keeps its number in the process.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] | None
    may_finish: bool = False
    preloaded: bool = False
    done: str = ""
    may_fail: bool = False
    inherits: int | None = None


class Subprocess:
    """A process that starts as a new interpreter, with its output to `log`.

    Like a `Fork` it leads its own session and process group, which have its number `pid`.
    """

    def __init__(self, program: Program, log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            (*ONCE_KNOWN, *program.arguments),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=None if program.environment is None else dict(program.environment),
            start_new_session=True,
            pass_fds=() if program.inherits is None else (program.inherits,),
        )
        self.pid = self._process.pid

    def begin(self) -> None:
        """Lets the process run, once its supervisor knows of it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            os.write(self._process.stdin.fileno(), b"known\n")
        self._process.stdin.close()

    def poll(self) -> int | None:
        """Returns the exit status, negative after a signal; None while the process runs."""
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait()


# --- forks ------------------------------------------------------------------------


def can_fork(environment: Mapping[str, str]) -> bool:
    """True if forks behave like new processes in this environment.

    They do on Linux 5.3 or later (libraries of macOS break in forks), and with one thread per
    process, the default, because the import of NumPy and torch fixes the number of threads.
    """
    if sys.platform != "linux" or environment.get("OMP_NUM_THREADS") != "1":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ForkServers:
    """Starts processes as forks, in a `with` that outlives them. One thread may use it at a time.

    There are two fork servers, so that a run's servers need not wait for torch: the second one is a
    fork of the first, and imports it meanwhile.

    Args:
        always: modules to import, or MODULE:FUNCTION to call, before any fork; if one fails, the
            program that needs it reports the error.
        preloads: further ones, for programs that are `preloaded`.
        environment: of the fork servers.
    """

    def __init__(
        self, always: Sequence[str], preloads: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._plain, plain = socket.socketpair()
        self._full, full = socket.socketpair()
        with plain, full:
            files = (plain.fileno(), full.fileno())
            self._process = subprocess.Popen(
                (*MODULE, __name__, *map(str, files), " ".join(always), " ".join(preloads)),
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=files,
                start_new_session=True,
            )

    def __enter__(self) -> ForkServers:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for line in (self._plain, self._full):
            with line, suppress(ConnectionError):
                while line.recv(1):  # wait until the server is gone
                    pass

    def ready(self, program: Program) -> bool:
        """True if `spawn` would start the program at once."""
        return _is_readable(self._line(program))

    def spawn(self, program: Program, log: IO[bytes]) -> Process:
        """Forks a module of this interpreter; starts any other program as a subprocess."""
        if program.arguments[:3] == MODULE and program.environment is not None:
            with suppress(OSError, EOFError):  # raised if the server has ended
                return Fork(self._line(program), program, log)
        return Subprocess(program, log)

    def _line(self, program: Program) -> socket.socket:
        return self._full if program.preloaded else self._plain


class Fork:
    """A process of a fork server; EOFError or OSError if the server has ended."""

    def __init__(self, server: socket.socket, program: Program, log: IO[bytes]) -> None:
        self._code: int | None = None
        order = {
            "arguments": program.arguments[3:],
            "environment": dict(program.environment or {}),
            "folder": os.getcwd(),
            "inherits": program.inherits,
        }
        self._order = json.dumps(order).encode() + b"\n"
        with ExitStack() as failing:
            self._line, theirs = socket.socketpair()
            failing.enter_context(self._line)  # closed on failure, which ends a started fork
            with theirs:
                files = [theirs.fileno(), log.fileno()]
                files += [] if program.inherits is None else [program.inherits]
                socket.send_fds(server, [b"\n"], files)
            self.pid = self._receive_number()
            self._handle = os.pidfd_open(self.pid)
            failing.pop_all()

    def begin(self) -> None:
        with suppress(ConnectionError):
            self._line.sendall(self._order)

    def poll(self) -> int | None:
        """As in `Subprocess`; a fork whose server has died counts as killed once it has ended."""
        if self._code is None and _is_readable(self._line):
            try:
                self._code = self._receive_number()
            except (EOFError, ConnectionError):
                if not _is_readable(self._handle):
                    return None
                self._code = -signal.SIGKILL
            self._line.close()
            os.close(self._handle)
        return self._code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(_TICK)
        return code

    def _receive_number(self) -> int:
        data = self._line.recv(_NUMBER.size, socket.MSG_WAITALL)
        if len(data) < _NUMBER.size:
            raise EOFError
        number: int = _NUMBER.unpack(data)[0]
        return number


Process = Subprocess | Fork


def _is_readable(file: int | socket.socket) -> bool:
    """True if a file can be read; a pidfd can be read once its process has ended."""
    watched = select.poll()
    watched.register(file, select.POLLIN)
    return bool(watched.poll(0))


# --- the process of the servers -------------------------------------------------


def main(plain: str, full: str, always: str, preloads: str) -> None:
    """Imports modules, forks on request of two sockets, and runs the program in each fork."""
    _preload(always)
    lines = [socket.socket(fileno=int(number)) for number in (plain, full)]
    own, other = lines if os.fork() else lines[::-1]
    other.close()
    if own is lines[1]:
        _preload(preloads)
    runpy.run_module(_become(*_serve(own)), run_name="__main__", alter_sys=True)


def _preload(names: str) -> None:
    """Imports modules; ends the process if one started a thread.

    Forks have no such thread, and a lock that it held would stay locked for ever.
    """
    for name in names.split():
        with suppress(Exception):  # the program that needs it reports the error
            found = pkgutil.resolve_name(name)
            if ":" in name:
                found()
    logging.getLogger().handlers.clear()  # opacus adds a handler, which forks should not have
    if len(list(_TASKS.iterdir())) > 1:
        os._exit(1)
    gc.collect()
    gc.freeze()  # forks share memory that is not written to


def _serve(line: socket.socket) -> tuple[socket.socket, list[int]]:
    """Forks on request until the asker is gone; returns only in a fork, with its files."""
    forks: dict[int, tuple[int, socket.socket]] = {}
    line.send(b"\n")
    while True:
        watched: list[int | socket.socket] = [*forks, line]
        readable, _, _ = select.select(watched, [], [])
        for handle in forks.keys() & readable:
            pid, asker = forks.pop(handle)
            os.close(handle)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with asker, suppress(OSError):
                asker.send(_NUMBER.pack(code))
        if line not in readable:
            continue
        _, files, _, _ = socket.recv_fds(line, 1, 3)
        if not files:
            os._exit(0)
        asker, rest = socket.socket(fileno=files[0]), files[1:]
        if pid := os.fork():
            forks[os.pidfd_open(pid)] = pid, asker
            for file in rest:
                os.close(file)
            continue
        for handle, (_, other) in forks.items():
            os.close(handle)
            other.close()
        line.close()
        return asker, rest


def _become(asker: socket.socket, files: list[int]) -> str:
    """Turns this fork into an independent process; returns the module that it has to run."""
    os.setsid()
    with asker, asker.makefile() as orders:
        asker.send(_NUMBER.pack(os.getpid()))
        line = orders.readline()
    if not line:  # the process that asked for this fork has ended
        sys.exit(1)
    order = json.loads(line)
    log, *inherited = files
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for file in inherited:
        if file != order["inherits"]:
            os.dup2(file, order["inherits"])
            os.close(file)
    os.chdir(order["folder"])
    setproctitle(" ".join((*MODULE, *order["arguments"])))  # needs the original environ
    os.environ.clear()
    os.environ.update(order["environment"])
    if "numpy.random" in sys.modules:  # Python's own generator reseeds itself
        import numpy as np

        np.random.seed()
    module: str = order["arguments"][0]
    sys.argv = order["arguments"]
    return module


if __name__ == "__main__":
    main(*sys.argv[1:])
