"""Times named functions while they run, by Python's profiler hook: no line of theirs is changed.

Outer functions are what a party does; inner ones are the parts of it, on whichever thread. What
must not live here: which functions, and what is played (`run.profile`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_PACKAGE = f"{Path(__file__).parent.parent}/"


@dataclass(frozen=True)
class Named:
    """A function that is timed.

    Args:
        pattern: "file:qualified name", the file below the package; a shell pattern.
        phase: what it does; functions of one phase are added up.
        outer: whether it is what a party does; else it is a part of that.
    """

    pattern: str
    phase: str
    outer: bool = False


@dataclass
class Spent:
    """Seconds of the clock and of CPU, and how often a function was called."""

    clock: float = 0.0
    cpu: float = 0.0
    calls: int = 0

    def add(self, clock: float, cpu: float, calls: int = 0) -> None:
        """Adds what one call took, or takes away what was of another phase."""
        self.clock += clock
        self.cpu += cpu
        self.calls += calls


class Stopwatch:
    """Counts while `running`; parties must do one thing at a time, as they do in virtual time.

    `whole` is by outer phase, without other outer phases inside; `parts` by outer and inner phase,
    of each thread that took part. Threads may work side by side: parts can then be more than whole.
    """

    def __init__(self, functions: Sequence[Named]) -> None:
        self._functions = functions
        self._known: dict[int, tuple[CodeType, Named | None]] = {}
        self._stacks = threading.local()
        self._doing: list[str] = []
        self.clear()

    def clear(self) -> None:
        """Begins anew: what is running counts from its next call on."""
        self.whole: dict[str, Spent] = {}
        self.parts: dict[tuple[str, str], Spent] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts on this thread, and on those that begin meanwhile."""
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Counts what is done in the `with` as one call of an outer phase."""
        self._begin(Named("", phase, outer=True))
        try:
            yield
        finally:
            self._end()

    def _hook(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        known = self._known.get(id(code))
        named = self._look(code) if known is None else known[1]
        if named is None:
            return
        if event == "call":
            self._begin(named)
        elif self._stack:  # else it was called before this began
            self._end()

    def _look(self, code: CodeType) -> Named | None:
        path = code.co_filename
        name = f"{path.removeprefix(_PACKAGE)}:{code.co_qualname}"
        own = path.startswith(_PACKAGE)
        found = (f for f in self._functions if own and fnmatchcase(name, f.pattern))
        named = next(found, None)
        self._known[id(code)] = (code, named)
        return named

    @property
    def _stack(self) -> list[tuple[Named, float, float]]:
        """What this thread is doing: since which seconds of the clock and of CPU."""
        stack: list[tuple[Named, float, float]] = self._stacks.__dict__.setdefault("own", [])
        return stack

    def _begin(self, named: Named) -> None:
        if named.outer:
            self._doing.append(named.phase)
        self._stack.append((named, time.perf_counter(), _cpu(named)))

    def _end(self) -> None:
        stack = self._stack
        named, clock, cpu = stack.pop()
        cpu, clock = _cpu(named) - cpu, time.perf_counter() - clock
        if named.outer:
            self._doing.pop()
            self.whole.setdefault(named.phase, Spent()).add(clock, cpu, 1)
            if self._doing:
                self.whole.setdefault(self._doing[-1], Spent()).add(-clock, -cpu)
        elif self._doing:
            doing = self._doing[-1]
            self.parts.setdefault((doing, named.phase), Spent()).add(clock, cpu, 1)
            if stack and not stack[-1][0].outer:
                self.parts.setdefault((doing, stack[-1][0].phase), Spent()).add(-clock, -cpu)


def _cpu(named: Named) -> float:
    """Of the process for what a party does, whatever threads it has; of the thread for a part."""
    return time.process_time() if named.outer else time.thread_time()
