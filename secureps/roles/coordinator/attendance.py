"""Which clients take part in a group now, and which of them are free.

It is kept up to date by what changed: with very many clients nobody looks at all of them at
every event. All of it follows from the coordinator's state and the leases, and a restart begins
without it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator

from secureps.messages import coordinator_records as records
from secureps.messages import requests
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import digest
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import EvaluationSkipped, VersionEvaluated
from secureps.messages.submission import Held
from secureps.roles.coordinator.group import GroupState, Members

KEPT = 1 << 17
"""Changes that are kept for groups that have not looked at them yet."""

NEVER = -1
"""Stands for the version from which a client contributed last, if it never did."""

_QUIET = (
    records.CheckpointComplete,
    records.CheckpointOrdered,
    requests.Checkpointed,
    records.CohortClosed,
    records.CohortOpened,
    records.FounderChosen,
    records.KeysReleased,
    records.RoundExtended,
    records.ShardLocated,
    requests.Prepared,
    requests.KeyShare,
    Held,
    records.VersionCommitted,
    Charge,
    EnvelopeKeyAnnounced,
    EvaluationSkipped,
    Release,
    VersionEvaluated,
)
"""Records that change neither who takes part nor who trains."""


class Changes:
    """The clients of which something changed, in order; each reader knows how far it has read."""

    def __init__(self) -> None:
        self._clients: list[str] = []
        self._began = 0

    @property
    def mark(self) -> int:
        """The position after everything that was added."""
        return self._began + len(self._clients)

    def add(self, client: str) -> None:
        if len(self._clients) >= KEPT:
            self.forget()
        self._clients.append(client)

    def forget(self) -> None:
        """Has every reader look at all clients: anything may have changed."""
        self._began += len(self._clients) + 1
        self._clients.clear()

    def note(self, record: object) -> None:
        concerned = _concerned(record)
        if concerned is None:
            self.forget()
            return
        for client in concerned:
            self.add(client)

    def since(self, mark: int) -> list[str] | None:
        """The clients since a mark; None if they are not known, and all are to be looked at."""
        return None if mark < self._began else self._clients[mark - self._began :]


def _concerned(record: object) -> Collection[str] | None:
    """The clients whose part in a group a record changes; None if that may be any."""
    match record:
        case (
            records.MemberAsked(client=client)
            | records.MemberDeclined(client=client)
            | records.MemberEntered(client=client)
            | records.MemberJoined(client=client)
            | records.MemberLeft(client=client)
            | records.MemberPassed(client=client)
            | requests.Retire(client=client)
        ):
            return (client,)
        case requests.Submit(receipt):
            return (receipt.id.client,)
        case requests.Withdraw(id=id):
            return (id.client,)
        case records.SubmissionsDropped(ids=ids) | records.CohortReopened(missing=ids):
            return dict.fromkeys(id.client for id in ids)
        case requests.Examined(flaw=""):
            return ()
        case _ if isinstance(record, _QUIET):
            return ()
    return None


class Attendance:
    """Who takes part in one group; both lists are kept by `follow`, and only read elsewhere.

    Args:
        here: live trainers that take part, and neither sit out nor have spent their budget.
        asked: without rounds, since when those of them train that do, ascending (infinite where
            no clock of theirs says it).
    """

    def __init__(self) -> None:
        self.here: set[str] = set()
        self.asked: list[float] = []
        self._mark = -1
        self._members: Members | None = None
        self._rounds = True
        self._out: frozenset[str] = frozenset()
        self._training: dict[str, float] = {}
        self._free: dict[str, int] = {}
        self._queues: dict[int, _Queue] = {}
        self._moved: set[str] | None = None

    def follow(
        self, group: GroupState, changes: Changes, live: Collection[str], barred: Barred
    ) -> None:
        """Takes up what has changed; `barred` says whether a client takes no part at all."""
        touched, self._mark = changes.since(self._mark), changes.mark
        same = group.members is self._members and group.sitting_out == self._out
        if touched is None or not same:
            self._members, self._out = group.members, group.sitting_out
            self._rounds = group.rounds
            self._forget()
            for client in live:
                self._look(client, live, barred)
            return
        for client in touched:
            self._look(client, live, barred)
        if self._moved is not None:
            self._moved.update(touched)

    def _forget(self) -> None:
        self.here.clear()
        self.asked.clear()
        self._training.clear()
        self._free.clear()
        self._queues.clear()
        self._moved = None

    def _look(self, client: str, live: Collection[str], barred: Barred) -> None:
        members = self._members
        assert members is not None
        here = client in live and client not in self._out and not barred(client)
        here = here and client not in members.spent
        (self.here.add if here else self.here.discard)(client)
        if self._rounds:
            return
        trains = here and client in members.training
        since = members.moved.get(client, math.inf) if trains else None
        if (before := self._training.get(client)) != since:
            if before is not None:
                del self.asked[bisect_left(self.asked, before)], self._training[client]
            if since is not None:
                insort(self.asked, since)
                self._training[client] = since
        last = members.sent.get(client)
        free = (NEVER if last is None else last.version) if here and not trains else None
        if (was := self._free.get(client)) != free:
            if was is not None:
                del self._free[client]
                self._queues[was].remove(client)
                if not self._queues[was].clients:
                    del self._queues[was]
            if free is not None:
                self._free[client] = free
                self._queues.setdefault(free, _Queue()).add(client)

    # --- of groups without rounds -------------------------------------------------

    def comes_and_goes(self, members: Members) -> tuple[list[str], list[str]]:
        """Who takes part and has no clock yet, and who has one and takes no part any more.

        A member that was passed over has no clock until it sends. Each is returned once: the caller
        journals it.
        """
        looked, self._moved = self._moved, set()
        clocks, here = members.clocks, self.here
        if looked is None:
            return sorted(here - clocks.keys() - members.passed), sorted(clocks.keys() - here)
        comes = (c for c in looked if c in here and c not in clocks and c not in members.passed)
        return sorted(comes), sorted(c for c in looked if c in clocks and c not in here)

    @property
    def free(self) -> Collection[str]:
        return self._free.keys()

    def in_order(self, closed: int) -> Iterator[str]:
        """The free ones: first those that contributed longest ago; among these by a draw.

        The caller may ask them, and call `follow`, while it iterates.

        Args:
            closed: cohorts that are settled: there is another draw for each.
        """
        for version in sorted(self._queues):
            if (queue := self._queues.get(version)) is not None:
                yield from queue.drawn(closed)


Barred = Callable[[str], bool]
"""Whether a client takes no part in a group, whoever is live."""


class _Queue:
    """Free clients that contributed from one version last."""

    def __init__(self) -> None:
        self.clients: set[str] = set()
        self._closed = -1
        self._lots: list[tuple[bytes, str]] | None = None
        self._first = 0
        """Those before it are gone: whoever is asked is mostly the first."""

    def add(self, client: str) -> None:
        self.clients.add(client)
        if self._lots is not None:
            insort(self._lots, self._lot(client), lo=self._first)

    def remove(self, client: str) -> None:
        self.clients.discard(client)
        if self._lots is None:
            return
        at = bisect_left(self._lots, self._lot(client), lo=self._first)
        if at == self._first:
            self._first += 1
        else:
            del self._lots[at]

    def drawn(self, closed: int) -> Iterator[str]:
        if self._lots is None or self._closed != closed:
            self._closed, self._first = closed, 0
            self._lots = sorted(map(self._lot, self.clients))
        at = self._first
        while at < len(self._lots):
            lot = self._lots[at]
            yield lot[1]
            at = bisect_right(self._lots, lot, lo=self._first)

    def _lot(self, client: str) -> tuple[bytes, str]:
        closed = self._closed.to_bytes(8, "little")
        return digest("secureps-asked", client.encode(), closed), client
