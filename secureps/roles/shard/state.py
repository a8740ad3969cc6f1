"""A shard's state, which is the fold of its journal, names of payloads, and tasks of its worker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from secureps.crypto.cipher import Opening
from secureps.errors import ConfigError, DamagedStore, InternalError, Malformed, Refused
from secureps.messages import shard_records as records
from secureps.messages.orders import Commit
from secureps.messages.records import Incarnated, RunPinned
from secureps.messages.requests import GetBlock, Prepared
from secureps.messages.run import GroupVersion, Task
from secureps.messages.submission import (
    FOUNDING,
    OPENED,
    UPDATE,
    BlockHeader,
    Cohort,
    CohortName,
    Receipt,
    SubmissionId,
    cohort_digest,
)
from secureps.policy.block_deltas import block_delta
from secureps.policy.memory import why_little_memory
from secureps.roles.machine import Halt, Record
from secureps.roles.pinned_run import Pinned, PinnedParty

UNSETTLED = 8
"""Unsettled submissions of a client and group that a shard keeps, beyond two checkpoints' worth."""


@dataclass(slots=True)
class ShardGroup:
    """State of one group at a shard, for the blocks that are placed here.

    Args:
        committed: the committed version.
        keep: the oldest version to keep.
        sums, keys: sums and sums of keys, by cohort.
        states: by version.
        epoch: of the placement since which the shard has these blocks; part of the names of its
            state files. 0: since the shard came.
        coming: the committed version of the blocks that the coming placement gives the shard.
    """

    committed: int = -1
    keep: int = 0
    sums: dict[int, records.SumsMade] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    states: dict[int, Prepared] = field(default_factory=dict)
    epoch: int = 0
    coming: Prepared | None = None

    @classmethod
    def after_move(cls, made: Prepared) -> ShardGroup:
        """Makes the state after a move, which has only this version of the new blocks."""
        states = {made.version: replace(made, epoch=0)}
        return cls(made.version, made.version, states=states, epoch=made.epoch)


@dataclass(frozen=True, slots=True)
class ShardFold:
    """The state of a shard, without the run and its roster."""

    incarnation: int
    spooled: dict[BlockName, BlockHeader]
    groups: dict[str, ShardGroup]
    sequences: dict[tuple[str, str], dict[int, int]]


