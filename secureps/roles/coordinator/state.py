"""The coordinator's state: the fold of its journal. Only `CoordinatorState.apply` changes it.

A move of blocks has two records (`Moving`): one of the coming placement, and one when that
placement is in force.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from secureps.errors import InternalError
from secureps.messages import coordinator_records as records
from secureps.messages import requests
from secureps.messages.acts import SHARD_DEEDS, Act, Deed, ShardDeed
from secureps.messages.charge import Charge, Fact, Release
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import EvaluationSkipped, VersionEvaluated, evaluated_digest
from secureps.messages.orders import KeyCommittee
from secureps.messages.records import LINE, REIGN, Incarnated, RosterFollowed, RunPinned
from secureps.messages.run import GroupVersion, Placement, RunInfo, ShardAddress, Task, all_shards
from secureps.messages.scaling import BlockAssigned, ScalingDecided
from secureps.messages.submission import Base, Held, Outcome, Receipt, SubmissionId
from secureps.policy.cohorts.suspicion import MEMORY
from secureps.privacy.ledger import Ledger
from secureps.roles.coordinator.group import CheckpointState, GroupState, Phase, Trail, after_pause
from secureps.roles.machine import AnnouncedKeys, Record

KEPT_STEPS = 30
"""Number of newest cohorts, and of newest burnt cohorts, whose steps are kept."""

WHY = 200
"""Most characters of the reason why a cohort failed, or an evaluation was skipped."""


@dataclass(slots=True)
class Timeline:
    """The steps of the newest cohorts.

    Args:
        burnt: the newest cohorts that were burnt or spoilt, oldest first.
        burnt_in_all: how many cohorts were ever burnt or spoilt.
    """

    burnt: list[requests.CohortSteps] = field(default_factory=list)
    burnt_in_all: int = 0
    _began: dict[str, float] = field(default_factory=dict)
    _making: dict[str, requests.CohortSteps] = field(default_factory=dict)
    _done: list[requests.CohortSteps] = field(default_factory=list)

    @property
    def steps(self) -> tuple[requests.CohortSteps, ...]:
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
                self._making[cohort.group] = requests.CohortSteps(*of, began, at)
            case Held(group=group):
                self._step(group, held=at)
            case records.CohortOpened(group=group):
                self._step(group, opened=at)
            case requests.Prepared(group=group, epoch=0):
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

    def _end(self, group: str, ended: str, why: str) -> requests.CohortSteps | None:
        if (making := self._making.pop(group, None)) is None:
            return None
        told = replace(making, ended=ended, why=why)
        self._done = [*self._done, told][-KEPT_STEPS:]
        return told


MOST_AHEAD = 1 << 20
"""Most starts, or takeovers, that a coordinator's journal is believed to have lost.

