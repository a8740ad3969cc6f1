"""What the coordinator knows: the fold of its journal.

`CoordinatorState.apply` takes one record; nothing else changes this state. Before it come the parts
that are folds of their own:

    Reigns     which coordinators there were, and which standby may take over
    Timeline   when each step of the newest cohorts was done
    Fates      what became of submissions, for as long as their clients may ask
    Scaled     what was decided from measured load

After it come the tasks of its worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, assert_never

from secureps.errors import InternalError
from secureps.messages import coordinator_records as records
from secureps.messages import requests
from secureps.messages.acts import SHARD_DEEDS, Act, Deed, ShardDeed
from secureps.messages.charge import Charge, Release
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import EvaluationSkipped, VersionEvaluated, evaluated_digest
from secureps.messages.orders import GroupVersion, KeyCommittee, Task
from secureps.messages.records import LINE, REIGN, Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import (
    Checkpointed,
    CohortSteps,
    Examined,
    KeyShare,
    OpenRefused,
    Prepared,
)
from secureps.messages.run import Placement, RunInfo, ShardAddress, all_shards
from secureps.messages.scaling import ScalingDecided
from secureps.messages.submission import Held, Outcome, Receipt, SubmissionId
from secureps.policy.scaling.policies import KEPT
from secureps.privacy.ledger import Ledger
from secureps.roles.coordinator.group import (
    CheckpointState,
    GroupState,
    Phase,
    Trail,
)
from secureps.roles.coordinator.moving import Moving
from secureps.roles.machine import Record, TaskResult
from secureps.roles.roster_follower import AnnouncedKeys

KEPT_STEPS = 30
"""Cohorts, and burnt ones, that are kept: the newest of each."""

WHY = 200
"""Characters that it takes to say why one came to nothing, at most."""


@dataclass(slots=True)
class Timeline:
    """The steps of the newest cohorts.

    Args:
        burnt: the newest cohorts that were burnt or spoilt, oldest first; burnt_in_all: how many
            ever were.
    """

    burnt: list[CohortSteps] = field(default_factory=list)
    burnt_in_all: int = 0
    _began: dict[str, float] = field(default_factory=dict)
    _making: dict[str, CohortSteps] = field(default_factory=dict)
    _done: list[CohortSteps] = field(default_factory=list)

    @property
    def steps(self) -> tuple[CohortSteps, ...]:
        """The steps of the newest cohorts, oldest first."""
        making = sorted(self._making.values(), key=lambda steps: steps.closed)
        return (*self._done, *making)[-KEPT_STEPS:]

    def take(self, at: float, record: object) -> None:
        match record:
            case records.RoundOpened(group=group) | records.StreamBegan(group=group):
                self._began[group] = at
            case records.CohortClosed(cohort):
                began = self._began.get(cohort.group, at)
                of = (cohort.group, cohort.number, cohort.version, len(cohort.members))
                self._making[cohort.group] = CohortSteps(*of, began, at)
            case Held(group=group):
                self._step(group, held=at)
            case records.CohortOpened(group=group):
                self._step(group, opened=at)
            case Prepared(group=group, epoch=0):
                self._step(group, prepared=at)
            case records.VersionCommitted(group=group):
                self._step(group, committed=at)
                self._end(group, "", "")
                self._began[group] = at
            case records.CohortReopened(group=group):
                self._end(group, "reopened", "a shard lacked blocks of it")
            case records.CohortBurnt(group=group, reason=reason, spoilt=spoilt):
                self.burnt_in_all += 1
                if ended := self._end(group, "spoilt" if spoilt else "burnt", reason[:WHY]):
                    self.burnt = [*self.burnt, ended][-KEPT_STEPS:]
            case _:
                pass

    def _step(self, group: str, **done: Any) -> None:
        if (making := self._making.get(group)) is not None:
            self._making[group] = replace(making, **done)

    def _end(self, group: str, ended: str, why: str) -> CohortSteps | None:
        if (making := self._making.pop(group, None)) is None:
            return None
        told = replace(making, ended=ended, why=why)
        self._done = [*self._done, told][-KEPT_STEPS:]
        return told


MOST_AHEAD = 1 << 20
"""Starts of a coordinator that its journal may have lost, or takeovers. What is journalled of one
party's word must leave room for all to come: an order carries 63 bits of incarnation."""