class ShardState(PinnedParty):
    """Everything of one shard that survives a restart."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.incarnation = 0
        self.spooled: dict[BlockName, BlockHeader] = {}
        self._groups: dict[str, ShardGroup] = {}
        self._sequences: dict[tuple[str, str], dict[int, int]] = {}

    # --- the fold -----------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """Folds one record; InternalError for one that is not a shard's."""
        match record:
            case Incarnated(number):
                self.incarnation = number
            case RunPinned():
                self._place(record)
            case BlockHeader():
                self._put(record)
            case records.SumsMade(cohort):
                self._groups[cohort.group].sums[cohort.number] = record
            case records.KeySumTaken():
                self._groups[record.group].keys[record.number] = record.key
            case Prepared(group=group, epoch=epoch) if epoch:
                self._groups[group].coming = record
            case Prepared(group=group, version=version):
                self._groups[group].states[version] = record
            case Commit():
                self._commit(record)
            case records.Discarded(ids):
                gone = set(ids)
                self._drop([n for n in self.spooled if submission_of(n) in gone])
            case records.OpenedForgotten():
                lost = (OPENED, record.group, record.number)
                of_it = [name for name in self.spooled if (name[0], *name[2:4]) == lost]
                self._drop([name for name in of_it if name[4] in record.blocks])
            case _:
                raise InternalError(f"a shard's journal has no {type(record).__name__}")

    def make_fold(self) -> ShardFold:
        return ShardFold(self.incarnation, self.spooled, self._groups, self._sequences)

    def unfold(self, known: ShardFold) -> None:
        self.incarnation, self.spooled = known.incarnation, known.spooled
        self._groups, self._sequences = known.groups, known.sequences

    def _place(self, record: RunPinned) -> None:
        """Takes the run, or newer placements; drops what belongs to blocks of other shards."""
        before, self._pinned = self._pinned, Pinned.of(record)
        taken, moved = dict[str, set[int]](), set[str]()
        for name in self._pinned.plan.all_groups:
            self._groups.setdefault(name, ShardGroup())
            taken[name] = set(self.own(name))
            if before is not None and self._move(name, before):
                moved.add(name)
        past = [at for at in self.spooled if at[4] not in taken[at[2]]]
        past += [at for at in self.spooled if at[2] in moved and at[0] != UPDATE]
        self._drop(list(dict.fromkeys(past)))

    def _move(self, group: str, before: Pinned) -> bool:
        """Follows newer placements for a group; returns whether its blocks here have changed."""
        made, own = self._groups[group].coming, self.own(group)
        moved = before.placement.blocks_of(group, self.name) != own
        ready = before.coming is not None and before.coming.blocks_of(group, self.name) == own
        if moved and made is not None and ready:
            self._groups[group] = ShardGroup.after_move(made)
        elif moved:  # no block is placed here now, or this shard lost the values prepared for it
            self._groups[group] = ShardGroup(epoch=self.pinned.placement.epoch)
        elif made is not None and made.epoch != self.epoch:
            self._groups[group].coming = None
        return moved

    def _put(self, header: BlockHeader) -> None:
        name = block_name(header)
        if name not in self.spooled and header.purpose != OPENED:
            counts = self._sequences.setdefault((header.author, header.group), {})
            counts[header.sequence] = counts.get(header.sequence, 0) + 1
        self.spooled[name] = header

    def _drop(self, names: list[BlockName]) -> None:
        for name in names:
            header = self.spooled.pop(name)
            counts = self._sequences.get((header.author, header.group), {})
            if header.purpose != OPENED:
                counts[header.sequence] -= 1
                if counts[header.sequence] == 0:
                    del counts[header.sequence]

    def _commit(self, record: Commit) -> None:
        held = self._groups[record.group]
        held.committed, held.keep = record.version, record.keep
        held.states = {v: s for v, s in held.states.items() if v >= record.keep}
        past = [made for made in held.sums.values() if made.cohort.version <= record.keep]
        held.sums = {n: s for n, s in held.sums.items() if s not in past}
        held.keys = {n: key for n, key in held.keys.items() if n in held.sums}
        summed = {member.id for made in past for member in made.cohort.members}
        opened = {(record.group, made.cohort.number) for made in past}
        self._drop(
            [
                name
                for name in self.spooled
                if submission_of(name) in summed or (name[0] == OPENED and name[2:4] in opened)
            ]
        )

    # --- looking up ---------------------------------------------------------------

    @property
    def is_apart(self) -> bool:
        """True if the run is known, and none of its blocks are placed here."""
        return self._pinned is not None and self.name not in self._pinned.shards

    @property
    def reached(self) -> tuple[GroupVersion, ...]:
        """The committed version of each group that has one."""
        known = self._groups.items()
        return tuple(GroupVersion(name, s.committed) for name, s in known if s.committed >= 0)

    @property
    def epoch(self) -> int:
        """The epoch of the newest known placement; 0 before the run is known."""
        return 0 if self._pinned is None else self._pinned.epoch

    @property
    def held(self) -> tuple[CohortName, ...]:
        """The newest cohort with sums, of each group that has one."""
        newest = (held.sums[max(held.sums)].cohort for held in self._groups.values() if held.sums)
        return tuple(CohortName(c.group, c.number, cohort_digest(self.run, c)) for c in newest)

    @property
    def opened_by_holder(self) -> bool:
        """True if a key holder decrypts the sums and sends them back."""
        return self.pinned.plan.opening is Opening.HOLDER

    def group(self, group: str) -> ShardGroup:
        """Returns what this shard holds of a group; Malformed if there is no such group."""
        if group not in self._groups:
            raise Malformed(f"no group is called {group!r}")
        return self._groups[group]

    def summed(self, group: str, cohort: int) -> records.SumsMade | None:
        """Returns the sums of a cohort; None if none are on record, or there is no such group."""
        held = self._groups.get(group)
        return None if held is None else held.sums.get(cohort)

    def is_over(self, group: str, cohort: int) -> bool:
        """True if a later cohort is on record, so that this one, or its sum, is past."""
        held = self._groups.get(group, ShardGroup())
        later = (*tuple(held.sums), *(made.cohort for made in tuple(held.states.values())))
        return cohort <= max(later, default=-1)

    def own(self, group: str) -> tuple[int, ...]:
        """Returns the blocks of a group that are placed here; Malformed if there is none."""
        self.group(group)
        return self.pinned.placement.blocks_of(group, self.name)

    def coming(self, group: str) -> tuple[int, ...]:
        """Returns the blocks that the coming placement gives this shard; empty if none move."""
        coming = self.pinned.coming
        return () if coming is None else coming.blocks_of(group, self.name)

    def others(self, group: str, block: int) -> tuple[str, ...]:
        held = self.pinned.placement.holders(group, block)
        return tuple(shard for shard in held if shard != self.name)

    def base_version(self, ask: GetBlock) -> int | None:
        """Returns the version that a block's differences are served from; None: the whole block."""
        layout, place = self.pinned.layout.group(ask.group), self.own(ask.group).index(ask.block)
        delta = block_delta(self.pinned.plan, layout, ask.block)
        states, most = self.group(ask.group).states, 0 if delta is None else delta.behind
        for version in range(ask.version - 1, ask.version - 1 - most, -1):
            if version not in states:
                break
            if states[version].blocks[place] == ask.base:
                return version
        return None

    def submissions(self) -> tuple[SubmissionId, ...]:
        return tuple(
            sorted(
                SubmissionId(client, group, sequence)
                for (client, group), counts in self._sequences.items()
                for sequence in counts
            )
        )

    def next_sequence(self, client: str, group: str) -> int:
        """Returns the sequence after a client's newest with spooled blocks; 0 if there is none."""
        return max(self._sequences.get((client, group), {}), default=-1) + 1

    def unsummed(self, client: str, group: str) -> frozenset[int]:
        """Returns a client's sequences that have spooled blocks, and are in no kept sum."""
        summed = {
            member.id.sequence
            for made in self.group(group).sums.values()
            for member in made.cohort.members
            if member.id.client == client
        }
        return frozenset(self._sequences.get((client, group), {})) - summed

    def committed_submissions(self, group: str) -> frozenset[SubmissionId]:
        """Returns the submissions in committed versions whose sums are kept."""
        held = self.group(group)
        numbers = {state.cohort for v, state in held.states.items() if v <= held.committed}
        cohorts = (made.cohort for number, made in held.sums.items() if number in numbers)
        return frozenset(member.id for cohort in cohorts for member in cohort.members)

    def surplus(self, header: BlockHeader) -> tuple[SubmissionId, ...]:
        """Returns a client's oldest submission if too many are here, but never the newest one.

        Otherwise blocks that are never settled would fill the disk. If the submission is needed
        after all, it is missing, and its client sends it again.
        """
        most = UNSETTLED + 2 * self.pinned.plan.section.checkpoint_every
        if len(self._sequences.get((header.author, header.group), {})) <= most:
            return ()  # cheap, because `unsummed` looks at all members of the kept sums
        kept = self.unsummed(header.author, header.group)
        if len(kept) <= most:
            return ()
        oldest = min(kept - {header.sequence})
        return (SubmissionId(header.author, header.group, oldest),)

    def work_of(self, group: str, version: int) -> MakeState | StepState | None:
        """Returns the task that made a version, to do it again; None if its payloads are gone."""
        state = self.group(group).states.get(version)
        if state is None:
            return None
        if version == 0:
            return self._founding(group, state)
        made = self.group(group).sums.get(state.cohort)
        if made is None:
            return None
        opened = self.opened_keys(made.cohort, None) if self.opened_by_holder else None
        key = self.group(group).keys.get(state.cohort)
        if opened is None and self.opened_by_holder:
            return None
        if key is None and self.pinned.plan.has_committee:
            return None
        return StepState(made.cohort, opened, key)

    def _founding(self, group: str, state: Prepared) -> MakeState | None:
        if self.pinned.plan.is_given(group):
            return MakeState(group, None)
        wanted = dict(zip(self.own(group), state.blocks, strict=True))
        found = {
            header.block: header
            for header in list(self.spooled.values())
            if (header.purpose, header.group) == (FOUNDING, group)
            and wanted.get(header.block) == header.digest  # both are digests of the values
        }
        if len(found) != len(wanted):
            return None
        return MakeState(group, tuple(found[block].key for block in wanted))

    def founded_state(self, group: str, receipt: Receipt | None) -> Prepared | None:
        """Returns version 0 if it was made of this model (None: the plan's) or is committed."""
        held = self.group(group)
        state = held.states.get(0)
        if state is None or receipt is None or held.committed >= 0:
            return state
        return state if state.blocks == self.founding_digests(group, receipt) else None

    def founding_digests(self, group: str, receipt: Receipt) -> tuple[bytes, ...]:
        """Returns a founding model's digests of own blocks; Malformed if it is another group's."""
        blocks = self.pinned.layout.group(group).blocks
        if receipt.id.group != group or len(receipt.blocks) != blocks:
            raise Malformed(f"{receipt.id}: {group} has {blocks} blocks, and is founded whole")
        return tuple(receipt.blocks[block] for block in self.own(group))

    def keys(
        self, id: SubmissionId, purpose: str, digests: tuple[bytes, ...]
    ) -> tuple[str, ...] | None:
        """Returns the spool keys of a submission's blocks; None if one is missing or differs."""
        own = self.own(id.group)
        if len(digests) != len(own):
            raise Malformed(f"{id}: {len(digests)} digests, {self.name} holds {len(own)} blocks")
        headers = [
            self.spooled.get((purpose, id.client, id.group, id.sequence, block)) for block in own
        ]
        if any(h is None or h.digest != d for h, d in zip(headers, digests, strict=True)):
            return None
        return tuple(h.key for h in headers if h is not None)

    def block_key(self, id: SubmissionId, block: int) -> str | None:
        """Returns the spool key of an update's block; None if it is not here."""
        header = self.spooled.get((UPDATE, id.client, id.group, id.sequence, block))
        return None if header is None else header.key

    def lacking(self, cohort: Cohort) -> tuple[SubmissionId, ...]:
        """Returns the members of a cohort for which blocks are missing here."""
        own = self.own(cohort.group)
        ids = (member.id for member in cohort.members)
        return tuple(id for id in ids if any(self.block_key(id, b) is None for b in own))

    def opened_keys(
        self, cohort: Cohort, digests: tuple[bytes, ...] | None
    ) -> tuple[str, ...] | None:
        """Returns the keys of a cohort's opened sums; None if one is missing or differs."""
        own = self.own(cohort.group)
        found = {
            header.block: header
            for header in list(self.spooled.values())
            if (header.purpose, header.group, header.sequence)
            == (OPENED, cohort.group, cohort.number)
        }
        if len(found) != len(own):
            return None
        if digests is not None and tuple(found[b].digest for b in own) != digests:
            return None
        return tuple(found[b].key for b in own)


