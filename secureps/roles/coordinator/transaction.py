"""One transaction of the coordinator: the state, the time, and the step that is being built.

It also answers what the whole coordinator asks of the state: which groups are over, which version
is due for evaluation, and how a client is invited.

A restart forgets `Sessions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from secureps.config.plan import SyncSection
from secureps.errors import Malformed, NotReady
from secureps.messages import coordinator_records as records
from secureps.messages import requests
from secureps.messages.orders import (
    AnyOrder,
    ClientOrder,
    Configure,
    Discard,
    Invite,
    SealAgain,
    Settled,
    ShardOrder,
)
from secureps.messages.submission import Base, SubmissionId
from secureps.model.layout import Layout
from secureps.policy.plan import Plan
from secureps.policy.rules.registry import apply_factors, build_rule
from secureps.policy.rules.rule import Rule, Wait
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.state import AS_PLANNED, CoordinatorState
from secureps.roles.machine import Order, Step
from secureps.roles.pinned_run import LATER, PinnedRun


@dataclass(slots=True)
class Sessions:
    """Which parties are here now, and what this incarnation told them; a restart forgets it.

    Words about a party (`troubles`, `overdue`) follow its name in a sentence.

    Args:
        told: parties that subscribed in this incarnation.
        holders: key holders that registered in this incarnation.
        elsewhere: parties that wait until an operator brings a folder back, and when they last
            asked.
        lost: by client, open submissions that the client no longer had when it last subscribed, or
            when it was asked to send them again.
        asked: submissions that clients were asked to send again.
        gone: submissions that a client was asked to send again and no longer has.
        counted: by client and group, the public number of examples that it began with.
        unconfirmed: (group, shard) for each shard that was prepared and has come back since: it may
            have lost what it prepared.
        away: since when shards of the run are not here.
        reached: by shard, the groups of which it has the committed version, by its last report.
        prepared: (epoch, group, shard) for each shard that has its blocks of a coming placement.
        epochs: the number of the roster that each party went by when it last subscribed.
        troubles: what is wrong at servers and clients.
        roster: what is wrong with the coordinator's own roster.
        proposed: clients that were shown the plan before they joined.
        refused: clients that took no part in the plan, and for which the log says so.
        obeyed: the incarnation that each server says it obeys.
        waiting: subscriptions of servers until this coordinator rules.
        caught_up: the standby that has the whole journal, until it is on record that it follows.
        followed: whether a standby has had the whole journal in this incarnation.
        confirmed: whether the standby itself has it on record that it follows this incarnation.
        unheard: clients that got a lease when this incarnation began, and were not heard since.
        steps: since when servers owe what a step of a commit, or a checkpoint, wants of them.
        overdue: servers that owe something for longer than the plan's deadline.
        kept: the checkpoints that stay, by the last manifest's writer; empty: not known.
        answers: the last answer to each question (`Transaction.remember`), with its basis.
    """

    watchers: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    elsewhere: dict[str, float] = field(default_factory=dict)
    lost: dict[str, frozenset[SubmissionId]] = field(default_factory=dict)
    asked: set[SubmissionId] = field(default_factory=set)
    gone: set[SubmissionId] = field(default_factory=set)
    counted: dict[tuple[str, str], int] = field(default_factory=dict)
    unconfirmed: set[tuple[str, str]] = field(default_factory=set)
    away: dict[str, float] = field(default_factory=dict)
    reached: dict[str, frozenset[str]] = field(default_factory=dict)
    prepared: set[tuple[int, str, str]] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    roster: str = ""
    proposed: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    obeyed: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, requests.Subscribe] = field(default_factory=dict)
    caught_up: bytes = b""
    followed: bool = False
    confirmed: bool = False
    unheard: set[str] = field(default_factory=set)
    steps: dict[tuple[str, int, str], float] = field(default_factory=dict)
    overdue: dict[str, str] = field(default_factory=dict)
    kept: tuple[int, ...] = ()
    began: float = 0.0
    answers: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)
    _leases: dict[str, float] = field(default_factory=dict)
    _first: float = math.inf
    """No lease runs out before this moment, so that `live` need not look at all of them."""

    def trouble(self, party: str, reason: str) -> None:
        """Notes what is wrong at a party; an empty reason: nothing."""
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

    def begin(self, now: float, clients: Iterable[str], until: float) -> None:
        """Gives a lease to clients that were here by the journal, though they may have gone."""
        for client in clients:
            self.renew(client, until)
        self.unheard, self.began = set(clients), now

    def leave(self, client: str) -> None:
        self._leases.pop(client, None)

    def live(self, now: float) -> Names:
        """Returns the clients whose lease runs, as they change later too."""
        if now >= self._first:
            for client in [client for client, until in self._leases.items() if until <= now]:
                self.leave(client)
            self._first = min(self._leases.values(), default=math.inf)
        return self._leases.keys()

    @property
    def next_look(self) -> float | None:
        """When the next lease may run out; None if no lease runs."""
        return self._first if self._leases else None


T = TypeVar("T")


Names = Set[str]

GOES_ON = Wait(None, "")
"""Returned by a step that has nothing to add to what its group waits for."""


@dataclass(slots=True)
class Transaction:
    """The handling of one event.

    Args:
        settings: the coordinator's own, with the newest roster and keys of its kit.
        clients, holders: the roster's, without a designated evaluator.
        live: clients whose lease runs at `now`; only for reading.
        watchers: parties whose stream of orders is open; only for reading.
        sessions: what else this incarnation knows of the parties that are here.
        quiet: the event moves no group, so the next look at them may wait.
    """

    now: float
    settings: PinnedRun
    federation: CoordinatorState
    clients: frozenset[str]
    holders: tuple[str, ...]
    live: Names
    watchers: set[str] | frozenset[str]
    sessions: Sessions = field(default_factory=Sessions)
    quiet: bool = False
    step: Step = field(default_factory=Step)

    @property
    def plan(self) -> Plan:
        return self.settings.plan

    @property
    def layout(self) -> Layout:
        return self.plan.layout(self.federation.run.schema)

    @property
    def trailing(self) -> GroupState | None:
        return self.federation.groups.get(self.plan.trailing)

    def is_trainer(self, client: str) -> bool:
        return client in self.live and client != self.plan.evaluator

    @property
    def again(self) -> Wait:
        """Returned by a step that must be taken once more at once."""
        return Wait(self.now, "")

    def remember(self, question: Hashable, basis: Any, answer: Callable[[], T]) -> T:
        """Returns the last answer to a question, and works it out again only if it must.

        `basis` is all that the answer depends on, compared by `==`.
        """
        known = self.sessions.answers.get(question)
        if known is None or known[0] != basis:
            known = self.sessions.answers[question] = basis, answer()
        found: T = known[1]
        return found

    def group(self, name: str) -> GroupState:
        found = self.federation.groups.get(name)
        if found is None:
            raise Malformed(f"no group is called {name!r:.80}")
        return found

    def rule(self, group: str) -> Rule:
        """Returns the rule of a group, with the deadline and buffer that are in force."""
        factors = self.federation.scaled.of(self.group(group))
        if factors == AS_PLANNED:
            return self.plan.rule(group)
        section = apply_factors(self.plan.group(group).rule, *factors)
        made = partial(build_rule, section, self.plan.room)
        return self.remember(("rule", group), factors, made)

    def make_configure(self) -> Configure:
        """Makes the order that tells a party of the run, and where its shards are now."""
        known = self.federation
        placed = (known.placement, known.addresses, known.coming)
        return Configure(known.incarnation, known.run, *placed)

    def is_over(self, group: GroupState) -> bool:
        """True if a group has made its last version."""
        if group.trails:
            return self.has_no_evaluation() and all(
                self.is_over(each) for each in self.federation.model_groups
            )
        between = group.phase is Phase.WAITING or (
            not group.rounds and group.phase is Phase.COLLECTING
        )
        if (self.federation.ending or group.resigned) and between:
            return True
        return self.is_made(group) or (between and self._is_deserted(group))

    def is_row_block(self, group: GroupState) -> bool:
        return self.plan.group(group.name).sparse is not None

    def why_too_few(self, group: GroupState) -> str:
        """Returns why a row-block waits, if too few of the members touch it; empty if enough do."""
        if not self.is_row_block(group):
            return ""
        federation, least = self.federation, self.plan.bounds(group.name).start
        joined = frozenset(federation.members) - federation.retired - {self.plan.evaluator}
        able = self.takers(group.name, joined)
        if len(able) >= least:
            return ""
        here = "1 member touches" if len(able) == 1 else f"{len(able)} members touch"
        return f"{here} it, a cohort needs {least}: it stays at {group.version}"

    def is_made(self, group: GroupState) -> bool:
        return group.version >= self.plan.versions(group.name)

    def _is_deserted(self, group: GroupState) -> bool:
        """True if too few touch a row-block, and all groups with enough members are finished.

        A run does not wait for members that may never come, but they may come while it goes on.
        """
        if not self.why_too_few(group):
            return False
        others = self.federation.model_groups
        return any(self.is_made(each) or each.resigned for each in others) and all(
            self.is_made(each) or each.resigned or self.why_too_few(each) for each in others
        )

    def model_version(self) -> int:
        """Returns the version of all groups of the model; -1 if they differ or have none."""
        versions = {group.version for group in self.federation.model_groups}
        return versions.pop() if len(versions) == 1 else -1

    def evaluation_due(self) -> int:
        """Returns the model's version if it is on the schedule and has had no round; else 0."""
        at, state, group = self.model_version(), self.federation.trail, self.trailing
        if at not in self.plan.schedule or state.settled(at):
            return 0
        begun = group is not None and group.phase is not Phase.WAITING
        return 0 if begun and state.subject == at else at

    def has_no_evaluation(self) -> bool:
        """True if no round of the trailing group is open, and none is due."""
        group = self.trailing
        return not self.evaluation_due() and (group is None or group.phase is Phase.WAITING)

    def round_base(self, group: GroupState) -> Base:
        """Returns the base that updates of a group's open round have."""
        subject = self.federation.trail.subject
        if group.trails and subject:
            return self.plan.schedule.base(group.version, subject)
        return Base(group.version, 0)

    def is_asked_again(self, group: GroupState, client: str) -> bool:
        """True if a client is to seal its update of a burnt cohort once more."""
        return self.plan.has_committee and client in group.places

    def make_invite(self, group: GroupState, client: str) -> Invite | SealAgain:
        """Invites a client to train, or to seal its update of a burnt cohort once more."""
        number, seconds = self.federation.incarnation, self.deadline(group.name)
        if group.rounds or group.phase is Phase.FOUNDING:
            again = self.is_asked_again(group, client)
            evaluates, base = self._version_to_evaluate(group, client), self.round_base(group)
        elif again := client in group.invited:
            evaluates, base, seconds = 0, group.places[client].base, 0.0
        else:
            evaluates, base = 0, group.members.training[client]
        round = (number, group.name, group.round, base.version)
        invite = Invite(*round, seconds, evaluates, base.step)
        if not again:
            return invite
        return SealAgain(number, group.places[client].id, group.places[client].update, invite)

    def _version_to_evaluate(self, group: GroupState, member: str) -> int:
        """Returns the version that an invited member must first evaluate; 0: none."""
        own, subject = self.trailing, self.federation.trail.subject
        if own is None or group is own:
            return subject
        return subject if own.awaits(member) and group.version == subject else 0

    def deadline(self, group: str) -> float:
        section, factors = self.plan.group(group).rule, self.federation.scaled.of(self.group(group))
        return (section if factors == AS_PLANNED else apply_factors(section, *factors)).deadline

    def deadlines(self, group: GroupState, since: float) -> tuple[float, float]:
        """Returns when a round that opened at `since` should close, and when it must.

        Without rounds, a client that seals once more is told no deadline, and has the plan's.
        """
        rule = self.plan.group(group.name).rule
        seconds = self.deadline(group.name) if group.rounds else rule.deadline
        extensions = rule.extensions if isinstance(rule, SyncSection) else 0
        return since + seconds, since + seconds * (1 + extensions)

    def is_spare(self, party: str) -> bool:
        """True if a party is a shard of the run that holds none of its blocks."""
        federation = self.federation
        if party not in federation.shards or party in federation.moving.left:
            return False
        placed = federation.placed
        return bool(placed) and party not in placed

    def takers(self, group: str, among: frozenset[str] | None = None) -> frozenset[str]:
        """Returns the clients `among` these, or among live trainers, that take part in a group."""
        found = frozenset(self.live) if among is None else among
        gone = self.federation.isolated.keys() | self.federation.outside.get(group, set())
        if among is None and self.plan.evaluator:
            gone.add(self.plan.evaluator)
        return found - gone if gone else found

    def present(self, group: GroupState) -> frozenset[str]:
        """Returns the live trainers of a group that neither sit out nor have spent their budget."""
        gone = group.sitting_out | group.members.spent
        return self.takers(group.name) - gone if gone else self.takers(group.name)

    def write(self, record: records.CoordinatorRecord) -> None:
        self.step.records.append(record)
        self.federation.apply(self.now, record)

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
        """Tells every shard that the blocks of these submissions are not needed any more."""
        for shard in self.federation.placed:
            self.order(shard, Discard(self.federation.incarnation, ids))

    def drop(self, group: str, ids: tuple[SubmissionId, ...], reason: str) -> None:
        if ids:
            self.write(records.SubmissionsDropped(group, ids, reason))
            self.settle(ids)

    def tell_clients(self, message: ClientOrder) -> None:
        for client in self.federation.members:
            self.order(client, message)

    def tell_placement(self, *gone: str) -> None:
        """Tells all parties, and shards that are `gone`, where the shards are and what they hold.

        Shards come first, because they must accept the blocks that others send.
        """
        configure, known = self.make_configure(), self.federation
        for party in (*known.placed, *gone, *self.holders, *known.members):
            self.order(party, configure)

    def tell_shards(self, group: str, make: Callable[[tuple[int, ...]], ShardOrder]) -> None:
        """Gives each shard with blocks of a group the order that `make` makes for its blocks."""
        for shard, blocks in self.federation.owners(group).items():
            self.order(shard, make(blocks))


def refuse_once(tx: Transaction, party: str, text: str) -> NotReady:
    """Makes the refusal of a party that waits for an operator, and logs it once."""
    if party not in tx.sessions.elsewhere:
        tx.step.say(text)
    tx.sessions.elsewhere[party] = tx.now
    return NotReady(text, LATER)