@dataclass(slots=True)
class Reigns:
    """The coordinators of a run: a reign is the time of one, however often it starts.

    A standby that takes over begins the next one, in a line of numbers of its own.

    Args:
        incarnation: the coordinator's newest one.
        known: by line, the newest incarnation up to which a standby was confirmed to have
            everything.
        follower: the standby that has everything that was acted on, and may take over (or has, if
            it is the `ruler`), by the number of its folder; empty: none may.
        ruler: the standby that took over last; empty: none did.
        followers: every standby that followed this ruler, in that order.
        left, came: shards that did since the follower was last confirmed.
    """

    incarnation: int = 0
    known: dict[int, int] = field(default_factory=dict)
    follower: bytes = b""
    ruler: bytes = b""
    followers: list[bytes] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    came: list[str] = field(default_factory=list)

    def apply(self, record: Incarnated | StandbyFollows) -> None:
        match record:
            case Incarnated(number, standby):
                self.incarnation = number
                if standby:
                    self.ruler, self.followers = standby, []
            case StandbyFollows(standby):
                self.follower, self.left, self.came = standby, [], []
                self.known[self.incarnation // LINE] = self.incarnation
                if standby and standby not in self.followers:
                    self.followers.append(standby)

    def placed(self, before: Placement, now: Placement) -> None:
        """Notes which shards hold no blocks any more, and which hold some for the first time."""
        if self.follower:
            self.left += (shard for shard in before.shards if shard not in now.shards)
            self.came += (shard for shard in now.shards if shard not in before.shards)

    @property
    def reign(self) -> int:
        """How many standbys have taken over; one that is not obeyed yet does not count."""
        waits = bool(self.ruler) and self.follower == self.ruler
        return self.incarnation // REIGN - waits

    @property
    def followed(self) -> bool:
        """Whether this coordinator ever had a standby."""
        return bool(self.followers or self.ruler)

    def may_take_over(self, standby: bytes) -> bool:
        """Whether a standby has everything that was acted on, as far as this journal knows."""
        return bool(standby) and self.follower == standby and self.ruler != standby

    def next_reign(self, standby: bytes) -> int:
        """The incarnation with which a standby that followed takes over."""
        return (self.incarnation // REIGN + 1) * REIGN + self.followers.index(standby) * LINE

    def taken_over(self, seen: int) -> bool:
        """Whether this incarnation shows that the follower has taken over."""
        if not self.may_take_over(self.follower):
            return False
        return seen // LINE == self.next_reign(self.follower) // LINE

    def can_be(self, seen: int) -> bool:
        """Whether some coordinator of this run can have come to this incarnation."""
        if self.foreign(seen):
            return 0 <= seen // REIGN <= self.incarnation // REIGN + MOST_AHEAD
        return 0 <= seen <= self.incarnation + MOST_AHEAD

    def foreign(self, seen: int) -> bool:
        """Whether this incarnation is of a coordinator that may have acted on more than is here.

        A higher one in its own line is the coordinator's own, whose record was lost.
        """
        line = seen // LINE
        return line != self.incarnation // LINE and seen > self.known.get(line, 0)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a submission."""

    outcome: Outcome
    version: int
    reason: str

    @property
    def final(self) -> bool:
        return self.outcome != Outcome.INCLUDED


KEPT_FATES = 16
"""Final fates of a client and group that are kept all the same: what is sent twice on its way is
answered as before."""

OVER = Fate(Outcome.DROPPED, -1, "it is over since long, and its client was told of it")
"""Of a submission whose fate is kept no more: who asks all the same goes on without it."""

Ranges = tuple[tuple[int, int], ...]
"""First and last of sequences, ascending, none beside another."""


@dataclass(slots=True)
class Fates:
    """What became of submissions, for as long as their clients may ask.

    A client hears of a fate on its stream of orders, or again when it subscribes anew, and before
    any version that is newer than the fate. So a client that sends an update of a version that was
    committed after a fate was final has journalled that fate, and never asks for it again. Only its
    number is kept then: an update with that name is settled, whoever sends it again.

    Args:
        known: those that may be asked for.
        receipts: the digest of every receipt that was accepted, and may be asked for.
        final: by (client, group) and sequence, the version of its group when a fate became final.
        over: by (client, group), the sequences of all others.
    """

    known: dict[SubmissionId, Fate] = field(default_factory=dict)
    receipts: dict[SubmissionId, bytes] = field(default_factory=dict)
    final: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    over: dict[tuple[str, str], Ranges] = field(default_factory=dict)

    def of(self, id: SubmissionId) -> Fate | None:
        """The fate of a submission; None while it is open."""
        found = self.known.get(id)
        return OVER if found is None and self.is_over(id) else found

    def is_over(self, id: SubmissionId) -> bool:
        """Whether it was settled so long ago that only its number is kept."""
        ranges = self.over.get((id.client, id.group), ())
        return any(first <= id.sequence <= last for first, last in ranges)

    def settle(self, id: SubmissionId, fate: Fate, version: int) -> None:
        """Settles a submission, while `version` is the newest of its group."""
        self.known[id] = fate
        if fate.final:
            self.final.setdefault((id.client, id.group), {}).setdefault(id.sequence, version)

    def trained_from(self, client: str, group: str, version: int) -> None:
        """Forgets fates that a client knows, for it sent an update of a later version."""
        final = self.final.get((client, group), {})
        if len(final) <= KEPT_FATES:
            return
        told = [sequence for sequence, at in final.items() if at < version][:-KEPT_FATES]
        for sequence in told:
            del final[sequence]
            id = SubmissionId(client, group, sequence)
            self.known.pop(id, None)
            self.receipts.pop(id, None)
        if told:
            self.over[client, group] = joined((*self.over.get((client, group), ()), *told))


def joined(of: tuple[tuple[int, int] | int, ...]) -> Ranges:
    """Ranges and single sequences as ranges, in order; ranges that touch become one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted((each, each) if isinstance(each, int) else each for each in of):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


BY_ITSELF = "scaling: "
"""How the reason of an act begins that follows from the load, and that no operator has said."""
AS_PLANNED = (1.0, 1.0)
"""Factors of deadline and buffer where both are the plan's."""


@dataclass(slots=True)
class Scaled:
    """What scaling has changed in a run.

    Args:
        off: why nothing follows the load any more; empty while it does.
        deadline, buffer: factors of the plan's that are in force; rounds: by group, that of the
            deadline when the open round began, which its members were told.
        decided: the newest decisions, oldest first, with the second of the run's clock.
        drained: shards that an operator has drained, and which only an operator adds again.
    """

    off: str = ""
    deadline: float = 1.0
    buffer: float = 1.0
    rounds: dict[str, float] = field(default_factory=dict)
    decided: list[tuple[float, ScalingDecided]] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)

    def of(self, group: GroupState) -> tuple[float, float]:
        if group.trails:
            return AS_PLANNED
        return self.rounds.get(group.name, self.deadline), self.buffer

    def take(self, at: float, record: object) -> None:
        match record:
            case ScalingDecided(deadline=deadline, buffer=buffer):
                self.deadline, self.buffer = deadline, buffer
                self.decided = [*self.decided[1 - KEPT :], (at, record)]
            case Act(Deed.SCALING_OFF, reason=reason):
                self.off = "switched off by the operator" + (reason and f", {reason}")
                self.deadline = self.buffer = 1.0
                self.decided = []  # what came of the last is not measured
            case Act(Deed.SCALING_ON):
                self.off = ""
            case Act(ShardDeed.DRAIN, party, reason) if not reason.startswith(BY_ITSELF):
                self.drained.add(party)
            case Act(ShardDeed.ADD, party):
                self.drained.discard(party)
            case records.RoundOpened(group=group):
                self.rounds[group] = self.deadline
            case (
                records.CohortBurnt(group=group)
                | records.RoundGivenUp(group=group)
                | records.VersionCommitted(group=group)
            ):
                self.rounds.pop(group, None)
            case _:
                pass


REVOKED = "its name is on the roster no more"
"""Why a client is left out that whoever issues keys has revoked."""


@dataclass(slots=True)
class CoordinatorState:
    """Everything that survives a restart of the coordinator.

    Args:
        members: clients that joined, in that order, and when first; joined: the last three times
            that each did; founder: the client whose model becomes version 0.
        moving: which shards have left, and which blocks are on their way to others.
        settled: what became of submissions, and the digests of their receipts; next: the sequence
            after the newest, by (client, group).
        undurable: submissions that are included in a version and in no checkpoint yet; included:
            how many updates of a client are part of versions of the model.
        ending: why no more rounds open; finished: why the run has ended; failure: the error that it
            ends with (`errors.ERRORS`). Each is empty while, or if, there is none.
        retired: members that take part no more, by their own word; why_gone: the reasons that they,
            and members that rest for a while, give (or empty); isolated: clients that are left out,
            and why; left_out: those of them that an operator may take back; outside: by group,
            members that do not contribute to it.
        paused: why no round opens and no cohort closes by an operator's act, empty while they do;
            paused_since: when that began; wants_checkpoint: an operator does, and none began since.
        unsafe: parties whose noise everybody may know.
        answered: the newest cohort that a key holder answered for, by (holder, group); liars:
            holders that were found out, and how; accused: clients in whose envelopes
            holders found flaws, and which holders; committees: of key holders, in turn.
        keys: the newest envelope key of each holder; replaced: by holder and number, those before
            it that are not released: the round and version of each group when they were replaced.
    """

    groups: dict[str, GroupState]
    reigns: Reigns = field(default_factory=Reigns)
    pinned: RunPinned | None = None
    shards: dict[str, ShardAddress] = field(default_factory=dict)
    moving: Moving = field(default_factory=Moving)
    members: dict[str, float] = field(default_factory=dict)
    joined: dict[str, tuple[float, ...]] = field(default_factory=dict)
    founder: str = ""
    settled: Fates = field(default_factory=Fates)
    next: dict[tuple[str, str], int] = field(default_factory=dict)
    undurable: dict[SubmissionId, int] = field(default_factory=dict)
    included: Counter[str] = field(default_factory=Counter)
    checkpoints: list[CheckpointState] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    answered: dict[tuple[str, str], int] = field(default_factory=dict)
    liars: dict[str, str] = field(default_factory=dict)
    accused: dict[str, frozenset[str]] = field(default_factory=dict)
    keys: AnnouncedKeys = field(default_factory=AnnouncedKeys)
    replaced: dict[str, dict[int, dict[str, tuple[int, int]]]] = field(default_factory=dict)
    unsafe: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    why_gone: dict[str, str] = field(default_factory=dict)
    isolated: dict[str, str] = field(default_factory=dict)
    outside: dict[str, set[str]] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    paused: str = ""
    paused_since: float = 0.0
    wants_checkpoint: bool = False
    scaled: Scaled = field(default_factory=Scaled)
    timeline: Timeline = field(default_factory=Timeline)
    trail: Trail = field(default_factory=Trail)
    committees: list[KeyCommittee] = field(default_factory=list)
    ending: str = ""
    finished: str = ""
    failure: str = ""

    @property
    def incarnation(self) -> int:
        return self.reigns.incarnation

    @property
    def fates(self) -> dict[SubmissionId, Fate]:
        return self.settled.known

    @property
    def model_groups(self) -> tuple[GroupState, ...]:
        """The groups of the model, without one that trails it, in the plan's order."""
        return tuple(group for group in self.groups.values() if not group.trails)

    @property
    def run(self) -> RunInfo:
        assert self.pinned is not None
        return self.pinned.run

    @property
    def placement(self) -> Placement:
        assert self.pinned is not None
        return self.pinned.placement

    @property
    def coming(self) -> Placement | None:
        """Where its blocks move to; None where none do."""
        return None if self.pinned is None else self.pinned.coming

    @property
    def placed(self) -> tuple[str, ...]:
        """The shards that hold blocks, or get some by a move; none before the run is founded."""
        return () if self.pinned is None else all_shards(self.placement, self.coming)

    @property
    def addresses(self) -> tuple[ShardAddress, ...]:
        """Where the shards of the run are; empty before it is founded."""
        return tuple(self.shards[name] for name in self.placed)

    def base(self, group: GroupState) -> bytes:
        """The digest that a contribution to the open round must be bound to."""
        if group.trails:
            return evaluated_digest(group.digest, self.trail.model)
        return group.digest

    def owners(self, group: str) -> dict[str, tuple[int, ...]]:
        """Which shard holds which blocks of a group; shards without any are left out."""
        owned = {s: self.placement.blocks_of(group, s) for s in self.placement.shards}
        return {s: blocks for s, blocks in owned.items() if blocks}

    def last_owners(self, group: str) -> tuple[str, ...]:
        """The shards with a group's last block, and with the scale of an adaptive clip."""
        return self.placement.holders(group, -1)

    def by_block(self, group: str, made: Mapping[str, Prepared]) -> tuple[bytes, ...]:
        """Digests per shard, put into the order of the blocks."""
        table = {
            block: digest
            for shard, blocks in self.owners(group).items()
            for block, digest in zip(blocks, made[shard].blocks, strict=True)
        }
        return tuple(table[block] for block in range(len(table)))

    def next_of(self, client: str) -> tuple[GroupVersion, ...]:
        """The next sequence of a client in every group, for one that lost its state."""
        return tuple(GroupVersion(name, self.next.get((client, name), 0)) for name in self.groups)

    def takes_part(self, client: str, group: str) -> bool:
        return client not in self.outside.get(group, ())

    def joined_for(self, client: str, groups: tuple[str, ...]) -> bool:
        """Whether a client contributes to exactly these groups (none named: to all)."""
        return all(
            self.takes_part(client, name) == (not groups or name in groups) for name in self.groups
        )

    def pending(self, client: str) -> frozenset[SubmissionId]:
        groups = self.groups.values()
        return frozenset(id for group in groups for id in group.pending if id.client == client)

    def waits(self, id: SubmissionId) -> bool:
        group = self.groups.get(id.group)
        return group is not None and group.waits(id)

    def known(self, id: SubmissionId) -> bool:
        """Whether a receipt of this submission was accepted, whatever became of it."""
        group = self.groups.get(id.group)
        here = group is not None and id in group.receipts
        return here or self.settled.of(id) is not None

    def stands(self, id: SubmissionId) -> bool:
        """Whether a submission that is known is not dropped."""
        fate = self.settled.of(id)
        return fate is None or fate.outcome != Outcome.DROPPED

    def past(self, id: SubmissionId) -> bool:
        """Whether nobody will ever need a submission's blocks again."""
        fate = self.settled.of(id)
        return fate is not None and fate.outcome in (Outcome.DROPPED, Outcome.DURABLE)

    def apply(self, at: float, record: Record) -> None:
        """Folds one record; InternalError for one that is not the coordinator's."""
        self.timeline.take(at, record)
        self.scaled.take(at, record)
        match record:
            case Incarnated() | records.StandbyFollows():
                self.reigns.apply(record)
                if self.failure and isinstance(record, Incarnated):
                    self._reopen(record)
            case RunPinned():
                self.pinned = record
            case records.ShardLeft() | records.PlacementMoved() | ScalingDecided():
                self._move(at, record)
            case records.ShardLocated(shard, unsafe):
                self.shards[shard.name] = shard
                if unsafe:
                    self.unsafe.add(shard.name)
            case records.MemberJoined(client=client, groups=groups):
                self.members.setdefault(client, at)
                self.joined[client] = (*self.joined.get(client, ())[-2:], at)
                self.retired.discard(client)
                self.why_gone.pop(client, None)
                for group in self.groups.values():
                    outside = self.outside.setdefault(group.name, set())
                    outside.discard(client)
                    if groups and group.name not in groups:
                        outside.add(client)
                        group.excuse(client)
            case requests.Retire(client, reason, returns):
                self.why_gone[client] = reason
                if not returns:
                    self.retired.add(client)
                for group in self.groups.values():
                    group.forget(client)
            case KeyCommittee():
                self.committees.append(record)
            case records.FounderChosen(client):
                self.founder = client
            case records.CheckpointOrdered(number, versions):
                known = len(self.trail.results)
                self.checkpoints.append(CheckpointState(number, versions, known))
                self.wants_checkpoint = False
            case requests.Checkpointed(number=number):
                self.checkpoint(number).parts[record.shard] = record
            case records.CheckpointComplete(number):
                self._complete(number)
            case Charge() | Release():
                self.ledger.append(record)
            case VersionEvaluated(version):
                self.trail.results[version] = record
            case EvaluationSkipped(version, reason):
                self.trail.skipped[version] = reason
                for group in (each for each in self.groups.values() if each.trails):
                    group.forget_spoilt()  # its next round is of another model
            case records.Ending(reason, failure):
                self.ending, self.failure = reason, failure or ""
            case records.Finished(reason, failure):
                self.finished, self.failure = reason, failure or ""
                for group in self.groups.values():
                    group.move(record, partial(group.end, reason))
            case requests.Submit(receipt):
                group = self.groups[receipt.id.group]
                group.move(record, partial(self._receive, at, receipt))
            case records.ClientIsolated(client=client) | records.ClientRevoked(client=client):
                self.isolated[client] = getattr(record, "reason", REVOKED)
                self.left_out.discard(client)
                for group in self.groups.values():
                    group.suspicion = group.suspicion.remove_client(client)
            case Act(what) if what in SHARD_DEEDS:
                self._move(at, record)
            case Act():
                self._act(at, record)
            case EnvelopeKeyAnnounced(holder=holder, number=number):
                if number > (last := self.keys.number(holder)):
                    stood = {
                        group.name: (group.round, group.version) for group in self.groups.values()
                    }
                    self.replaced.setdefault(holder, {})[last] = stood
                self.keys.apply(record)
            case records.KeysReleased(holder, below):
                kept = self.replaced[holder].items()
                self.replaced[holder] = {n: stood for n, stood in kept if n >= below}
            case RosterFollowed():
                pass  # what follows from it is on record by itself
            case records.CohortClosed(cohort):
                self._apply_to(self.groups[cohort.group], at, record)
            case _ if isinstance(record, records.GroupRecord) and record.group in self.groups:
                self._apply_to(self.groups[record.group], at, record)
            case _:
                raise InternalError(f"a coordinator's journal has no {type(record).__name__}")

    def _act(self, at: float, act: Act) -> None:
        groups, said = self.groups.values(), f", {act.reason}" if act.reason else ""
        match act.what:
            case Deed.PAUSE:
                self.paused, self.paused_since = f"paused by the operator{said}", at
            case Deed.GO_ON:
                self.paused = ""
                for group in groups:
                    group.stand_still(self.paused_since, at)
                self.moving.stand_still(self.paused_since, at)
            case Deed.CHECKPOINT:
                self.wants_checkpoint = True
            case Deed.LEAVE_OUT:
                self.left_out.add(act.party)
                self.isolated[act.party] = f"by the operator{said}"
                for group in groups:
                    group.suspicion = group.suspicion.remove_client(act.party)
                    group.forget(act.party)
            case Deed.TAKE_BACK:
                self.left_out.discard(act.party)
                self.isolated.pop(act.party, None)

    def _reopen(self, record: Incarnated) -> None:
        """Lets a run that failed go on: somebody has mended the cause, and started it again.

        Clients that declined are asked again, and clients that left may join again: counted as gone
        for good, they would end the run before they can. Members of a burnt cohort are not asked:
        key holders may have opened a sum of theirs.
        """
        self.ending = self.finished = self.failure = ""
        self.retired.clear()
        for group in self.groups.values():
            group.sitting_out &= group.burnt_members.keys()
            group.ask_again(group.absences.keys() - group.sitting_out)
            if group.phase is Phase.DONE:
                group.move(record, group.reopen)

    def released(self, holder: str) -> int:
        """Returns the number below which a holder's envelope keys open nothing any more."""
        return min(self.replaced.get(holder, ()), default=self.keys.number(holder))

    def covered(self, number: int) -> tuple[SubmissionId, ...]:
        """The submissions that become durable with the checkpoint of that number."""
        done = self.checkpoint(number)
        return tuple(id for id, v in self.undurable.items() if v <= done.version_of(id.group))

    @property
    def last_checkpoint(self) -> CheckpointState | None:
        """The newest, whole or in the making; None before the first."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def checkpoint_in_making(self) -> CheckpointState | None:
        last = self.last_checkpoint
        return None if last is None or last.complete else last

    def checkpoint(self, number: int) -> CheckpointState:
        for state in self.checkpoints:
            if state.number == number:
                return state
        raise InternalError(f"checkpoint {number} was never ordered")

    def unprotected(self, client: str) -> bool:
        """Whether everybody may know the noise of a client, or what shards added for it."""
        return client in self.unsafe or not self.unsafe.isdisjoint(self.shards)

    def _receive(self, at: float, receipt: Receipt) -> None:
        id = receipt.id
        self.settled.receipts[id] = receipt.digest
        self.settled.trained_from(id.client, id.group, receipt.version)
        self.groups[id.group].receive(at, replace(receipt))  # without the texts: twice its size
        self._use(id)
        if receipt.unsafe:
            self.unsafe.add(id.client)

    def _use(self, id: SubmissionId) -> None:
        after = self.next.get((id.client, id.group), 0)
        self.next[id.client, id.group] = max(after, id.sequence + 1)

    def _apply_to(self, group: GroupState, at: float, record: records.GroupRecord) -> None:
        if isinstance(record, Prepared) and record.epoch:
            self.moving.files.setdefault(group.name, {})[record.shard] = record.state
            return
        group.move(record, partial(self._change, group, at, record))

    def _change(self, group: GroupState, at: float, record: records.GroupRecord) -> None:
        match record:
            case records.RoundOpened(round=number, invited=invited, reason=reason):
                group.open_round(at, number, frozenset(invited), reason)
                if group.trails:
                    self.trail.begin(self.model_groups)
            case records.MemberDeclined(client=client, reason=reason, sits_out=sits_out):
                group.decline(client, reason, sits_out)
            case records.RoundExtended(extensions=extensions, reason=reason):
                group.extensions, group.reason = extensions, reason
            case records.RoundGivenUp(reason=reason):
                self._drop(group, group.give_up_round(at, reason), reason)
            case records.CohortClosed(cohort, reason):
                group.close(cohort)
                group.number, group.phase, group.reason = cohort.number, Phase.HOLDING, reason
            case records.CohortReopened(missing=missing):
                group.lose(missing, at)
                group.close(None)
                group.phase = Phase.COLLECTING
                group.reason = f"{len(missing)} members' blocks are missing and are sent again"
            case Held(shard):
                group.closed_cohort.held[shard] = record
                if self._all_hold(group):
                    group.open()
            case records.CohortOpened(sums=sums):
                making, holders = group.closed_cohort, record.holders or ()
                making.opened, making.key, making.opened_by = sums, record.key, holders
                self.answered |= {(h, group.name): record.number for h in holders}
                group.phase = Phase.PREPARING
                group.reason = "opened; the shards average and step"
            case Examined() | KeyShare() | OpenRefused() | records.OpeningFailed():
                self._apply_answer(group, at, record)
            case records.FlawNoted(id=id, holder=holder):
                self._accuse(id, holder)
                if self.stands(id):
                    group.suspicion = group.suspicion.note_flaw(id.client)
                    group.open_receipts.doubt(id, holder)
            case records.LiarsNamed(holders=holders, reason=reason):
                self.liars |= dict.fromkeys(holders, reason)
            case records.CohortBurnt(reason=reason):
                self._drop(group, group.summed, reason)
                group.suspicion = group.suspicion.note_burnt(group.weights, record.spoilt)
                group.burn(reason)
                group.end_cohort(at, reason)
            case records.GroupResigned(reason=reason):
                group.reason = group.resigned = f"{reason}: it stays at {group.version}"
            case records.StreamEnded(reason=reason):
                self._drop(group, group.pending, reason)
                group.apply_to_members(at, record)
            case records.SubmissionsDropped(ids=ids, reason=reason):
                self._drop(group, ids, reason)
                group.apply_to_members(at, record)
            case requests.Withdraw(id=id):
                self._use(id)
                group.apply_to_members(at, record)
            case Prepared(shard):
                group.coming[shard] = record
            case records.VersionCommitted(version=version):
                self._commit(at, group, version)
            case _:
                group.apply_to_members(at, record)

    def _apply_answer(self, group: GroupState, at: float, record: records.AnswerRecord) -> None:
        match record:
            case Examined(id=id, holder=holder, flaw=flaw) if flaw:
                self._accuse(id, holder)
                reason = f"{holder} found a flaw in what {id.client} sent: {flaw}"
                self._drop(group, (id,), reason)
                group.let_go((id,))
                group.invited -= {id.client}
                group.sitting_out |= frozenset() if group.rounds else {id.client}
            case Examined(id=id, holder=holder):
                group.open_receipts.look(id, holder)
            case KeyShare(holder=holder, share=share):
                making = group.closed_cohort
                making.shares[holder], making.answered_at = share, at
                self.answered[holder, group.name] = record.cohort
            case OpenRefused(holder=holder, reason=reason):
                making = group.closed_cohort
                making.refusals[holder], making.answered_at = reason, at
            case records.OpeningFailed(holders=holders, reason=reason):
                making = group.closed_cohort
                making.failed += (holders,)
                making.key, making.opened_by, making.answered_at = None, (), at
                group.coming = {}
                group.phase, group.reason = Phase.OPENING, reason
            case _:
                assert_never(record)

    def _all_hold(self, group: GroupState) -> bool:
        return self.owners(group.name).keys() <= group.closed_cohort.held.keys()

    def _move(self, at: float, record: Act | records.MovingRecord) -> None:
        """Folds a move of blocks; a cohort is held once all remaining shards have said so."""
        assert self.pinned is not None
        groups, before = self.groups.values(), self.pinned
        self.pinned = self.moving.apply(at, record, before, groups)
        self.reigns.placed(before.placement, self.pinned.placement)
        for group in (each for each in groups if each.phase is Phase.HOLDING):
            if self._all_hold(group):
                group.move(record, group.open)

    def _accuse(self, id: SubmissionId, holder: str) -> None:
        self.accused[id.client] = self.accused.get(id.client, frozenset()) | {holder}

    def _commit(self, at: float, group: GroupState, version: int) -> None:
        coming, group.version, group.committed_at = group.coming, version, at
        group.scale = group.coming_scale
        group.blocks = self.by_block(group.name, coming)
        group.states = {shard: made.state for shard, made in coming.items()}
        group.history[version] = group.digest
        group.suspicion = group.suspicion.note_opened(frozenset(group.weights))
        group.sitting_out = frozenset()
        group.forget_spoilt()
        part = {m.id for m in group.cohort.members} if group.cohort else set(group.receipts)
        included = tuple(id for id in group.summed if id in part)
        late = tuple(id for id in group.summed if id not in part)
        fate = Fate(Outcome.INCLUDED, version, f"part of version {version}")
        self.settled.known |= dict.fromkeys(included, fate)
        self.undurable |= dict.fromkeys(included, version)
        done, without = f"version {version} is committed", f"version {version} closed without it"
        if version > 0 and group.trails:  # its own versions number its rounds: 1, 2, ...
            done = f"version {self.trail.subject} is evaluated"
            without = f"{done} without it"
        elif version > 0:
            self.included.update(id.client for id in included)
        self._drop(group, late, without)
        group.end_cohort(at, done)

    def _complete(self, number: int) -> None:
        for id in self.covered(number):
            version = self.undurable.pop(id)
            fate = Fate(Outcome.DURABLE, version, f"in checkpoint {number}")
            self.settled.settle(id, fate, self.groups[id.group].version)
        self.checkpoint(number).complete = True
        complete = [c for c in self.checkpoints if c.complete]
        self.checkpoints = complete[-2:] + [c for c in self.checkpoints if not c.complete]

    def _drop(self, group: GroupState, ids: Iterable[SubmissionId], reason: str) -> None:
        fate = Fate(Outcome.DROPPED, group.version, reason)
        for id in ids:
            self.settled.settle(id, fate, group.version)


# --- tasks ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteManifest(Task):
    """Makes a checkpoint whose parts are durable complete.

    Placement, parts and what is spent are of the moment at which it was asked for. If a shard
    leaves meanwhile it is asked for anew. `tallies` is how often each fact is on record
    (`Ledger.tallies`): all facts would be as many as all updates. Checkpoints of the versions in
    `stay` are kept, however old they are.
    """

    number: int
    versions: tuple[GroupVersion, ...]
    placement: Placement
    parts: tuple[Checkpointed, ...]
    tallies: tuple[tuple[Charge | Release, int], ...] = ()
    unsafe: tuple[str, ...] = ()
    results: tuple[VersionEvaluated, ...] = ()
    stay: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ManifestWritten(TaskResult):
    """The manifest of a checkpoint by the placement of this epoch is durable.

    `kept` are the numbers of the checkpoints that stay; none where all do.
    """

    number: int
    epoch: int
    kept: tuple[int, ...] = ()
