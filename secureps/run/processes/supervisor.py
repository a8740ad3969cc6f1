"""Supervises processes that live as long as this one: starts, watches, restarts and stops them.

Every process has a session of its own, so that a Ctrl-C on the terminal reaches this
process alone and this one stops the others, with whatever they started; where this one ends
without a word, `run.processes.reaper` does.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
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
from secureps.run.processes import reaper
from secureps.run.processes.signals import SignalGate
from secureps.run.processes.spawning import Process, Program, Spawner, Subprocesses
from secureps.tracebacks import find_fatal_line, locate_crash
from secureps.wording import numberless

RESTARTS = 3
RESTART_DELAY = 0.5
"""Seconds between a process's death and its next start."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
TAIL_LINES = 8

_TICK = 0.02
_TAIL_BYTES = 16384
_DUMP_LINES = 200
"""The most lines that are read of a native crash's dump, one for every frame of every thread."""

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Somebody's signals: they say nothing about the process that they ended."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A process ended as it should; `last` is the last line of its log.

    `failed`: its run failed, and may go on (`UNFINISHED`).
    """

    name: str
    last: str
    failed: bool = False


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
    process: Process | None
    restarts: int = 0
    due: float = 0.0
    written: int = 0
    """Bytes of its log before it was started last: what it said then has been told."""
    failure: tuple[int, str] | None = None


class Supervisor:
    """Runs a group of processes, in a `with` that leaves none of them behind.

    Signals whose handlers raise end the `with`; while a process is being started or stopped
    they wait (`run.processes.signals`).

    Args:
        logs: stdout and stderr of process NAME go to NAME.log in this folder.
        restarts: how often each process is started again after it died.
        grace: seconds that processes get to stop by themselves.
        spawner: starts them.
    """

    def __init__(
        self,
        logs: Path,
        restarts: int = RESTARTS,
        grace: float = GRACE,
        spawner: Spawner | None = None,
    ) -> None:
        self._logs = logs
        self._restarts = restarts
        self._grace = grace
        self._spawner = spawner if spawner is not None else Subprocesses()
        self._running: dict[str, _Running] = {}
        self.failed: dict[str, SecurepsError] = {}
        """Why processes that may fail are not started again, by name."""
        self._ending = False
        self._signals = SignalGate()
        self._reaper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Supervisor:
        # For a signal that ends the `with` before the first line of `__exit__`.
        atexit.register(self.stop)
        self._signals.install()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            # Again, if a signal came before `stop` held signals back: no second one raises.
            self.stop()
            atexit.unregister(self.stop)
            self._signals.remove()

    def start(self, program: Program) -> None:
        running = _Running(program, None)
        self._running[program.name] = running
        self._launch(running)

    def poll(self) -> tuple[Finished | Died, ...]:
        """Returns the ends since the last call; restarts processes that should not have ended.

        A process that may fail is in `failed` from the moment when no restart helps it.

        Raises:
            OperatorError: another process died once more than it may, or twice in the same way, or
                says that no restart helps; ScriptFailed, RuleFailed or InternalError, if its last
                line says that it is their fault.
        """
        with self._signals.closed():  # Popen holds a lock while it looks
            return tuple(self._news())

    def ended(self, name: str) -> str | None:
        """How a process ended, without restarting it; None while it runs, or is to be started."""
        running = self._running[name]
        with self._signals.closed():
            if running.process is None:
                self._launch(running)
            code = None if running.process is None else running.process.poll()
        return None if code is None else _describe_exit(code)

    def expect_end(self) -> None:
        self._ending = True

    def starting(self) -> bool:
        """Whether a process waits for what is imported for it; `poll` starts it after that."""
        return any(e.process is None and not e.restarts for e in self._running.values())

    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    def tail(self, name: str, lines: int = TAIL_LINES) -> tuple[str, ...]:
        """The last lines of a log that are not empty, since its process was started last."""
        before = self._running[name].written if name in self._running else 0
        try:
            with self._log(name).open("rb") as file:
                file.seek(max(before, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ()
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]

    def stop(self) -> None:
        """Sends SIGTERM to all, and SIGKILL after the grace; afterwards none is left.

        A signal that comes meanwhile only shortens the grace.
        """
        with self._signals.closed():
            processes = [e.process for e in self._running.values() if e.process is not None]
            try:
                for process in processes:
                    _signal_group(process, signal.SIGTERM)
                until = time.monotonic() + self._grace
                while time.monotonic() < until and any(e.poll() is None for e in processes):
                    if self._signals.knocked:
                        break
                    time.sleep(_TICK)
            finally:
                for process in processes:
                    _kill_group(process)
                for process in processes:
                    process.wait()
                for name in self._running:
                    self._drop_empty(name)
                self._running.clear()
                self._dismiss()

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
            _kill_group(running.process)
            self._tell(f"-{running.process.pid}")
            if code in (0, UNFINISHED) and (self._ending or self._may_finish(running.program)):
                last = _strip_error((self.tail(name, 1) or ("",))[0])
                news.append(Finished(name, last, code == UNFINISHED))
                del self._running[name]
                continue
            try:
                news.append(self._died(running, code))
            except SecurepsError as error:
                if not running.program.may_fail:
                    raise
                self.failed[name] = error
        return news

    def _may_finish(self, program: Program) -> bool:
        said = program.done
        return program.may_finish or bool(said and any(said in e for e in self.tail(program.name)))

    def _died(self, running: _Running, code: int) -> Died:
        name, tail = running.program.name, self.tail(running.program.name)
        how, said = _describe_exit(code), _strip_error((tail or ("",))[-1])
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
        # A training fails again as it failed, with other addresses and times in its words.
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
            raise kind(
                f"{name} died {running.restarts + 1} times, at last with {how}{why}; "
                f"see {self._log(name)}"
            )
        running.restarts += 1
        running.process, running.due = None, time.monotonic() + RESTART_DELAY
        return Died(name, how, running.restarts, tail)

    def _launch(self, running: _Running) -> None:
        program = running.program
        try:
            if shutil.which(program.arguments[0]) is None:
                raise FileNotFoundError(f"no program {program.arguments[0]}")
            self._logs.mkdir(parents=True, exist_ok=True)
            # A signal whose handler raises between the fork and the end of this block would
            # leave a process that nobody knows of.
            with self._log(program.name).open("ab") as log, self._signals.closed():
                if not self._spawner.ready(program):
                    return
                if self._reaper is None:
                    self._reaper = _start_reaper(self._grace)
                running.written = log.tell()
                running.process = process = self._spawner.spawn(program, log)
                self._tell(f"+{process.pid}")
                process.begin()
        except OSError as error:
            raise OperatorError(f"{program.name} cannot be started: {error}") from None

    def _tell(self, line: str) -> None:
        """Tells the reaper, if there is one; the run goes on without it."""
        if self._reaper is not None:
            assert self._reaper.stdin is not None
            with suppress(BrokenPipeError):
                os.write(self._reaper.stdin.fileno(), f"{line}\n".encode())

    def _dismiss(self) -> None:
        if self._reaper is not None:
            _signal_group(self._reaper, signal.SIGKILL)
            assert self._reaper.stdin is not None
            self._reaper.stdin.close()
            self._reaper.wait()
            self._reaper = None

    def _drop_empty(self, name: str) -> None:
        with suppress(OSError):
            if not self._log(name).stat().st_size:
                self._log(name).unlink()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _strip_error(line: str) -> str:
    """What a log's line says without the mark of an error; under `--log-format json` it is JSON."""
    with suppress(ValueError, KeyError, TypeError):
        told = json.loads(line)
        return f"{told['message']} ({told['fault']} fault)"
    return line.removeprefix("error: ")  # of another error


def _describe_exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _start_reaper(grace: float) -> subprocess.Popen[bytes]:
    """Starts the reaper in isolated mode, so that no file or variable can break its imports."""
    arguments = (sys.executable, "-I", "-S", reaper.__file__, str(os.getpid()), str(grace))
    return subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill_group(process: Process) -> None:
    """Kills the rest of a process's session, with its children.

    The group's id is the process's; nobody else can have it while a member is left, and
    the kernel does not hand it out again in the instant after the last one.
    """
    _signal_group(process, signal.SIGKILL)


def _signal_group(process: Process | subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # gone; on macOS a zombie gives the latter
        return
