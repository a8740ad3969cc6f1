"""Holds the newest facts about a run, which threads write, and builds a viewer's pages of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from secureps.dashboard.access import Viewer
from secureps.dashboard.course import Course
from secureps.dashboard.holder_view import OwnLedger
from secureps.dashboard.observation import Json, Seen, with_journal
from secureps.dashboard.officer_view import officer_view
from secureps.dashboard.operator_view import ROWS, operator_view
from secureps.dashboard.scores import Report
from secureps.messages.requests import Status
from secureps.policy.plan import Plan
from secureps.store.act_lines import ActLine


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that pages are made of; None: not at hand, or not yet.

    Args:
        asks: the coordinator is asked, so there is a run to show.
        owner: the client whose own page there is; empty if there is none.
        planned: the run that the plan is of; empty: of none that was founded.
        recalled: the status by the coordinator's journal, where the coordinator gives none.
        report: what `up` wrote of its run's versions.
        logs: by audit log, its file, whether it is sound, and what `audit-log verify` says.
        acts: what was done from here; None where no act is allowed. offered: the allowed acts.
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


def pages(facts: Facts, viewer: Viewer) -> str:
    """Builds the pages that this viewer may see, as JSON.

    A client sees its own page; others see the operator's; viewers who may know names also see the
    privacy officer's.
    """
    found: dict[str, object] = {}
    own = viewer.role == "client" and viewer.name == facts.owner
    if own and facts.own is not None:
        found["holder"] = facts.own
    seen, more = with_journal(facts.seen, facts.recalled), (facts.plan, facts.report)
    if facts.asks or facts.course is not None:
        shown = operator_view(seen, facts.course, facts.plan, viewer.names, facts.report)
        found["operator"] = shown
    if viewer.names:
        of = (seen, facts.explanation, facts.course, facts.ledgers, facts.logs)
        found["officer"] = officer_view(*of, *more)
    if facts.acts is not None and (own if facts.owner else viewer.names):
        offered = ("export",) if facts.seen.over and not own else facts.offered
        found["acts"] = {"done": facts.acts, "offered": offered, "clients": _clients(facts.seen)}
    # what is wrong with a file may name a client
    found["troubles"] = dict(facts.troubles) if own or viewer.names else {}
    return json.dumps(found, default=asdict, allow_nan=False, separators=(",", ":"))


def _clients(seen: Seen) -> list[tuple[str, bool]]:
    """Lists the clients that an act may name, and whether an operator has left them out."""
    members = seen.status.members if seen.status is not None else ()
    known = ((each.name, each.state.partition(":")) for each in members[:ROWS])
    return [(name, word == OUT) for name, (word, why, _) in known if word not in GONE or why]


OUT, GONE = "left out", ("left out", "revoked")
"""States of a client that takes no part; an operator's reason follows the first."""
