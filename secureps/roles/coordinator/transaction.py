"""One transaction of the coordinator: the state, the time, and the step that is being built.

`write` journals a fact and folds it at once; `order` speaks to parties that watch now (others are
told when they subscribe). A restart begins without `Sessions` and `Cache`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from secureps.errors import Malformed, NotReady
from secureps.messages.coordinator_records import CoordinatorRecord, SubmissionsDropped
from secureps.messages.orders import AnyOrder, ClientOrder, Discard, Settled, ShardOrder
from secureps.messages.requests import Subscribe
from secureps.messages.run import ShardAddress
from secureps.messages.submission import SubmissionId
from secureps.model.layout import Layout
from secureps.policy.plan import Plan
from secureps.policy.rules.registry import build_rule, in_force
from secureps.policy.rules.rule import Rule, Wait
from secureps.roles.coordinator.attendance import Attendance, Changes
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.state import AS_PLANNED, CoordinatorState
from secureps.roles.machine import Order, Say, Step
from secureps.roles.pinned_run import LATER

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

    def holds(self, shard: str, group: str) -> None:
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

    def trains(self, client: str) -> bool:
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
        factors = self.federation.scaled.of(group)
        if factors == AS_PLANNED:
            return self.plan.rule(group)
        section = in_force(self.plan.group(group).rule, *factors)
        made = partial(build_rule, section, self.plan.room)
        return self.cache.of(("rule", group), factors, made)

    def deadline(self, group: str) -> float:
        section, factors = self.plan.group(group).rule, self.federation.scaled.of(group)
        return (section if factors == AS_PLANNED else in_force(section, *factors)).deadline

    def spare(self, party: str) -> bool:
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


def said_once(tx: Transaction, party: str, text: str) -> NotReady:
    """The refusal of a party that waits for an operator, who reads of it here, once."""
    if party not in tx.sessions.elsewhere:
        tx.step.effects.append(Say(text))
    tx.sessions.elsewhere[party] = tx.now
    return NotReady(text, LATER)