An order carries 63 bits of incarnation: a number that one party claims must leave room for more."""


@dataclass(slots=True)
class Reigns:
    """The coordinators of a run: a reign is the time of one coordinator, however often it starts.

    A standby that takes over begins the next reign, in a line of incarnations of its own. Standbys
    are named by the number of their folder.

    Args:
        incarnation: the coordinator's newest one.
        known: by line, the newest incarnation for which a standby was confirmed to have every row.
        follower: the standby that has everything that was acted on, and may take over, or has
            taken over if it is the `ruler`; empty: none may.
        ruler: the standby that took over last; empty: none did.
        followers: every standby that followed this ruler, in that order.
        left, came: shards that left or came since the follower was last confirmed.
    """

    incarnation: int = 0
    known: dict[int, int] = field(default_factory=dict)
    follower: bytes = b""
    ruler: bytes = b""
    followers: list[bytes] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    came: list[str] = field(default_factory=list)

    def apply(self, record: Incarnated | records.StandbyFollows) -> None:
        match record:
            case Incarnated(number, standby):
                self.incarnation = number
                if standby:
                    self.ruler, self.followers = standby, []
            case records.StandbyFollows(standby):
                self.follower, self.left, self.came = standby, [], []
                self.known[self.incarnation // LINE] = self.incarnation
                if standby and standby not in self.followers:
                    self.followers.append(standby)

    def note_placement(self, before: Placement, now: Placement) -> None:
        """Notes which shards hold no blocks any more, and which hold some for the first time."""
        if self.follower:
            self.left += (shard for shard in before.shards if shard not in now.shards)
            self.came += (shard for shard in now.shards if shard not in before.shards)

    @property
    def reign(self) -> int:
        """Number of standbys that have taken over, without one that is not obeyed yet."""
        waits = bool(self.ruler) and self.follower == self.ruler
        return self.incarnation // REIGN - waits

    @property
    def followed(self) -> bool:
        """True if this coordinator ever had a standby."""
        return bool(self.followers or self.ruler)

    def may_take_over(self, standby: bytes) -> bool:
        """Whether, by this journal, a standby has everything that was acted on."""
        return bool(standby) and self.follower == standby and self.ruler != standby

    def next_reign(self, standby: bytes) -> int:
        """Returns the incarnation with which a standby that followed takes over."""
        return (self.incarnation // REIGN + 1) * REIGN + self.followers.index(standby) * LINE

    def has_taken_over(self, seen: int) -> bool:
        """True if this incarnation shows that the follower has taken over."""
        if not self.may_take_over(self.follower):
            return False
        return seen // LINE == self.next_reign(self.follower) // LINE

    def is_possible(self, seen: int) -> bool:
        """True if any coordinator of this run can have reached this incarnation."""
        if self.is_foreign(seen):
            return 0 <= seen // REIGN <= self.incarnation // REIGN + MOST_AHEAD
        return 0 <= seen <= self.incarnation + MOST_AHEAD

    def is_foreign(self, seen: int) -> bool:
        """True if the coordinator with this incarnation may have acted on rows that are not here.

        A higher incarnation in the current line is this coordinator's own, whose record was lost.
        """
        line = seen // LINE
        return line != self.incarnation // LINE and seen > self.known.get(line, 0)


@dataclass(frozen=True, slots=True)
class Fate:
    """Outcome of a submission."""

    outcome: Outcome
    version: int
    reason: str

    @property
    def final(self) -> bool:
        return self.outcome != Outcome.INCLUDED


KEPT_FATES = 16
"""Final fates of a client and group that stay known even if the client knows them: a message that
the network delivers twice gets the same answer."""

OVER = Fate(Outcome.DROPPED, -1, "it is over since long, and its client was told of it")
"""The answer for a submission whose own fate was forgotten."""

Ranges = tuple[tuple[int, int], ...]
"""Ranges (first, last) of sequences, ascending; no two of them touch."""


@dataclass(slots=True)
class Fates:
    """Outcomes of submissions, kept for as long as their clients may ask.

    A client is told of a fate before it is told of any newer version. So a client that sends an
    update of a version that was committed after a fate became final has journalled that fate, and
    never asks for it again. From then on only the submission's sequence is kept.

    Args:
        known: the fates that clients may still ask for.
        receipts: the digests of accepted receipts that clients may still ask for.
        final: by (client, group) and sequence, the group's version when the fate became final.
        over: by (client, group), the sequences of all other settled submissions.
    """

    known: dict[SubmissionId, Fate] = field(default_factory=dict)
    receipts: dict[SubmissionId, bytes] = field(default_factory=dict)
    final: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    over: dict[tuple[str, str], Ranges] = field(default_factory=dict)

    def of(self, id: SubmissionId) -> Fate | None:
        """Returns the fate of a submission; None while it is open."""
        found = self.known.get(id)
        return OVER if found is None and self.is_over(id) else found

    def is_over(self, id: SubmissionId) -> bool:
        """True if a submission was settled so long ago that only its sequence is kept."""
        ranges = self.over.get((id.client, id.group), ())
        return any(first <= id.sequence <= last for first, last in ranges)

    def settle(self, id: SubmissionId, fate: Fate, version: int) -> None:
        """Settles a submission, while `version` is the newest of its group."""
        self.known[id] = fate
        if fate.final:
            self.final.setdefault((id.client, id.group), {}).setdefault(id.sequence, version)

    def forget_known(self, client: str, group: str, version: int) -> None:
        """Forgets fates that a client must know, because it sent an update of a later version."""
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
            self.over[client, group] = join_ranges((*self.over.get((client, group), ()), *told))


def join_ranges(of: tuple[tuple[int, int] | int, ...]) -> Ranges:
    """Sorts ranges and single sequences, and joins those that touch."""
    found: list[tuple[int, int]] = []
    for first, last in sorted((each, each) if isinstance(each, int) else each for each in of):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


BY_ITSELF = "scaling: "
"""Begins the reason of an act that scaling decided, and no operator."""
KEPT = 5
"""Number of newest decisions of scaling that a status shows."""
AS_PLANNED = (1.0, 1.0)
"""Factors of deadline and buffer if both are the plan's own."""