# --- keys --------------------------------------------------------------------------

BlockName = tuple[str, str, str, int, int]
"""(purpose, author, group, sequence, block): never names two payloads."""


def block_name(header: BlockHeader) -> BlockName:
    return (header.purpose, header.author, header.group, header.sequence, header.block)


def name_under(key: str) -> BlockName:
    purpose, author, group, sequence, block, _ = key.split("/")
    return (purpose, author, group, int(sequence), int(block))


def submission_of(name: BlockName) -> SubmissionId | None:
    """Returns the submission that a block is part of; None for an opened sum."""
    purpose, author, group, sequence, _ = name
    return None if purpose == OPENED else SubmissionId(author, group, sequence)


def sum_key(group: str, cohort: int, block: int) -> str:
    return f"sum/{group}/{cohort}/{block}"


def noise_key(group: str, cohort: int, block: int, about: bytes) -> str:
    """Returns the key of the sealed noise that shards add to that sum.

    Args:
        about: the `cohort_digest`. If two cohorts of one number had the same noise, it would cancel
            in the difference of their sums.
    """
    return f"{sum_key(group, cohort, block)}/noise/{about.hex()}"


def cohort_under(key: str) -> tuple[tuple[str, int], str | None]:
    """Returns the (group, cohort) of a sum's key, and for noise the cohort's digest in hex."""
    _, group, number, _, *noise = key.split("/")
    return (group, int(number)), noise[-1] if noise else None


