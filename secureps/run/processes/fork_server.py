"""Starts Python programs as forks of processes that have imported what they need.

A dozen parties on one machine would each import the same packages, for seconds. Here
`multiprocessing`'s fork server imports once, and every program is one of its forks
(`run.processes.fork_host`): with a session, an environment, a folder, stdout, stderr and random
numbers of its own. Where forks cannot be had, programs start from their beginning.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import connection, forkserver, reduction
from types import TracebackType
from typing import IO, Self

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
        self._plain = _Server.begun(always, environment)
        # Servers of a run need not wait for torch, which a branch imports meanwhile.
        self._full = self._plain.branch(preloads) if preloads else self._plain

    def __enter__(self) -> ForkServers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        servers = dict.fromkeys((self._full, self._plain))  # a trunk reaps its branch
        for server in servers:
            server.kill()
        for server in servers:
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

    _forkserver_address: str
    _forkserver_alive_fd: int | None

    def __init__(self) -> None:
        super().__init__()
        self._pid = 0
        self._end: int | None = None
        self._waiting = ThreadPoolExecutor(1)
        self._imported = Future[None]()

    @classmethod
    def begun(cls, modules: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Starts a server, which imports modules; OSError if the path of its socket is too long."""
        made = cls()
        made.set_forkserver_preload([fork_host.__name__])
        own = {**environment, **_SERVERS_OWN, fork_host.VARIABLE: " ".join(modules)}
        with _environment(own):
            super(cls, made).ensure_running()
        made._pid = made._forkserver_pid  # type: ignore[attr-defined]
        made._imported = made._waiting.submit(made._fork_once)
        return made

    def branch(self, modules: Sequence[str]) -> _Server:
        """Starts a server as a fork of this one, once that is ready; it imports further modules."""
        made = _Server()
        made._imported = made._waiting.submit(made._begin_from, self, modules)
        return made

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
                reduction.dump({}, line)
                own = (program.arguments[3:], dict(program.environment), os.getcwd())
                reduction.dump(fork_host.Order(*own, program.inherits), line)
            pid = forkserver.read_signed(status)
            if not ours.recv(1):
                raise EOFError
            fork = Fork(pid, status, ours)
            failing.pop_all()
            return fork

    def kill(self) -> None:
        """Ends the server, if it is known by now; its forks go on."""
        if not self._pid:
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        if self._end is None:
            os.waitpid(self._pid, 0)
        else:
            with suppress(EOFError):  # the trunk has ended
                forkserver.read_signed(self._end)
            os.close(self._end)

    def close(self) -> None:
        """Lets go of all that was here for the server; one that was not known ends by that."""
        self._waiting.shutdown()
        if self._forkserver_alive_fd is not None:
            os.close(self._forkserver_alive_fd)
            os.unlink(self._forkserver_address)

    def _begin_from(self, trunk: _Server, modules: Sequence[str]) -> None:
        trunk._imported.result()
        with socket.socket(socket.AF_UNIX) as listener:
            address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
            listener.bind(address)
            listener.listen()
            alive, self._forkserver_alive_fd = os.pipe()
            self._forkserver_address = address
            try:
                status, data = trunk.connect_to_new_process([listener.fileno(), alive])
            finally:
                os.close(alive)
        self._pid, self._end = forkserver.read_signed(status), status
        key = self._forkserver_authkey = os.urandom(32)  # which Python 3.14 wants
        with open(data, "wb") as line:
            reduction.dump({}, line)
            reduction.dump(fork_host.Branch(tuple(modules), key), line)
        self._fork_once()

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
