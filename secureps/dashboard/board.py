"""Holds the newest facts about a run, which threads write and pages are made of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from secureps.dashboard import Json
from secureps.dashboard.holder_view import OwnLedger
from secureps.dashboard.observation import Course, Report, Seen
from secureps.messages.requests import Status
from secureps.policy.plan import Plan
from secureps.store.act_lines import ActLine


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that pages are made of; None: not available, or not yet.

    Args:
        asks: the coordinator is asked, so there is a run to show.
        owner: the client that has its own page here; empty without one.
        planned: id of the founded run that the plan is of; empty without one.
        recalled: the status from the coordinator's journal, if the coordinator gives none.
        report: what `up` wrote about its run's versions.
        logs: by audit log, its file, whether it is sound, and the result of `audit-log verify`.
        acts: done from here; None if none are allowed.
        offered: the allowed acts.
        troubles: by source, why it cannot be read.
    """

    asks: bool = False
    owner: str = ""
    seen: Seen = field(default_factory=Seen)
    plan: Plan | None = None
    planned: bytes = b""
    explanation: Mapping[str, object] | None = None
    course: Course | None = None
    recalled: Status | None = None
    report: Report | None = None
    own: Json | None = None
    ledgers: Mapping[str, OwnLedger] = field(default_factory=dict)
    logs: tuple[Json, ...] | None = None
    acts: tuple[ActLine, ...] | None = None
    offered: tuple[str, ...] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)


class Board:
    """The newest facts; thread-safe."""

    def __init__(self, facts: Facts | None = None) -> None:
        self._lock = threading.Lock()
        self._facts = Facts() if facts is None else facts
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @property
    def facts(self) -> Facts:
        return self._facts

    def put(self, change: Callable[[Facts], Facts]) -> None:
        """Changes the facts, and wakes listeners if they differ now."""
        with self._lock:
            before, self._facts = self._facts, change(self._facts)
            if self._facts == before:
                return
            for event, loop in self._listeners.items():
                loop.call_soon_threadsafe(event.set)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """Yields an event of the running loop that is set at every change."""
        event = asyncio.Event()
        with self._lock:
            self._listeners[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._lock:
                del self._listeners[event]