def state_key(group: str, version: int, block: int) -> str:
    """Returns the key of a block's values and optimizer state, own or from another shard."""
    return f"state/{group}/{version}/{block}"


def model_key(group: str, version: int, block: int, since: int | None = None) -> str:
    """Returns the key of a published block, or of its differences `since` a version."""
    return f"model/{group}/{version}/{block}" + ("" if since is None else f"/{since}")


# --- tasks -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakeState(Task):
    """Makes version 0 of a group's own blocks from these spool keys; None: from the plan's file."""

    group: str
    keys: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class GatherState(Task):
    """Makes a version's state file of these blocks, with the digests of the order if it has some.

    The blocks come from `copies` (spool keys of other shards' blocks) and from versions on record
    here, or else from a checkpoint's part. `epoch` is the coming placement's if the file is for it.
    """

    order: Commit
    blocks: tuple[int, ...]
    copies: tuple[str, ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class DrawNoise(Task):
    """Draws and seals the noise of these blocks of a cohort, except noise that is on the disk."""

    cohort: Cohort
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SumCohort(Task):
    """Adds up a cohort; keys[m] are the spool keys of member m's blocks, ascending."""

    cohort: Cohort
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class StepState(Task):
    """Opens the sums, averages, and steps the optimizer.

    `opened` are spool keys of sums that a holder decrypted. `key` is the sum of the members'
    one-time keys (int32, little-endian), which a committee gave.
    """

    cohort: Cohort
    opened: tuple[str, ...] | None
    key: bytes | None = None


class PayloadsDamaged(DamagedStore):
    """Raised if payloads under these spool keys are gone or damaged; they may be sent again."""

    def __init__(self, keys: frozenset[str]) -> None:
        super().__init__(f"gone or damaged: {', '.join(sorted(keys))}")
        self.keys = keys


class NoiseDamaged(DamagedStore):
    """Raised if noise for a cohort's sum is gone or damaged."""


class ComingDamaged(DamagedStore):
    """Raised if these groups' files for the coming placement are damaged."""

    def __init__(self, groups: tuple[str, ...]) -> None:
        super().__init__(f"files for the coming placement are damaged: {', '.join(groups)}")
        self.groups = groups


class DoesNotOpen(Refused):
    """Raised if a sum of keys does not open these ciphertexts; another set of shares may."""


# --- memory limit ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes of versions that a shard's process may hold (None: no limit), and its threads."""

    memory: int | None = None
    threads: int = 1

    def refusal(self, name: str, record: RunPinned) -> list[Halt]:
        """Ends the shard of this name if its limit is too low for a placement of the run."""
        if self.memory is None:
            return []
        known = Pinned.of(record)
        groups = known.layout.all_groups
        for placement in filter(None, (record.placement, record.coming)):
            own = {group.name: placement.blocks_of(group.name, name) for group in groups}
            if text := why_little_memory(known.plan, groups, own, self.memory, self.threads):
                return [Halt(f"{name}: {text}", ConfigError)]
        return []


UNLIMITED = Limit()
