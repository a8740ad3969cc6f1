"""Holds the newest view of a run: threads write it, and streams of browsers wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from secureps.dashboard.course import Course
from secureps.dashboard.holder_view import HolderView, OwnLedger
from secureps.dashboard.observation import Seen
from secureps.dashboard.officer_view import LogCheck
from secureps.dashboard.scores import Report
from secureps.messages.requests import Status
from secureps.policy.plan import Plan
from secureps.store.act_lines import ActLine


@dataclass(frozen=True, slots=True)
class Facts:
    """All that pages are made of; None: not at hand, or not yet.

    Args:
        asks: the coordinator is asked, so that there is a run to be shown.
        owner: the client whose own page there is; empty if there is none.
        planned: the run that the plan is of; empty: of none that was founded.
        recalled: the status by the coordinator's journal, read where it gives none itself.
        report: what `up` wrote of its run's versions.
        acts: what was done from here; None where nothing may be; offered: what may.
        troubles: by the source, why it cannot be read.
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
    own: HolderView | None = None
    ledgers: Mapping[str, OwnLedger] = field(default_factory=dict)
    logs: tuple[LogCheck, ...] | None = None
    acts: tuple[ActLine, ...] | None = None
    offered: tuple[str, ...] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)


class Board:
    """The newest facts; any thread may change or read them."""

    def __init__(self, facts: Facts | None = None) -> None:
        self._lock = threading.Lock()
        self._facts = Facts() if facts is None else facts
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @property
    def facts(self) -> Facts:
        """As they are now."""
        return self._facts

    def put(self, change: Callable[[Facts], Facts]) -> None:
        """Changes them, and wakes whoever listens if they are others then."""
        with self._lock:
            before, self._facts = self._facts, change(self._facts)
            if self._facts == before:
                return
            for event, loop in self._listeners.items():
                loop.call_soon_threadsafe(event.set)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event of the running loop that is set at every change."""
        event = asyncio.Event()
        with self._lock:
            self._listeners[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._lock:
                del self._listeners[event]
