"""One transaction of the coordinator: the state, the time, and the step that is being built.

`write` journals a fact and folds it at once; `order` speaks to parties that watch now (others are
told when they subscribe). A restart begins without `Sessions` and `Cache`.

It is kept up to date by what changed: with very many clients nobody looks at all of them at
every event. All of it follows from the coordinator's state and the leases, and a restart begins
without it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from secureps.config.plan import SyncSection
from secureps.errors import Malformed, NotReady
from secureps.messages import coordinator_records as records
from secureps.messages import requests
from secureps.messages.charge import Charge, Release
from secureps.messages.coordinator_records import CoordinatorRecord, SubmissionsDropped
from secureps.messages.encoding import digest
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import EvaluationSkipped, VersionEvaluated
from secureps.messages.orders import (
    AnyOrder,
    ClientOrder,
    Configure,
    Discard,
    Settled,
    ShardOrder,
)
from secureps.messages.requests import Subscribe
from secureps.messages.run import ShardAddress
from secureps.messages.submission import Held, SubmissionId
from secureps.model.layout import Layout
from secureps.policy.plan import Plan
from secureps.policy.rules.registry import apply_factors, build_rule
from secureps.policy.rules.rule import Rule, Wait
from secureps.roles.coordinator.group import GroupState, Members
from secureps.roles.coordinator.state import AS_PLANNED, CoordinatorState
from secureps.roles.machine import Order, Say, Step
from secureps.roles.pinned_run import LATER

# --- which clients take part in a group now, and which of them are free ------------

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
        concerned = _concerned_clients(record)
        if concerned is None:
            self.forget()
            return
        for client in concerned:
            self.add(client)

    def since(self, mark: int) -> list[str] | None:
        """The clients since a mark; None if they are not known, and all are to be looked at."""
        return None if mark < self._began else self._clients[mark - self._began :]


def _concerned_clients(record: object) -> Collection[str] | None:
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

    def pop_changes(self, members: Members) -> tuple[list[str], list[str]]:
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


Located = tuple[tuple[ShardAddress, ...], int]
"""Where shards are, and the epoch of the placement of blocks on them."""


@dataclass(slots=True)
class Sessions:
    """Who is here now, and whom this incarnation gave orders; a restart forgets it.

    `elsewhere` are parties that cannot be taken before an operator has brought something back,
    and when they last asked. `lost` are submissions whose fate was open and that their client had
    no more when it last subscribed, or said so of (`gone`) when it was to send them again
    (`asked`). `unconfirmed` are shards, by group, that said that they are prepared and came back
    since: perhaps without it. `located` is where shards were as those were told who joined and do
    not watch yet.
    """

    watchers: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    elsewhere: dict[str, float] = field(default_factory=dict)
    lost: dict[str, frozenset[SubmissionId]] = field(default_factory=dict)
    asked: set[SubmissionId] = field(default_factory=set)
    gone: set[SubmissionId] = field(default_factory=set)
    unconfirmed: set[tuple[str, str]] = field(default_factory=set)
    located: dict[str, Located] = field(default_factory=dict)
    away: dict[str, float] = field(default_factory=dict)
    """Since when shards of the run are not here."""
    reached: dict[str, frozenset[str]] = field(default_factory=dict)
    """Of which groups shards have what is committed, as they said since they last came up."""
    prepared: set[tuple[int, str, str]] = field(default_factory=set)
    """Of which groups shards said, since they last came, that they have all blocks of the coming
    placement of an epoch: (epoch, group, shard)."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Of the rosters that parties go by, as they said when they last subscribed."""
    troubles: dict[str, str] = field(default_factory=dict)
    """What is wrong at servers and clients, in words that follow their names."""
    roster: str = ""
    """What is wrong with the roster that the coordinator goes by, in such words."""
    refused: set[str] = field(default_factory=set)
    """Clients that took no part in the plan that they were shown, as an operator has read."""
    obeyed: dict[str, int] = field(default_factory=dict)
    """The incarnation that each server obeys, as it said."""
    told_of: dict[str, int] = field(default_factory=dict)
    """The incarnation that each server was told of, before this coordinator rules."""
    waiting: dict[str, Subscribe] = field(default_factory=dict)
    """Subscriptions of servers, until this coordinator rules."""
    caught_up: bytes = b""
    """The standby that has all of the journal, until it may be written down that it follows."""
    followed: bool = False
    """Whether a standby has had all of the journal in this incarnation."""
    confirmed: bool = False
    """Whether the standby has it on record, too, that it follows this incarnation."""
    changes: Changes = field(default_factory=Changes)
    """Clients that came, went or moved, for `attendance` to follow."""
    attendance: dict[str, Attendance] = field(default_factory=dict)
    """Who takes part in each group, by name (`Transaction.attendance`)."""
    unheard: set[str] = field(default_factory=set)
    """Clients that have a lease since this incarnation began, and were not heard of since."""
    steps: dict[tuple[str, int, str], float] = field(default_factory=dict)
    """Since when servers owe what a step of a commit, or a checkpoint, wants of them."""
    overdue: dict[str, str] = field(default_factory=dict)
    """Servers that owe it for longer than the plan's deadline, in words that follow their names."""
    kept: tuple[int, ...] = ()
    """The checkpoints that stay, as the last manifest's writer found them; none: not known."""
    began: float = 0.0
    _leases: dict[str, float] = field(default_factory=dict)
    _live: set[str] = field(default_factory=set)
    _first: float = math.inf
    """No lease runs out before it: until then nobody need look at all of them."""

    def trouble(self, party: str, reason: str) -> None:
        """Notes what is wrong at a party, or that nothing is (no reason)."""
        self.troubles.pop(party, None)
        if reason:
            self.troubles[party] = reason

    def note_whole(self, shard: str, group: str) -> None:
        self.reached[shard] = self.reached.get(shard, frozenset()) | {group}

    def renew(self, client: str, until: float) -> None:
        """Renews the lease of a client that was heard of."""
        self.unheard.discard(client)
        self._leases[client] = until
        self._first = min(self._first, until)
        if client not in self._live:
            self._live.add(client)
            self.changes.add(client)

    def begin(self, now: float, clients: Iterable[str], until: float) -> None:
        """Gives a lease to clients that were here by the journal, which may have gone since."""
        for client in clients:
            self.renew(client, until)
        self.unheard, self.began = set(clients), now

    def leave(self, client: str) -> None:
        self._leases.pop(client, None)
        if client in self._live:
            self._live.remove(client)
            self.changes.add(client)

    def live(self, now: float) -> set[str]:
        """Clients whose lease runs; the set itself, only for reading."""
        if now >= self._first:
            for client in [client for client, until in self._leases.items() if until <= now]:
                del self._leases[client]
                self._live.discard(client)
                self.changes.add(client)
            self._first = min(self._leases.values(), default=math.inf)
        return self._live

    @property
    def next_look(self) -> float | None:
        """When a lease may run out; None: none runs."""
        return self._first if self._leases else None


