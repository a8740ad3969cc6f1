"""What the coordinator knows: the fold of its journal.

`CoordinatorState.apply` takes one record; nothing else changes this state, so a restarted
coordinator knows exactly what the killed one had journalled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import assert_never

from secureps.errors import InternalError
from secureps.messages import coordinator_records as records
from secureps.messages.acts import SHARD_DEEDS, Act, Deed
from secureps.messages.charge import Charge, Release
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.evaluation import (
    EVALUATION,
    EvaluationSkipped,
    VersionEvaluated,
    evaluated_digest,
)
from secureps.messages.orders import GroupVersion, KeyCommittee
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.run import ShardAddress
from secureps.messages.scaling import ScalingDecided
from secureps.messages.submission import Outcome, Receipt, SubmissionId, receipt_digest
from secureps.privacy.ledger import Ledger
from secureps.roles.announced_keys import AnnouncedKeys
from secureps.roles.coordinator.acted import Acted
from secureps.roles.coordinator.checkpoint import CheckpointState
from secureps.roles.coordinator.cohort import PreparedVersion
from secureps.roles.coordinator.fates import Fate, Fates
from secureps.roles.coordinator.group import GroupState, Owed, Phase
from secureps.roles.coordinator.judgements import Evaluations
from secureps.roles.coordinator.moving import Moving
from secureps.roles.coordinator.reigns import Reigns
from secureps.roles.coordinator.scaled import Scaled
from secureps.roles.coordinator.timeline import Timeline
from secureps.roles.machine import Record

REVOKED = "its name is on the roster no more"
"""Why a client is left out that whoever issues keys has revoked."""


@dataclass(slots=True)
class CoordinatorState:
    """Everything that survives a restart of the coordinator.

    Args:
        members: clients that joined, in that order, and when first; joined: the last three times
            that each did; told: what each tells of how many examples it has, 0 for nothing.
        moving: which shards have left, and which blocks are on their way to others.
        settled: what became of submissions, and the digests of their receipts; next: the
            sequence after the newest, by (client, group).
        undurable: those included in a version and in no checkpoint yet; included: how many
            updates of a client are part of versions of the model.
        ending: why no more rounds open; finished: why the run is over, empty while it goes on;
            failure: the error that it ends with (`errors.ERRORS`), empty if its plan foresees it.
        retired: members that take part no more, by their own word; why_gone: what they and those
            that rest for a while say of why, without a reason empty; isolated: clients that are
            left out, and why; acted: what an operator has had it do; scaled: what the load has.
        timeline: when steps of the newest cohorts were done; outside: by group, who only joined.
        answered: the newest cohort that a key holder answered for, by (holder, group); liars:
            those that were found out, and how.
        accused: clients in whose envelopes holders found flaws, and which; committees: in turn.
        keys: the newest envelope key of each holder; released: by holder, below which number
            nothing that can still be opened is sealed for its keys; owed: by holder and number,
            what was asked for before another key followed that one, and may be sealed for it.
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
    released: dict[str, int] = field(default_factory=dict)
    owed: dict[tuple[str, int], tuple[Owed, ...]] = field(default_factory=dict)
    unsafe: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    why_gone: dict[str, str] = field(default_factory=dict)
    isolated: dict[str, str] = field(default_factory=dict)
    outside: dict[str, set[str]] = field(default_factory=dict)
    acted: Acted = field(default_factory=Acted)
    scaled: Scaled = field(default_factory=Scaled)
    timeline: Timeline = field(default_factory=Timeline)
    evaluations: Evaluations = field(default_factory=Evaluations)
    committees: list[KeyCommittee] = field(default_factory=list)
    ending: str = ""
    finished: str = ""
    failure: str = ""

    @property
    def incarnation(self) -> int:
        """Of this coordinator, or of whoever ruled last by its journal."""
        return self.reigns.incarnation

    @property
    def fates(self) -> dict[SubmissionId, Fate]:
        """Those that may be asked for."""
        return self.settled.known

    @property
    def model_groups(self) -> tuple[GroupState, ...]:
        """The groups of the model, without that of the metrics, in the plan's order."""
        return tuple(group for group in self.groups.values() if group.name != EVALUATION)

    @property
    def addresses(self) -> tuple[ShardAddress, ...]:
        """Where the shards of the run are; none before it is founded."""
        placed = () if self.pinned is None else self.pinned.placement.shards
        return tuple(self.shards[name] for name in placed)

    def base(self, group: GroupState) -> bytes:
        """What a contribution to the open round must be bound to."""
        if group.name == EVALUATION:
            return evaluated_digest(group.digest, self.evaluations.model)
        return group.digest

    def owners(self, group: str) -> dict[str, tuple[int, ...]]:
        """Which shard holds which blocks of a group, in this epoch; shards without are left out."""
        assert self.pinned is not None
        placed = self.pinned.placement
        owned = {s: placed.blocks_of(group, s) for s in placed.shards}
        return {s: blocks for s, blocks in owned.items() if blocks}

    def last_owners(self, group: str) -> tuple[str, ...]:
        """Which shards hold a group's last block, and the scale of an adaptive clip with it."""
        assert self.pinned is not None
        return self.pinned.placement.holders(group, -1)

    def by_block(self, group: str, parts: dict[str, tuple[bytes, ...]]) -> tuple[bytes, ...]:
        """Digests per shard, put into the order of the blocks."""
        table = {
            block: digest
            for shard, blocks in self.owners(group).items()
            for block, digest in zip(blocks, parts[shard], strict=True)
        }
        return tuple(table[block] for block in range(len(table)))

    def next_of(self, client: str) -> tuple[GroupVersion, ...]:
        """The next sequence of a client in every group, for one that lost its state."""
        return tuple(GroupVersion(name, self.next.get((client, name), 0)) for name in self.groups)

    def takes_part(self, client: str, group: str) -> bool:
        """Whether a client contributes to a group."""
        return client not in self.outside.get(group, ())

    def joined_for(self, client: str, groups: tuple[str, ...]) -> bool:
        """Whether a client contributes to these groups and no others (none named: to all)."""
        return all(
            self.takes_part(client, name) == (not groups or name in groups) for name in self.groups
        )

    def pending(self, client: str) -> frozenset[SubmissionId]:
        """The submissions of a client whose fate is open."""
        groups = self.groups.values()
        return frozenset(id for group in groups for id in group.pending if id.client == client)

    def waits(self, id: SubmissionId) -> bool:
        """Whether a submission was accepted, and its fate is open."""
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
                    self._reopen()
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
            case records.MemberRetired(client, reason, returns):
                self.why_gone[client] = reason
                if not returns:
                    self.retired.add(client)
                for group in self.groups.values():
                    group.forget(client)
            case records.CommitteeFormed(committee):
                self.committees.append(committee)
            case records.FounderChosen(client):
                self.founder = client
            case records.CheckpointOrdered(number, versions):
                known = len(self.evaluations.results)
                self.checkpoints.append(CheckpointState(number, versions, known))
                self.acted.checkpoint, self.moving.kept = False, True
            case records.CheckpointPart(number):
                self.checkpoint(number).parts[record.shard] = record
            case records.CheckpointComplete(number):
                self._complete(number)
            case Charge() | Release():
                self.ledger.append(record)
            case VersionEvaluated(version):
                self.evaluations.results[version] = record
            case EvaluationSkipped(version, reason):
                self.evaluations.skipped[version] = reason
                if EVALUATION in self.groups:  # the next one is of another model
                    self.groups[EVALUATION].forget_spoilt()
            case records.Ending(reason, failure):
                self.ending, self.failure = reason, failure or ""
            case records.Finished(reason, failure):
                self.finished, self.failure = reason, failure or ""
                for group in self.groups.values():
                    group.phase, group.reason = Phase.DONE, group.resigned or reason
            case records.Received(receipt):
                self._receive(at, receipt)
            case records.ClientIsolated(client=client) | records.ClientRevoked(client=client):
                self.isolated[client] = getattr(record, "reason", REVOKED)
                self.acted.out.discard(client)
                for group in self.groups.values():
                    group.suspicion = group.suspicion.without(client)
            case Act(what) if what in SHARD_DEEDS:
                self._move(at, record)
            case Act(what):
                self.acted.apply(at, record, self.isolated, self.groups.values(), self.evaluations)
                if what == Deed.GO_ON:
                    self.moving.stand_still(self.acted.since, at)
            case EnvelopeKeyAnnounced(holder=holder, number=number):
                if number > (last := self.keys.number(holder)):
                    self.owed[holder, last] = tuple(self._owed())
                self.keys.apply(record)
            case records.KeysReleased(holder, below):
                self.released[holder] = below
                self.owed = {k: v for k, v in self.owed.items() if k[0] != holder or k[1] >= below}
            case RosterFollowed():
                pass  # what follows from it is on record by itself
            case records.CohortClosed(cohort):
                self._apply_to(self.groups[cohort.group], at, record)
            case _ if isinstance(record, records.GroupRecord) and record.group in self.groups:
                self._apply_to(self.groups[record.group], at, record)
            case _:
                raise InternalError(f"a coordinator's journal has no {type(record).__name__}")

    def _reopen(self) -> None:
        """Lets a run that failed go on: somebody starts it again, and has mended the cause.

        Clients that declined are asked again. Members of a burnt cohort are not: key holders may
        have opened a sum of theirs.
        """
        self.ending = self.finished = self.failure = ""
        for group in self.groups.values():
            group.sitting_out &= group.burnt_members.keys()
            group.ask_again(group.absences.keys() - group.sitting_out)
            if group.phase is Phase.DONE:
                group.phase = Phase.WAITING

    def covered(self, number: int) -> tuple[SubmissionId, ...]:
        """What becomes durable when the checkpoint of that number is complete."""
        done = self.checkpoint(number)
        return tuple(id for id, v in self.undurable.items() if v <= done.version_of(id.group))

    def checkpoint(self, number: int) -> CheckpointState:
        """The checkpoint of that number; InternalError if it was never ordered."""
        for state in self.checkpoints:
            if state.number == number:
                return state
        raise InternalError(f"checkpoint {number} was never ordered")

    def unprotected(self, client: str) -> bool:
        """Whether everybody may know what its noise, or noise that shards added for it, was."""
        return client in self.unsafe or not self.unsafe.isdisjoint(self.shards)

    def _owed(self) -> Iterator[Owed]:
        for group in self.groups.values():
            for client in self.members:
                if group.awaits(client):
                    yield Owed(group.name, client, group.ask_of(client))

    def _receive(self, at: float, receipt: Receipt) -> None:
        id = receipt.id
        self.settled.receipts[id] = receipt_digest(receipt)
        self.settled.trained_from(id.client, id.group, receipt.version)
        self.groups[id.group].receive(at, replace(receipt))  # without the texts: twice its size
        self._use(id)
        if receipt.unsafe:
            self.unsafe.add(id.client)

    def _use(self, id: SubmissionId) -> None:
        """Its client is beyond this sequence."""
        after = self.next.get((id.client, id.group), 0)
        self.next[id.client, id.group] = max(after, id.sequence + 1)

    def _apply_to(self, group: GroupState, at: float, record: records.GroupRecord) -> None:
        match record:
            case records.RoundOpened(round=number, invited=invited, reason=reason) if (
                group.streaming
            ):
                group.begin_set(at, number, frozenset(invited), reason)
                group.ask_again(invited)
            case records.RoundOpened(round=number, invited=invited, reason=reason):
                group.end_round()
                group.round, group.invited, group.opened_at = number, frozenset(invited), at
                group.ask_again(invited)
                group.phase, group.reason = Phase.COLLECTING, reason
                group.suspicion = group.suspicion.opened_for(group.invited)
                if group.name == EVALUATION:
                    self.evaluations.begin(self.model_groups)
            case records.MemberDeclined(client=client, reason=reason, sits_out=sits_out):
                group.decline(client, reason, sits_out)
            case records.RoundExtended(extensions=extensions, reason=reason):
                group.extensions, group.reason = extensions, reason
            case records.RoundGivenUp(reason=reason) if group.streaming:
                group.suspicion = group.suspicion.given_up()
                group.end_set(at, reason)
            case records.RoundGivenUp(reason=reason):
                self._drop(group, group.summed, reason)
                group.suspicion = group.suspicion.given_up()
                group.end_round()
                group.phase, group.reason = Phase.WAITING, reason
            case records.CohortClosed(cohort, reason):
                group.close(cohort)
                group.number, group.phase, group.reason = cohort.number, Phase.HOLDING, reason
            case records.CohortReopened(missing=missing):
                group.lose(missing, at)
                group.close(None)
                group.phase = Phase.COLLECTING
                group.reason = f"{len(missing)} members' blocks are missing and are sent again"
            case records.SumsHeld(held=held):
                known = group.closed_cohort.held
                known[held.shard] = held.sums
                self._hold(group)
            case records.CohortOpened(sums=sums):
                making, holders = group.closed_cohort, record.holders or ()
                making.opened, making.key, making.opened_by = sums, record.key, holders
                self.answered |= {(h, group.name): record.number for h in holders}
                group.phase = Phase.PREPARING
                group.reason = "opened; the shards average and step"
            case (
                records.ReceiptExamined()
                | records.ShareReceived()
                | records.HolderRefused()
                | records.OpeningFailed()
            ):
                self._apply_answer(group, at, record)
            case records.FlawNoted(id=id, holder=holder):
                self._accuse(id, holder)
                if self.stands(id):
                    group.suspicion = group.suspicion.doubt(id.client)
                    group.open_receipts.doubt(id, holder)
            case records.LiarsNamed(holders=holders, reason=reason):
                self.liars |= dict.fromkeys(holders, reason)
            case records.CohortBurnt(reason=reason):
                self._drop(group, group.summed, reason)
                group.suspicion = group.suspicion.burns(group.weights, record.spoilt)
                group.burn(reason)
                group.end_cohort(at, reason)
            case records.GroupResigned(reason=reason):
                group.reason = group.resigned = f"{reason}: it stays at {group.version}"
            case records.StreamEnded(reason=reason):
                self._drop(group, group.pending, reason)
                group.apply_stream(at, record)
            case records.SubmissionsDropped(ids=ids, reason=reason):
                self._drop(group, ids, reason)
                group.apply_stream(at, record)
            case records.SubmissionWithdrawn(id=id):
                self._use(id)
                group.apply_stream(at, record)
            case records.ShardPrepared(version=version) if version == group.version:
                group.states[record.shard] = record.state  # of other blocks than before
            case records.ShardPrepared(shard=shard, blocks=blocks):
                group.coming.blocks[shard], group.coming.states[shard] = blocks, record.state
                if record.scale is not None:
                    group.coming.scale = record.scale
            case records.VersionCommitted(version=version):
                self._commit(at, group, version)
                if group.name != EVALUATION:
                    self.evaluations.since = at
            case _:
                group.apply_stream(at, record)

    def _apply_answer(self, group: GroupState, at: float, record: records.AnswerRecord) -> None:
        """What holders of a committee say, and what comes of it."""
        match record:
            case records.ReceiptExamined(id=id, holder=holder, flaw=flaw) if flaw:
                self._accuse(id, holder)
                reason = f"{holder} found a flaw in what {id.client} sent: {flaw}"
                self._drop(group, (id,), reason)
                group.let_go((id,))
                group.invited -= {id.client}
                group.sitting_out |= {id.client} if group.streaming else frozenset()
            case records.ReceiptExamined(id=id, holder=holder):
                group.open_receipts.look(id, holder)
            case records.ShareReceived(holder=holder, share=share):
                making = group.closed_cohort
                making.shares[holder], making.answered_at = share, at
                self.answered[holder, group.name] = record.number
            case records.HolderRefused(holder=holder, reason=reason):
                making = group.closed_cohort
                making.refusals[holder], making.answered_at = reason, at
            case records.OpeningFailed(holders=holders, reason=reason):
                making = group.closed_cohort
                making.failed += (holders,)
                making.key, making.opened_by, making.answered_at = None, (), at
                group.coming = PreparedVersion()
                group.phase, group.reason = Phase.OPENING, reason
            case _:
                assert_never(record)

    def _hold(self, group: GroupState) -> None:
        if self.owners(group.name).keys() <= group.closed_cohort.held.keys():
            group.phase = Phase.OPENING
            group.reason = "every shard holds; the key holders open"

    def _move(self, at: float, record: Act | records.MovingRecord) -> None:
        """What others are asked for who are left, they may have; what shards said stays said."""
        assert self.pinned is not None
        groups, before = self.groups.values(), self.pinned
        self.pinned = self.moving.apply(at, record, before, groups, self.evaluations)
        self.reigns.placed(before.placement, self.pinned.placement)
        for group in (each for each in groups if each.phase is Phase.HOLDING):
            self._hold(group)

    def _accuse(self, id: SubmissionId, holder: str) -> None:
        self.accused[id.client] = self.accused.get(id.client, frozenset()) | {holder}

    def _commit(self, at: float, group: GroupState, version: int) -> None:
        coming, group.version = group.coming, version
        group.blocks = self.by_block(group.name, coming.blocks)
        group.states, group.scale = coming.states, coming.scale
        group.history[version] = group.digest
        group.suspicion = group.suspicion.opens(frozenset(group.weights))
        group.sitting_out = frozenset()
        group.forget_spoilt()
        part = {m.id for m in group.cohort.members} if group.cohort else set(group.receipts)
        included = tuple(id for id in group.summed if id in part)
        late = tuple(id for id in group.summed if id not in part)
        fate = Fate(Outcome.INCLUDED, version, f"part of version {version}")
        self.settled.known |= dict.fromkeys(included, fate)
        self.undurable |= dict.fromkeys(included, version)
        if version > 0 and group.name != EVALUATION:
            self.included.update(id.client for id in included)
        done, without = f"version {version} is committed", f"version {version} closed without it"
        if version > 0 and group.name == EVALUATION:  # its versions number evaluations: 1, 2, ...
            done = f"version {self.evaluations.subject} is evaluated"
            without = f"{done} without it"
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
