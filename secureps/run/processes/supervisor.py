"""Supervises processes that live as long as this one: starts, watches, restarts and stops them.

Every process has its own session, so that a Ctrl-C on the terminal reaches only this process, which
then stops the others and their children.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from secureps.errors import (
    MISCONFIGURED,
    UNFINISHED,
    ConfigError,
    OperatorError,
    ScriptFailed,
    SecurepsError,
    split_fault,
)
from secureps.run.processes.launcher import GRACE, Launcher, Process, Program
from secureps.tracebacks import find_fatal_line, locate_crash
from secureps.wording import numberless

RESTARTS = 3
RESTART_DELAY = 0.5
"""Seconds between a process's death and its next start."""
TAIL_LINES = 8

_TICK = 0.02
_TAIL_BYTES = 16384
_DUMP_LINES = 200
"""The most lines that are read of a native crash's dump; each frame of each thread has one."""

_NAMES = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
_FROM_OUTSIDE = frozenset(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Signals from outside (Windows lacks some), so the process that they end need not be faulty."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A process ended as it should; `last` is the last line of its log.

    `failed`: the run failed, and may be resumed (`UNFINISHED`).
    """

    name: str
    last: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Died:
    """A process died and will be restarted; `last` is why, by its log."""

    name: str
    how: str
    restarts: int
    last: str


@dataclass(slots=True)
class _Running:
    program: Program
    process: Process | None
    restarts: int = 0
    due: float = 0.0
    written: int = 0
    """The length of its log when it was last started; earlier lines have been reported."""
    failure: tuple[int, str] | None = None


class Supervisor:
    """Runs a group of processes, in a `with` that leaves none of them behind.

    A signal whose handler raises may end the `with` at any line: the launcher ends what is left.

    Args:
        logs: the folder in which NAME.log gets stdout and stderr of process NAME.
        restarts: how often each process is restarted after it died.
        grace: seconds that processes get to stop by themselves.
    """

    def __init__(
        self,
        logs: Path,
        restarts: int = RESTARTS,
        grace: float = GRACE,
    ) -> None:
        self._logs = logs
        self._restarts = restarts
        self._grace = grace
        self._launcher: Launcher | None = None
        self._own = ExitStack()
        self._running: dict[str, _Running] = {}
        self.failed: dict[str, SecurepsError] = {}
        """The errors of processes that may fail and are not restarted, by name."""
        self._ending = False

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        with self._own:
            self.stop()

    def start(self, program: Program) -> None:
        running = _Running(program, None)
        self._running[program.name] = running
        self._launch(running)

    def poll(self) -> tuple[Finished | Died, ...]:
        """Returns the processes that ended since the last call, and restarts those that died.

        A process that may fail is put into `failed` once a restart cannot help.

        Raises:
            OperatorError: another process died too often, or twice in the same way, or says that a
                restart cannot help. It is ScriptFailed, RuleFailed or InternalError if the last
                line of the process says so.
        """
        return tuple(self._collect_ends())

    def expect_end(self) -> None:
        self._ending = True

    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    def tail(self, name: str, lines: int = TAIL_LINES) -> tuple[str, ...]:
        """The last nonempty lines of a log since its process was last started."""
        before = self._running[name].written if name in self._running else 0
        try:
            with self._log(name).open("rb") as file:
                file.seek(max(before, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ()
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]

    def stop(self) -> None:
        """Sends SIGTERM to all processes, and SIGKILL after the grace; afterwards none is left.

        A signal in the meantime only shortens the grace.
        """
        left = [e.process for e in self._running.values() if e.process is not None]
        try:
            left = [process for process in left if process.signal(signal.SIGTERM)]
            until = time.monotonic() + self._grace
            while left and time.monotonic() < until:
                time.sleep(_TICK)
                left = [process for process in left if process.signal(0)]
        finally:
            left = [process for process in left if process.signal(signal.SIGKILL)]
            # Without the launcher they may stay zombies: not every first process reaps orphans.
            until = time.monotonic() + self._grace
            while any(process.signal(0) for process in left) and time.monotonic() < until:
                time.sleep(_TICK)
            for log in map(self._log, self._running):
                with suppress(OSError):
                    if not log.stat().st_size:
                        log.unlink()
            self._running.clear()

    def _collect_ends(self) -> list[Finished | Died]:
        news: list[Finished | Died] = []
        for name, running in list(self._running.items()):
            if running.process is None:
                if time.monotonic() >= running.due:
                    self._launch(running)
                continue
            code = running.process.poll()
            if code is None:
                continue
            if code in (0, UNFINISHED) and (self._ending or self._may_finish(running.program)):
                last = _strip_error((self.tail(name, 1) or ("",))[0])
                news.append(Finished(name, last, code == UNFINISHED))
                del self._running[name]
                continue
            try:
                news.append(self._handle_death(running, code))
            except SecurepsError as error:
                if not running.program.may_fail:
                    raise
                self.failed[name] = error
        return news

    def _may_finish(self, program: Program) -> bool:
        said = program.done
        return program.may_finish or bool(said and any(said in e for e in self.tail(program.name)))

    def _handle_death(self, running: _Running, code: int) -> Died:
        name, how = running.program.name, _describe_exit(code)
        said = _strip_error((self.tail(name, 1) or ("",))[0])
        last, kind = split_fault(said)
        if code < 0 and (dump := self.tail(name, _DUMP_LINES)):
            place = locate_crash(dump)
            how, last = (f"{how} in {place}" if place else how), find_fatal_line(dump) or last
            kind = ScriptFailed if place and running.program.may_fail else kind
        if code == MISCONFIGURED:
            del self._running[name]
            kind = ConfigError if kind is OperatorError else kind
            raise kind(
                f"{name} cannot take part, and no restart mends that: {last}; see {self._log(name)}"
            )
        # A script that fails the same way again may print other addresses and times.
        failure = (code, numberless(last) if running.program.may_fail else last)
        if failure == running.failure and code != 0 and -code not in _FROM_OUTSIDE:
            del self._running[name]
            raise kind(
                f"{name} died twice in the same way, with {how}, and is not started again: "
                f"{last}; see {self._log(name)}"
            )
        running.failure = failure
        if running.restarts >= self._restarts:
            running.process = None
            del self._running[name]
            why = f": {last}" if last else ""
            often = f"{running.restarts + 1} times, at last " if running.restarts else ""
            raise kind(f"{name} died {often}with {how}{why}; see {self._log(name)}")
        running.restarts += 1
        running.process, running.due = None, time.monotonic() + RESTART_DELAY
        return Died(name, how, running.restarts, last)

    def _launch(self, running: _Running) -> None:
        program = running.program
        try:
            if shutil.which(program.arguments[0]) is None:
                raise FileNotFoundError(f"no program {program.arguments[0]}")
            self._logs.mkdir(parents=True, exist_ok=True)
            with self._log(program.name).open("ab") as log:
                running.written = log.tell()
                running.process = (program.launcher or self._make_launcher()).start(program, log)
        except OSError as error:
            raise OperatorError(f"{program.name} cannot be started: {error}") from None

    def _make_launcher(self) -> Launcher:
        if self._launcher is None:
            self._launcher = self._own.enter_context(Launcher(grace=self._grace))
        return self._launcher

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _strip_error(line: str) -> str:
    with suppress(ValueError, KeyError, TypeError):
        told = json.loads(line)
        return f"{told['message']} ({told['fault']} fault)"
    return line.removeprefix("error: ")


def _describe_exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