T = TypeVar("T")


class Cache:
    """The last answer to each question, with all that it depends on."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Any, Any]] = {}

    def of(
        self,
        question: Hashable,
        basis: Any,
        answer: Callable[[], T],
        holds: Callable[[T], bool] = lambda found: True,
    ) -> T:
        """The answer to a question, worked out again only if it must be.

        Args:
            basis: all that the answer depends on, compared by `==`.
            holds: whether an answer that was given on this basis still holds.
        """
        known = self._known.get(question)
        if known is not None and known[0] == basis and holds(known[1]):
            found: T = known[1]
            return found
        found = answer()
        self._known[question] = basis, found
        return found


Names = set[str] | frozenset[str]

GOES_ON = Wait(None, "")
"""What a step returns whose records, or those before it, say what its group waits for."""


@dataclass(slots=True)
class Transaction:
    """What one event makes of the state, while it is handled.

    Args:
        clients, holders: all on the roster in these roles, but a designated evaluator.
        live: clients whose lease runs at `now`; watchers: parties that can be told. Both may be
            the sessions' own sets: only for reading.
        sessions: what else this incarnation knows of those who are here.
        cache: what was worked out in earlier transactions.
        reasons: what groups wait for since its event, by name.
    """

    now: float
    plan: Plan
    federation: CoordinatorState
    clients: frozenset[str]
    holders: tuple[str, ...]
    live: Names
    watchers: Names
    sessions: Sessions = field(default_factory=Sessions)
    cache: Cache = field(default_factory=Cache)
    reasons: dict[str, str] = field(default_factory=dict)
    step: Step = field(default_factory=Step)

    @property
    def layout(self) -> Layout:
        """The run's, once it is founded."""
        return self.plan.layout(self.federation.run.schema)

    @property
    def trailing(self) -> GroupState | None:
        """The group that trails the model; None if none does."""
        return self.federation.groups.get(self.plan.trailing)

    def is_trainer(self, client: str) -> bool:
        return client in self.live and client != self.plan.evaluator

    @property
    def again(self) -> Wait:
        """What a step returns that is to be taken once more at once; its records say why."""
        return Wait(self.now, "")

    def group(self, name: str) -> GroupState:
        found = self.federation.groups.get(name)
        if found is None:
            raise Malformed(f"no group is called {name!r}")
        return found

    def rule(self, group: str) -> Rule:
        """The rule of a group, with the deadline and buffer that are in force."""
        factors = self.federation.scaled.of(self.group(group))
        if factors == AS_PLANNED:
            return self.plan.rule(group)
        section = apply_factors(self.plan.group(group).rule, *factors)
        made = partial(build_rule, section, self.plan.room)
        return self.cache.of(("rule", group), factors, made)

    def make_configure(self) -> Configure:
        """The order by which a party learns of the run, and where its shards are now."""
        known = self.federation
        placed = (known.placement, known.addresses, known.coming)
        return Configure(known.incarnation, known.run, *placed)

    def deadline(self, group: str) -> float:
        section, factors = self.plan.group(group).rule, self.federation.scaled.of(self.group(group))
        return (section if factors == AS_PLANNED else apply_factors(section, *factors)).deadline

    def deadlines(self, group: GroupState, since: float) -> tuple[float, float]:
        """When a round that opened at `since` is to close, and when it must: seconds of the clock.

        Without rounds a client that seals once more is told no deadline, and has the plan's.
        """
        rule = self.plan.group(group.name).rule
        seconds = self.deadline(group.name) if group.rounds else rule.deadline
        extensions = rule.extensions if isinstance(rule, SyncSection) else 0
        return since + seconds, since + seconds * (1 + extensions)

    def is_spare(self, party: str) -> bool:
        """Whether a shard is here that is part of the run and holds none of its blocks."""
        federation, placed = self.federation, self.federation.placed
        here = federation.shards.keys() - federation.moving.left.keys()
        return bool(placed) and party in here.difference(placed)

    def takers(self, group: str, among: frozenset[str] | None = None) -> frozenset[str]:
        """Live trainers (or those among others) that take part in a group.

        It looks at all of them; what is asked at every event uses `attendance`.
        """
        federation = self.federation
        found = frozenset(self.live) - {self.plan.evaluator} if among is None else among
        if federation.isolated:
            found -= federation.isolated.keys()
        return found - federation.outside.get(group, frozenset())

    def attendance(self, group: GroupState) -> Attendance:
        federation, evaluator = self.federation, self.plan.evaluator
        outside: Names = federation.outside.get(group.name, frozenset())
        out = federation.isolated

        def barred(client: str) -> bool:
            return client == evaluator or client in out or client in outside

        known = self.sessions.attendance.get(group.name)
        if known is None:
            known = self.sessions.attendance[group.name] = Attendance()
        known.follow(group, self.sessions.changes, self.live, barred)
        return known

    def write(self, record: CoordinatorRecord) -> None:
        self.step.records.append(record)
        self.federation.apply(self.now, record)
        self.sessions.changes.note(record)

    def order(self, to: str, message: AnyOrder) -> None:
        if to in self.watchers:
            self.step.effects.append(Order(to, message))

    def settle(self, ids: tuple[SubmissionId, ...]) -> None:
        if ids:
            self.tell_fates(ids)
            self.discard(ids)

    def tell_fates(self, ids: tuple[SubmissionId, ...]) -> None:
        number = self.federation.incarnation
        for id in ids:
            fate, group = self.federation.settled.of(id), self.federation.groups.get(id.group)
            assert fate is not None
            again = None if group is None else group.burnt_members.get(id.client)
            burnt = again is not None and again.id == id
            told = Settled(number, id, fate.outcome, fate.version, fate.reason, burnt)
            self.order(id.client, told)

    def discard(self, ids: tuple[SubmissionId, ...]) -> None:
        """Tells every shard that nobody needs the blocks of these any more."""
        for shard in self.federation.placed:
            self.order(shard, Discard(self.federation.incarnation, ids))

    def drop(self, group: str, ids: tuple[SubmissionId, ...], reason: str) -> None:
        if ids:
            self.write(SubmissionsDropped(group, ids, reason))
            self.settle(ids)

    def tell_clients(self, message: ClientOrder) -> None:
        for client in self.federation.members:
            self.order(client, message)

    def tell_shards(self, group: str, make: Callable[[tuple[int, ...]], ShardOrder]) -> None:
        """Gives each shard with blocks of a group the order that `make` makes for its blocks."""
        for shard, blocks in self.federation.owners(group).items():
            self.order(shard, make(blocks))


def refuse_once(tx: Transaction, party: str, text: str) -> NotReady:
    """The refusal of a party that waits for an operator, who reads of it here, once."""
    if party not in tx.sessions.elsewhere:
        tx.step.effects.append(Say(text))
    tx.sessions.elsewhere[party] = tx.now
    return NotReady(text, LATER)
