"""Processes that live as long as this one: started, watched, restarted, and all stopped.

Every process has a session of its own, so that a Ctrl-C on the terminal reaches this
process alone and this one stops the others, with whatever they started. What must not
live here: what the processes are for (`run.up`).
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from secureps.errors import MISCONFIGURED, OperatorError
from secureps.run.gate import Gate

RESTARTS = 3
RESTART_DELAY = 0.5
"""Seconds between a death and the next start."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
TAIL_LINES = 8

_TICK = 0.02
_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Program:
    """What a process runs. One that `may_finish` ends by itself, with exit status 0."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    may_finish: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """A process has done what it was there for; `last` is the last line of its log."""

    name: str
    last: str


@dataclass(frozen=True, slots=True)
class Died:
    """A process ended that should not have; it is started again. `tail` is the end of its log."""

    name: str
    how: str
    restarts: int
    tail: tuple[str, ...]


@dataclass(slots=True)
class _Running:
    program: Program
    process: subprocess.Popen[bytes] | None
    restarts: int = 0
    due: float = 0.0


class Supervisor:
    """A group of processes, to be used in a `with` that leaves none of them behind.

    Signals whose handlers raise end the `with`; while a process is being started or stopped
    they wait (`run.gate`).

    Args:
        logs: stdout and stderr of process NAME go to NAME.log in this folder.
        restarts: how often each process is started again after it died.
        grace: seconds that processes get to stop by themselves.
    """

    def __init__(self, logs: Path, restarts: int = RESTARTS, grace: float = GRACE) -> None:
        self._logs = logs
        self._restarts = restarts
        self._grace = grace
        self._running: dict[str, _Running] = {}
        self._ending = False
        self._gate = Gate()

    def __enter__(self) -> Supervisor:
        # For a signal that ends the `with` before the first line of `__exit__`.
        atexit.register(self.stop)
        self._gate.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            # Again, if a signal came before `stop` held signals back: no second one raises.
            self.stop()
            atexit.unregister(self.stop)
            self._gate.remove()

    def start(self, program: Program) -> None:
        """Starts a process.

        Raises:
            OperatorError: it cannot be started.
        """
        running = _Running(program, None)
        self._running[program.name] = running
        self._launch(running)

    def poll(self) -> tuple[Finished | Died, ...]:
        """What ended since the last call; starts again what has to be.

        Raises:
            OperatorError: a process died once more than it may, or says that no restart helps.
        """
        with self._gate.closed():  # Popen holds a lock while it looks
            return tuple(self._news())

    def expect_end(self) -> None:
        """From now on every process may finish."""
        self._ending = True

    def running(self) -> tuple[str, ...]:
        """Who is there, or about to be started again."""
        return tuple(self._running)

    def tail(self, name: str, lines: int = TAIL_LINES) -> tuple[str, ...]:
        """The last lines of a log that are not empty."""
        try:
            with self._log(name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ()
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]

    def stop(self) -> None:
        """SIGTERM to all, SIGKILL after the grace; afterwards none is left, whatever happens.

        A signal that comes meanwhile ends the grace, not the processes' end.
        """
        with self._gate.closed():
            processes = [e.process for e in self._running.values() if e.process is not None]
            try:
                for process in processes:
                    _signal(process, signal.SIGTERM)
                until = time.monotonic() + self._grace
                while time.monotonic() < until and any(e.poll() is None for e in processes):
                    if self._gate.knocked:
                        break
                    time.sleep(_TICK)
            finally:
                for process in processes:
                    _kill(process)
                for process in processes:
                    process.wait()
                self._running.clear()

    def _news(self) -> list[Finished | Died]:
        news: list[Finished | Died] = []
        for name, running in list(self._running.items()):
            if running.process is None:
                if time.monotonic() >= running.due:
                    self._launch(running)
                continue
            code = running.process.poll()
            if code is None:
                continue
            _kill(running.process)
            if code == 0 and (running.program.may_finish or self._ending):
                del self._running[name]
                news.append(Finished(name, (self.tail(name, 1) or ("",))[0]))
                continue
            news.append(self._died(running, code))
        return news

    def _died(self, running: _Running, code: int) -> Died:
        name, tail = running.program.name, self.tail(running.program.name)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        if code == MISCONFIGURED:
            del self._running[name]
            raise OperatorError(
                f"{name} cannot take part, and no restart mends that: {(tail or ('',))[-1]}; "
                f"see {self._log(name)}"
            )
        if running.restarts >= self._restarts:
            running.process = None
            del self._running[name]
            last = f": {tail[-1]}" if tail else ""
            raise OperatorError(
                f"{name} died {running.restarts + 1} times, at last with {how}{last}; "
                f"see {self._log(name)}"
            )
        running.restarts += 1
        running.process, running.due = None, time.monotonic() + RESTART_DELAY
        return Died(name, how, running.restarts, tail)

    def _launch(self, running: _Running) -> None:
        program = running.program
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            # A signal whose handler raises between the fork and the end of this line would
            # leave a process that nobody knows of.
            with self._log(program.name).open("ab") as log, self._gate.closed():
                running.process = subprocess.Popen(
                    program.arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(program.environment),
                    start_new_session=True,
                )
        except OSError as error:
            raise OperatorError(f"{program.name} cannot be started: {error}") from None

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a process's session, its own children too.

    The group's id is the process's; nobody else can have it while a member is left, and
    the kernel does not hand it out again in the instant after the last one.
    """
    _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # gone; on macOS a zombie gives the latter
        return
