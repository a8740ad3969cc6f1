"""Starts Python programs as forks of processes that have imported what they need.

A dozen parties on one machine would each import the same packages, for seconds. Here
`multiprocessing`'s fork server imports once, and every program is one of its forks
(`run.processes.fork_host`): with a session, an environment, a folder, stdout, stderr and random
numbers of its own. Where forks cannot be had, programs start from their beginning. What must not
live here: which packages are worth it.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import forkserver
from types import TracebackType
from typing import IO

from secureps.run.processes import fork_host
from secureps.run.processes.spawning import Process, Program, Subprocess

MODULE = (sys.executable, "-P", "-m")
"""How the arguments of a program begin that can be a fork; a module's name follows."""

_SERVERS_OWN = {"OPENBLAS_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
"""Environment of a server: no threads, and no module that only the current folder has."""
_TICK = 0.005


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether forks behave as processes that began anew would, in this environment.

    On Linux alone (since 5.3), as libraries of macOS break in forks; and with one thread a process,
    the default: the number of threads is settled when NumPy and torch are imported.
    """
    if sys.platform != "linux" or environment.get("OMP_NUM_THREADS") != "1":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ForkServers:
    """A `Spawner` of forks, in a `with` that outlives them. One thread may use it at a time.

    Args:
        always: modules, or MODULE:FUNCTION to call, that are imported before any fork; those that
            fail are left to the programs, which say why.
        preloads: those that are imported besides for programs that are `preloaded`.
        environment: of the servers.
    """

    def __init__(
        self, always: Sequence[str], preloads: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._plain = _Server(always, environment)
        # Servers of a run need not wait for torch, and clients need all of it.
        self._full = _Server((*always, *preloads), environment) if preloads else self._plain

    def __enter__(self) -> ForkServers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in {self._plain, self._full}:
            server.close()

    def ready(self, program: Program) -> bool:
        """Whether all is imported that the program waits for."""
        return self._of(program).ready()

    def spawn(self, program: Program, log: IO[bytes]) -> Process:
        """Forks it; a program that is no module of this interpreter begins anew.

        Raises:
            OSError: it cannot be started.
        """
        server = self._of(program)
        if program.arguments[:3] == MODULE and program.environment is not None:
            with suppress(OSError, EOFError):  # the server has ended
                return server.fork(program, log)
        return Subprocess(program, log)

    def _of(self, program: Program) -> _Server:
        return self._full if program.preloaded else self._plain


class _Server(forkserver.ForkServer):
    """A fork server of our own: pools of whoever calls `up` have another one.

    It is never started again: a fork of one that has imported nothing is worth nothing.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__()
        self.set_forkserver_preload([fork_host.__name__])
        own = {**environment, **_SERVERS_OWN, fork_host.VARIABLE: " ".join(modules)}
        with _environment(own):
            super().ensure_running()
        self._pid: int = self._forkserver_pid  # type: ignore[attr-defined]
        self._waiting = ThreadPoolExecutor(1)
        self._imported = self._waiting.submit(self._fork_once)

    def ensure_running(self) -> None:
        """Does nothing: connecting fails once the server has ended."""

    def ready(self) -> bool:
        """Whether it has imported everything, or has failed."""
        return self._imported.done()

    def fork(self, program: Program, log: IO[bytes]) -> Fork:
        """Forks a program; EOFError or OSError if the server has ended."""
        assert program.environment is not None
        with ExitStack() as failing:
            ours, theirs = socket.socketpair()
            failing.enter_context(ours)  # a fork that is there all the same ends
            with theirs:
                files = [log.fileno(), theirs.fileno()]
                files += [] if program.inherits is None else [program.inherits]
                status, data = self.connect_to_new_process(files)
            failing.callback(os.close, status)
            with open(data, "wb") as line:
                pickle.dump({}, line)
                own = (program.arguments[3:], dict(program.environment), os.getcwd())
                pickle.dump(fork_host.Order(*own, program.inherits), line)
            pid = forkserver.read_signed(status)
            if not ours.recv(1):
                raise EOFError
            fork = Fork(pid, status, ours)
            failing.pop_all()
            return fork

    def close(self) -> None:
        """Ends the server; its forks go on."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._waiting.shutdown()
        self._stop()  # type: ignore[attr-defined]

    def _fork_once(self) -> None:
        """Waits for the first fork, which has no program and ends: then all is imported."""
        status, data = self.connect_to_new_process([])
        os.close(data)
        try:
            forkserver.read_signed(status)
        finally:
            os.close(status)


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Has a process that is started in the block begin with this environment."""
    before = dict(os.environ)
    changed = {name: value for name, value in wanted.items() if before.get(name) != value}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


class Fork:
    """A process of a fork server."""

    def __init__(self, pid: int, status: int, line: socket.socket) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)
        self._status = status
        self._line = line
        self._code: int | None = None

    def begin(self) -> None:
        """Sends the byte for which it waits, unless it has ended."""
        with suppress(BrokenPipeError), self._line:
            self._line.send(b"\n")

    def poll(self) -> int | None:
        """As `Process.poll`; once its server is lost, a fork ends as if it were killed."""
        if self._code is None and _readable(self._status):
            try:
                self._code = forkserver.read_signed(self._status)
            except EOFError:
                if not _readable(self._handle):
                    return None
                self._code = -signal.SIGKILL
            os.close(self._status)
            os.close(self._handle)
        return self._code

    def wait(self) -> int:
        """As `Process.wait`."""
        while (code := self.poll()) is None:
            time.sleep(_TICK)
        return code


def _readable(file: int) -> bool:
    """Whether a file can be read: a pidfd once its process has ended."""
    watched = select.poll()
    watched.register(file, select.POLLIN)
    return bool(watched.poll(0))
