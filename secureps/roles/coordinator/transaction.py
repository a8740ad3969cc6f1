"""One transaction of the coordinator: the state, the time, and the step that is being built.

`write` journals a fact and folds it at once; `order` speaks to whoever watches now (a
party that does not is told when it subscribes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from secureps.errors import Malformed
from secureps.messages.coordinator_records import CoordinatorRecord, SubmissionsDropped
from secureps.messages.orders import AnyOrder, ClientOrder, Discard, Settled, ShardOrder
from secureps.messages.submission import SubmissionId
from secureps.model.layout import Layout
from secureps.policy.plan import Plan
from secureps.policy.rules.registry import build_rule, in_force
from secureps.policy.rules.rule import Rule, Wait
from secureps.roles.coordinator.attendance import Attendance
from secureps.roles.coordinator.cache import Cache
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.scaled import AS_PLANNED
from secureps.roles.coordinator.sessions import Sessions
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.machine import Order, Step

Names = set[str] | frozenset[str]

GOES_ON = Wait(None, "")
"""What a step returns whose records, or those before it, say what its group waits for."""


@dataclass(slots=True)
class Transaction:
    """One transaction.

    Args:
        layout: the run's, None before it is founded.
        clients, holders: everybody on the roster in these roles, but a designated evaluator.
        live: clients whose lease runs at `now`; watchers: who can be told. Both may be what the
            sessions have: for reading.
        sessions: what else this incarnation knows of those who are here.
        cache: what was worked out in earlier transactions.
        reasons: what groups wait for since its event, by name.
    """

    now: float
    plan: Plan
    federation: CoordinatorState
    layout: Layout | None
    clients: frozenset[str]
    holders: tuple[str, ...]
    live: Names
    watchers: Names
    sessions: Sessions = field(default_factory=Sessions)
    cache: Cache = field(default_factory=Cache)
    reasons: dict[str, str] = field(default_factory=dict)
    step: Step = field(default_factory=Step)

    def trains(self, client: str) -> bool:
        """Whether a client is live, and no designated evaluator."""
        return client in self.live and client != self.plan.evaluator

    @property
    def again(self) -> Wait:
        """What a step returns that is to be taken once more at once; its records say why."""
        return Wait(self.now, "")

    def group(self, name: str) -> GroupState:
        """A group of the plan, or that of the metrics; Malformed if there is none of that name."""
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
        """The deadline of that rule, in seconds."""
        section, factors = self.plan.group(group).rule, self.federation.scaled.of(group)
        return (section if factors == AS_PLANNED else in_force(section, *factors)).deadline

    def spare(self, party: str) -> bool:
        """Whether a shard has been here that holds no blocks of the run, and is part of it."""
        federation = self.federation
        placed = () if federation.pinned is None else federation.pinned.placement.shards
        here = federation.shards.keys() - federation.moving.left.keys()
        return bool(placed) and party in here.difference(placed)

    def gave_up(self, party: str) -> bool:
        """Whether a shard holds no blocks of the run, or none any more, as it should."""
        return self.spare(party) or self.federation.moving.dismissed(party)

    def takers(self, group: str, among: frozenset[str] | None = None) -> frozenset[str]:
        """Live trainers (or those among others) that take part in a group.

        It looks at all of them; what is asked at every event goes by `attendance`.
        """
        federation = self.federation
        found = frozenset(self.live) - {self.plan.evaluator} if among is None else among
        if federation.isolated:
            found -= federation.isolated.keys()
        return found - federation.outside.get(group, frozenset())

    def attendance(self, group: GroupState) -> Attendance:
        """Who takes part in a group as it is now."""
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
        """Journals and folds one record."""
        self.step.records.append(record)
        self.federation.apply(self.now, record)
        self.sessions.changes.note(record)

    def order(self, to: str, message: AnyOrder) -> None:
        """Tells one party, if it watches."""
        if to in self.watchers:
            self.step.effects.append(Order(to, message))

    def settle(self, ids: tuple[SubmissionId, ...]) -> None:
        """Nobody needs the blocks of these any more: clients hear why, and shards that it is so."""
        if ids:
            self.tell_fates(ids)
            self.discard(ids)

    def tell_fates(self, ids: tuple[SubmissionId, ...]) -> None:
        """Tells clients what became of their submissions."""
        number = self.federation.incarnation
        for id in ids:
            fate, group = self.federation.settled.of(id), self.federation.groups.get(id.group)
            assert fate is not None
            burnt = group is not None and group.may_return(id)
            told = Settled(number, id, fate.outcome, fate.version, fate.reason, burnt)
            self.order(id.client, told)

    def discard(self, ids: tuple[SubmissionId, ...]) -> None:
        """Tells every shard that nobody needs the blocks of these any more."""
        assert self.federation.pinned is not None
        for shard in self.federation.pinned.placement.shards:
            self.order(shard, Discard(self.federation.incarnation, ids))

    def drop(self, group: str, ids: tuple[SubmissionId, ...], reason: str) -> None:
        """These wait no more in a group without rounds, and are part of nothing."""
        if ids:
            self.write(SubmissionsDropped(group, ids, reason))
            self.settle(ids)

    def tell_clients(self, message: ClientOrder) -> None:
        """Tells every member that watches, in the order of joining."""
        for client in self.federation.members:
            self.order(client, message)

    def tell_shards(self, group: str, make: Callable[[tuple[int, ...]], ShardOrder]) -> None:
        """Tells every shard that holds blocks of a group: make(its blocks)."""
        for shard, blocks in self.federation.owners(group).items():
            self.order(shard, make(blocks))
