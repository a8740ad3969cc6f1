"""Starts Python programs as forks of one process that has imported what they need.

A dozen parties on one machine would each import the same packages, for seconds. The process
behind this (`run.processes.fork_host`) only imports: it never has a second thread, a key or any
data, so that a fork of it is a process like any other. Where it cannot be had, or has ended,
programs start from their beginning; forks that are there go on without it. What must not live
here: which packages are worth it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from secureps.run.processes.fork_host import MOST_BYTES
from secureps.run.processes.spawning import Process, Program, Subprocess

MODULE = (sys.executable, "-P", "-m")
"""How the arguments of a program begin that can be a fork; a module's name follows."""

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


class ForkServer:
    """A `Spawner` of forks, in a `with` that outlives them. One thread may use it at a time.

    Args:
        always: modules, or MODULE:FUNCTION to call, that are imported before anything is forked;
            those that fail are left to the programs, which say why.
        preloads: those that are imported before a program that is `preloaded`.
        environment: of the process; a program's own differs from it in a few values.
    """

    def __init__(
        self, always: Sequence[str], preloads: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._environment = dict(environment)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._host = subprocess.Popen(
                (*MODULE, "secureps.run.processes.fork_host", str(theirs.fileno()), *always),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**self._environment, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._queue = deque(preloads)
        self._importing = True
        self._lost = False
        self._begun: int | None = None
        self._statuses: dict[int, int | None] = {}
        self._ends: dict[int, int] = {}

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for end in self._ends.values():
            os.close(end)
        self._channel.close()  # which ends it
        self._host.kill()
        self._host.wait()

    def ready(self, program: Program) -> bool:
        """Whether nothing is being imported, and nothing left to be if it is to be preloaded."""
        self._listen()
        if not self._importing and not (program.preloaded and self._queue):
            return True
        self._import_next()
        return self._lost

    def spawn(self, program: Program, log: IO[bytes]) -> Process:
        """Forks it; a program that is no module of this interpreter begins anew.

        Raises:
            OSError: it cannot be started.
        """
        if not self._lost and program.arguments[:3] == MODULE and program.environment is not None:
            with suppress(ConnectionError):
                return self._fork(program.arguments[3:], program.environment, log)
        return Subprocess(program, log)

    def status(self, pid: int) -> int | None:
        """The exit status of a fork; None while it runs.

        Once the process is lost that forked it, nobody hears how it ends: as if it were killed.
        """
        self._listen()
        self._import_next()
        if self._statuses[pid] is None and self._lost and _ended(self._ends[pid]):
            self._statuses[pid] = -signal.SIGKILL
        return self._statuses[pid]

    def _listen(self) -> None:
        """Takes in what has happened; never waits."""
        while self._take(socket.MSG_DONTWAIT):
            pass

    def _import_next(self) -> None:
        """Has the next module imported, unless one is."""
        if self._queue and not self._importing and not self._lost:
            with suppress(ConnectionError):
                self._send({"import": self._queue.popleft()})
                self._importing = True

    def _fork(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> Fork:
        names = environment.keys() | self._environment.keys()
        changed = {
            name: environment.get(name)
            for name in names
            if environment.get(name) != self._environment.get(name)
        }
        order = {"run": list(arguments), "environment": changed, "folder": os.getcwd()}
        waits, begins = os.pipe()
        try:
            self._send(order, log.fileno(), waits)
            self._begun = None
            while self._begun is None:
                if not self._take():
                    raise ConnectionResetError
        except BaseException:
            os.close(begins)  # a fork that is there all the same ends
            raise
        finally:
            os.close(waits)
        pid = self._begun
        self._ends[pid] = os.pidfd_open(pid)
        return Fork(self, pid, begins)

    def _send(self, order: Mapping[str, Any], *files: int) -> None:
        data = json.dumps(order).encode()
        try:
            socket.send_fds(self._channel, [data], files)
        except ConnectionError:
            self._lost = True
            raise

    def _take(self, flags: int = 0) -> bool:
        """Takes a message; whether there was one."""
        try:
            data = self._channel.recv(MOST_BYTES, flags)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self._lost = True
            return False
        match json.loads(data):
            case {"imported": _}:
                self._importing = False
            case {"began": pid}:
                self._begun, self._statuses[pid] = pid, None
            case {"ended": pid, "status": status}:
                self._statuses[pid] = status
        return True


def _ended(handle: int) -> bool:
    """Whether the process of a pidfd has ended: it can then be read."""
    ends = select.poll()
    ends.register(handle, select.POLLIN)
    return bool(ends.poll(0))


class Fork:
    """A process of a `ForkServer`."""

    def __init__(self, server: ForkServer, pid: int, begins: int) -> None:
        self._server = server
        self._begins = begins
        self.pid = pid

    def begin(self) -> None:
        """Writes the byte for which it waits, unless it has ended."""
        with suppress(BrokenPipeError):
            os.write(self._begins, b"\n")
        os.close(self._begins)

    def poll(self) -> int | None:
        """As `Process.poll`."""
        return self._server.status(self.pid)

    def wait(self) -> int:
        """As `Process.wait`."""
        while (status := self.poll()) is None:
            time.sleep(_TICK)
        return status