@dataclass(slots=True)
class Scaled:
    """What scaling has changed in a run.

    Args:
        off: why scaling is off; empty while it is on.
        deadline, buffer: the factors in force, of the plan's deadline and buffer.
        rounds: by group, the deadline's factor when the open round began: its members know it.
        decided: the newest decisions, oldest first, with the second of the run's clock.
        drained: shards that an operator has drained; only an operator adds them again.
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
                self.decided = []  # the effect of the last one is not measured any more
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


REMOVED = "removed by the operator"
"""Why a shard has left that an operator removed."""


@dataclass(slots=True)
class Moving:
    """The moves of blocks in one run.

    Args:
        left: shards that left the run, and why.
        removed: shards that an operator removed; they are told so, and end in good order.
        what: the `ShardDeed` that is under way, or BALANCE; empty if there is none.
        shard: the shard that is added, drained or removed.
        assigned: for BALANCE, the blocks that move between shards.
        since: when blocks began to move.
        files: by group, digests of the state files that shards made for the coming placement.
    """

    left: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    what: str = ""
    shard: str = ""
    assigned: tuple[BlockAssigned, ...] = ()
    since: float = 0.0
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def apply(
        self,
        at: float,
        record: Act | records.MovingRecord,
        pinned: RunPinned,
        groups: Collection[GroupState],
    ) -> RunPinned:
        """Folds one record; returns the run with the placements that follow from it."""
        old, coming = pinned.placement, pinned.coming
        match record:
            case Act():
                self._act(record, old)
                return pinned
            case records.ShardLeft(shard, reason, removed):
                self._leave(shard, reason, removed)
                if self.shard == shard or self.what == requests.BALANCE:
                    self._settle()
                for group in groups:
                    group.states.pop(shard, None)
                epoch = (coming or old).epoch + 1  # files for the coming placement do not count
                now = replace(
                    pinned, placement=replace(old.without(shard), epoch=epoch), coming=None
                )
            case ScalingDecided(blocks=blocks):
                if blocks:
                    self.what, self.assigned = requests.BALANCE, blocks
                return pinned
            case records.PlacementMoved(placement, in_force) if in_force:
                for group in groups:
                    self._take_over(group, old, placement)
                if self.what == ShardDeed.REMOVE:
                    self._leave(self.shard)
                self._settle()
                now = replace(pinned, placement=placement, coming=None)
            case records.PlacementMoved(placement):
                self.since = at
                return replace(pinned, coming=placement)
        if coming is not None:
            self.files = {}
            for group in groups:
                group.stand_still(self.since, at)
        return now

    def _take_over(self, group: GroupState, old: Placement, now: Placement) -> None:
        """Replaces the state files of shards whose blocks have changed."""
        made = self.files.get(group.name, {})
        for shard in {*old.shards, *now.shards}:
            blocks = now.blocks_of(group.name, shard)
            if not blocks:
                group.states.pop(shard, None)
            elif blocks != old.blocks_of(group.name, shard):
                group.states[shard] = made[shard]

    def stand_still(self, since: float, until: float) -> None:
        self.since = after_pause(self.since, since, until)

    def _act(self, act: Act, placement: Placement) -> None:
        if act.what == ShardDeed.DRAIN and act.party not in placement.shards:
            return  # scaling drained this shard already; after the act it may not add it again
        if act.what == ShardDeed.REMOVE and act.party not in placement.shards:
            self._leave(act.party)  # a spare shard, so a move of other shards goes on
            if self.shard == act.party:
                self._settle()
            return
        self.what, self.shard = act.what, act.party
        if act.what == ShardDeed.ADD:
            self.left.pop(act.party, None)
            self.removed.discard(act.party)

    def _leave(self, shard: str, reason: str = REMOVED, removed: bool = True) -> None:
        self.left[shard] = reason
        if removed:
            self.removed.add(shard)

    def _settle(self) -> None:
        self.what = self.shard = ""
        self.assigned = ()


REVOKED = "its name is on the roster no more"
"""Why a client is left out that the CA has taken off the roster."""


@dataclass(slots=True)
class CoordinatorState:
    """Everything that survives a restart of the coordinator.

    Args:
        members: clients that joined, in that order, and when first.
        joined: the last three times that each client joined.
        founder: the client whose model becomes version 0.
        moving: which shards have left, and which blocks are on their way to others.
        settled: what became of submissions, and the digests of their receipts.
        next: the sequence after the newest, by (client, group).
        undurable: submissions that are part of a version and of no checkpoint yet.
        included: how many updates of each client are part of versions of the model.
        ending: why no more rounds open; empty while they do.
        finished: why the run has ended; empty while it goes on.
        failure: the error that the run ends with (`errors.ERRORS`); empty if there is none.
        retired: members that left by their own word.
        why_gone: the reasons (or empty) that retired and resting members gave.
        isolated: clients that are left out, and why.
        left_out: clients that an operator left out, and may take back.
        outside: by group, members that do not contribute to it.
        paused: why an operator's pause stops rounds and cohorts; empty while there is none.
        paused_since: when the pause began.
        wants_checkpoint: whether an operator asked for a checkpoint that has not begun.
        unsafe: parties whose noise others may know.
        answered: the newest cohort that a key holder answered for, by (holder, group).
        liars: holders that gave false shares, and how they were found.
        accused: clients in whose envelopes holders found flaws, and which holders.
        committees: of key holders, in the order in which they were formed.
        keys: the newest envelope key of each holder.
        replaced: by holder and number, older keys that are not released, with the round and
            version of each group when the key was replaced.
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
        """The groups of the model in the plan's order, without the group that trails it."""
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
        """The placement that blocks move to; None if none move."""
        return None if self.pinned is None else self.pinned.coming

    @property
    def placed(self) -> tuple[str, ...]:
        """The shards that hold blocks, or get some by a move; empty before the run is founded."""
        return () if self.pinned is None else all_shards(self.placement, self.coming)

    @property
    def addresses(self) -> tuple[ShardAddress, ...]:
        """The addresses of the run's shards; empty before it is founded."""
        return tuple(self.shards[name] for name in self.placed)

    def base(self, group: GroupState) -> bytes:
        """Returns the digest that a contribution to the open round must be bound to."""
        if group.trails:
            return evaluated_digest(group.digest, self.trail.model)
        return group.digest

    def owners(self, group: str) -> dict[str, tuple[int, ...]]:
        """Returns each shard's blocks of a group, without shards that hold none."""
        owned = {s: self.placement.blocks_of(group, s) for s in self.placement.shards}
        return {s: blocks for s, blocks in owned.items() if blocks}

    def last_owners(self, group: str) -> tuple[str, ...]:
        """Returns the holders of a group's last block, which also hold an adaptive clip's scale."""
        return self.placement.holders(group, -1)

    def by_block(self, group: str, made: Mapping[str, requests.Prepared]) -> tuple[bytes, ...]:
        table = {
            block: digest
            for shard, blocks in self.owners(group).items()
            for block, digest in zip(blocks, made[shard].blocks, strict=True)
        }
        return tuple(table[block] for block in range(len(table)))

    def next_of(self, client: str) -> tuple[GroupVersion, ...]:
        """Returns a client's next sequence in every group, in case it lost its state."""
        return tuple(GroupVersion(name, self.next.get((client, name), 0)) for name in self.groups)

    def takes_part(self, client: str, group: str) -> bool:
        return client not in self.outside.get(group, ())

    def has_joined_for(self, client: str, groups: tuple[str, ...]) -> bool:
        """True if a client joined for exactly these groups (none named: for all)."""
        return all(
            self.takes_part(client, name) == (not groups or name in groups) for name in self.groups
        )

    def pending(self, client: str) -> frozenset[SubmissionId]:
        groups = self.groups.values()
        return frozenset(id for group in groups for id in group.pending if id.client == client)

    def is_pending(self, id: SubmissionId) -> bool:
        group = self.groups.get(id.group)
        return group is not None and group.is_pending(id)

    def is_known(self, id: SubmissionId) -> bool:
        """True if a receipt of this submission was ever accepted."""
        group = self.groups.get(id.group)
        here = group is not None and id in group.receipts
        return here or self.settled.of(id) is not None

    def is_kept(self, id: SubmissionId) -> bool:
        """True if a known submission was not dropped."""
        fate = self.settled.of(id)
        return fate is None or fate.outcome != Outcome.DROPPED

    def is_past(self, id: SubmissionId) -> bool:
        """True if a submission's blocks are never needed again."""
        fate = self.settled.of(id)
        return fate is not None and fate.outcome in (Outcome.DROPPED, Outcome.DURABLE)

    def apply(self, at: float, record: Record) -> None:
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
                    with group.moved_by(record):
                        group.phase, group.reason = Phase.DONE, group.resigned or reason
            case requests.Submit(receipt):
                with self.groups[receipt.id.group].moved_by(record):
                    self._receive(at, receipt)
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
                pass  # what follows from it has records of its own
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
        """Lets a failed run go on, because a restart means that its cause was mended.

        Clients that declined are asked again, and clients that left may join again: if they counted
        as gone for good, the run would end before they could. Members of a burnt cohort are not
        asked, because key holders may have opened a sum of their updates.
        """
        self.ending = self.finished = self.failure = ""
        self.retired.clear()
        for group in self.groups.values():
            group.sitting_out &= group.burnt_members.keys()
            group.ask_again(group.absences.keys() - group.sitting_out)
            if group.phase is Phase.DONE:
                with group.moved_by(record):
                    group.phase = Phase.WAITING

    def least_usable_key(self, holder: str) -> int:
        """Returns the number below which a holder's envelope keys open nothing any more."""
        return min(self.replaced.get(holder, ()), default=self.keys.number(holder))

    def covered(self, number: int) -> tuple[SubmissionId, ...]:
        """Returns the submissions that become durable with the checkpoint of that number."""
        done = self.checkpoint(number)
        return tuple(id for id, v in self.undurable.items() if v <= done.version_of(id.group))

    @property
    def last_checkpoint(self) -> CheckpointState | None:
        """The newest checkpoint, whole or in the making; None before the first."""
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

    def is_unprotected(self, client: str) -> bool:
        """True if the client or a shard has an unsafe seed, so that others may know its noise."""
        return client in self.unsafe or not self.unsafe.isdisjoint(self.shards)

    def _receive(self, at: float, receipt: Receipt) -> None:
        id = receipt.id
        self.settled.receipts[id] = receipt.digest
        self.settled.forget_known(id.client, id.group, receipt.version)
        self.groups[id.group].receive(at, replace(receipt))  # without the texts: twice its size
        self._use(id)
        if receipt.unsafe:
            self.unsafe.add(id.client)

    def _use(self, id: SubmissionId) -> None:
        after = self.next.get((id.client, id.group), 0)
        self.next[id.client, id.group] = max(after, id.sequence + 1)

    def _apply_to(self, group: GroupState, at: float, record: records.GroupRecord) -> None:
        if isinstance(record, requests.Prepared) and record.epoch:
            self.moving.files.setdefault(group.name, {})[record.shard] = record.state
            return
        with group.moved_by(record):
            self._change(group, at, record)

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
            case requests.Examined(id=id, holder=holder, flaw=flaw) if flaw:
                self._accuse(id, holder)
                reason = f"{holder} found a flaw in what {id.client} sent: {flaw}"
                self._drop(group, (id,), reason)
                group.let_go((id,))
                group.invited -= {id.client}
                group.sitting_out |= frozenset() if group.rounds else {id.client}
            case requests.Examined(id=id, holder=holder):
                group.open_receipts.approve(id, holder)
            case requests.KeyShare(holder=holder, share=share):
                making = group.closed_cohort
                making.shares[holder], making.answered_at = share, at
                self.answered[holder, group.name] = record.cohort
            case requests.OpenRefused(holder=holder, reason=reason):
                making = group.closed_cohort
                making.refusals[holder], making.answered_at = reason, at
            case records.OpeningFailed(holders=holders, reason=reason):
                making = group.closed_cohort
                making.failed += (holders,)
                making.key, making.opened_by, making.answered_at = None, (), at
                group.coming = {}
                group.phase, group.reason = Phase.OPENING, reason
            case records.FlawNoted(id=id, holder=holder):
                self._accuse(id, holder)
                if self.is_kept(id):
                    group.suspicion = group.suspicion.note_flaw(id.client)
                    group.open_receipts.doubt(id, holder)
            case records.LiarsNamed(holders=holders, reason=reason):
                self.liars |= dict.fromkeys(holders, reason)
            case records.CohortBurnt(reason=reason):
                self._drop(group, group.summed, reason)
                group.suspicion = group.suspicion.note_burnt(
                    group.weights, record.spoilt, record.length
                )
                group.burn(reason)
                group.end_cohort(at, reason)
            case records.LengthsGrew(length=length, reason=reason):
                group.suspicion, group.reason = group.suspicion.note_grown(), reason
                group.lengths = (length,) * MEMORY
            case records.GroupResigned(reason=reason):
                group.reason = group.resigned = f"{reason}: it stays at {group.version}"
            case records.StreamBegan():
                group.begin_stream(at)
            case records.StreamEnded(reason=reason):
                self._drop(group, group.pending, reason)
                group.end_stream(reason)
            case records.SubmissionsDropped(ids=ids, reason=reason):
                self._drop(group, ids, reason)
                group.drop(ids, at, self.left_out)
                if group.phase is Phase.FOUNDING:
                    group.coming = {}
            case requests.Withdraw(id=id):
                self._use(id)
                group.members.refuse(id.client, group.version, at)
            case records.MemberEntered(client=client, clock=clock):
                group.members.enter(client, clock, at)
            case records.MemberLeft(client=client, spent=spent):
                (group.members.exhaust if spent else group.members.leave)(client)
            case records.MembersReturned(clients=clients):
                group.sitting_out -= set(clients)
                group.ask_again(clients)
            case records.MemberPassed(client=client):
                group.members.pass_over(client)
            case records.MemberAsked(client=client, version=version, step=step):
                group.members.ask(client, Base(version, step), at)
            case requests.Prepared(shard):
                group.coming[shard] = record
            case records.VersionCommitted():
                self._commit(at, group, record)
            case _:
                assert_never(record)

    def _all_hold(self, group: GroupState) -> bool:
        return self.owners(group.name).keys() <= group.closed_cohort.held.keys()

    def _move(self, at: float, record: Act | records.MovingRecord) -> None:
        """Folds a record of a move; a shard that left no longer keeps a cohort from being held."""
        assert self.pinned is not None
        groups, before = self.groups.values(), self.pinned
        self.pinned = self.moving.apply(at, record, before, groups)
        self.reigns.note_placement(before.placement, self.pinned.placement)
        for group in (each for each in groups if each.phase is Phase.HOLDING):
            if self._all_hold(group):
                with group.moved_by(record):
                    group.open()

    def _accuse(self, id: SubmissionId, holder: str) -> None:
        self.accused[id.client] = self.accused.get(id.client, frozenset()) | {holder}

    def _commit(self, at: float, group: GroupState, record: records.VersionCommitted) -> None:
        version, length = record.version, record.length
        coming, group.version, group.committed_at = group.coming, version, at
        group.scale = group.coming_scale
        group.blocks = self.by_block(group.name, coming)
        group.states = {shard: made.state for shard, made in coming.items()}
        group.history[version] = group.digest
        clients = frozenset(group.weights)
        group.suspicion = group.suspicion.note_opened(clients, length, group.times)
        group.lengths = (*group.lengths, *([length] * bool(length)))[-MEMORY:]
        group.sitting_out = frozenset()
        group.forget_spoilt()
        part = {m.id for m in group.cohort.members} if group.cohort else set(group.receipts)
        included = tuple(id for id in group.summed if id in part)
        late = tuple(id for id in group.summed if id not in part)
        fate = Fate(Outcome.INCLUDED, version, f"part of version {version}")
        self.settled.known |= dict.fromkeys(included, fate)
        self.undurable |= dict.fromkeys(included, version)
        done, without = f"version {version} is committed", f"version {version} closed without it"
        if version > 0 and group.trails:  # the versions of a trailing group count its rounds
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
    """Writes the manifest of a checkpoint whose parts are durable, which completes it.

    Its `Done` has the numbers of the checkpoints that stay; it is empty if all do.

    Placement, parts and privacy spent are as of the moment of the task. If a shard leaves
    meanwhile, another manifest is asked for. `tallies` counts equal facts (`Ledger.tallies`): a
    list of all facts would grow with every update. Checkpoints of the versions in `stay` are kept,
    however old they are.
    """

    number: int
    versions: tuple[GroupVersion, ...]
    placement: Placement
    parts: tuple[requests.Checkpointed, ...]
    tallies: tuple[tuple[Fact, int], ...] = ()
    unsafe: tuple[str, ...] = ()
    results: tuple[VersionEvaluated, ...] = ()
    stay: frozenset[int] = frozenset()
