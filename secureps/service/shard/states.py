"""A shard's versions: in memory, in state files, and in its parts of checkpoints.

A version's state file is durable, with its digest in the journal, before the version is announced;
memory holds a copy. A damaged file is restored from a part of a checkpoint, or computed again from
the version before, and must have the same digest.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from secureps.errors import ClientError, DamagedStore, PeerError
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import Commit
from secureps.messages.requests import Checkpointed, Figure, Prepared
from secureps.messages.run import GroupVersion
from secureps.model.optimizer import OptimizerState, Values
from secureps.policy.block_deltas import Codes
from secureps.roles.shard.memory_report import HITS, MEMORY, RESIDENT, WAIT_SECONDS, WAITS
from secureps.roles.shard.state import (
    UNLIMITED,
    GatherState,
    Limit,
    MakeState,
    ShardState,
    StepState,
)
from secureps.store.checkpoint import (
    FiledTensor,
    Scratch,
    Tensors,
    checkpoint_directories,
    checkpoint_path,
    claim,
    find_tensors,
    map_state,
    read_metadata,
    read_state,
    remove_files,
    tensor_name,
    write_state,
)

# --- A group's own blocks at one version, and as the tensors of a state file -------


@dataclass(frozen=True, slots=True)
class GroupValues:
    """A group's own blocks at one version: values and optimizer state by block.

    `codes` are the differences from the version before, if clients pull differences. `mapped`
    arrays lie in a file, and are read-only.
    """

    version: int
    values: Mapping[int, Values]
    optimizer: Mapping[int, OptimizerState]
    codes: Mapping[int, Codes] = field(default_factory=dict)
    mapped: bool = False

    @property
    def nbytes(self) -> int:
        slots = (each for state in self.optimizer.values() for each in state.slots.values())
        floats: int = sum(each.nbytes for each in (*self.values.values(), *slots))
        return floats + sum(each.nbytes for each in self.codes.values())


Allocate = Callable[[int], Values]
"""Makes an uninitialized float32 vector of so many values."""


def in_memory(values: int) -> Values:
    return np.empty(values, np.float32)


def lay_out(sizes: Mapping[int, int], allocate: Allocate = in_memory) -> dict[int, Values]:
    """Makes vectors of these sizes in one allocation, which may use huge pages."""
    whole, made, start = allocate(sum(sizes.values())), dict[int, Values](), 0
    for block, size in sizes.items():
        made[block] = whole[start : start + size]
        start += size
    return made


def published_bytes(values: Values) -> memoryview:
    """Returns the bytes of a block that clients pull and digests cover: float32 LE."""
    return values.astype("<f4", copy=False).view(np.uint8).data.toreadonly()


def block_digest(values: Values) -> bytes:
    return payload_digest(published_bytes(values))


def merge(version: int, parts: Iterable[GroupValues]) -> GroupValues:
    """Merges the blocks of several parts of a version; a later part wins."""
    every = tuple(parts)
    return GroupValues(
        version,
        {block: each for part in every for block, each in part.values.items()},
        {block: each for part in every for block, each in part.optimizer.items()},
        {block: each for part in every for block, each in part.codes.items()},
    )


def select(made: GroupValues, own: Iterable[int]) -> GroupValues:
    blocks = tuple(own)
    return GroupValues(
        made.version,
        {block: made.values[block] for block in blocks},
        {block: made.optimizer[block] for block in blocks},
        {block: made.codes[block] for block in blocks if block in made.codes},
    )


def to_tensors(group: str, made: GroupValues) -> dict[str, NDArray[np.generic]]:
    tensors: dict[str, NDArray[np.generic]] = {}
    for block, values in made.values.items():
        state = made.optimizer[block]
        tensors[tensor_name(group, block)] = values
        tensors[tensor_name(group, block, "step")] = np.array([state.step], dtype=np.int64)
        for slot, array in state.slots.items():
            tensors[tensor_name(group, block, slot)] = array
    for block, codes in made.codes.items():
        tensors[tensor_name(group, block, "codes")] = codes
    return tensors


def from_tensors(version: int, tensors: Tensors, mapped: bool = False) -> GroupValues:
    """Reads the tensors that `to_tensors` made; float32 arrays are not copied."""
    values: dict[int, Values] = {}
    slots: dict[int, dict[str, Values]] = {}
    steps: dict[int, int] = {}
    codes: dict[int, Codes] = {}
    for name, array in tensors.items():
        _, number, *slot = name.split("/")
        block = int(number)
        if not slot:
            values[block] = array.astype(np.float32, copy=False)
        elif slot == ["step"]:
            steps[block] = int(array[0])
        elif slot == ["codes"]:
            codes[block] = array
        else:
            slots.setdefault(block, {})[slot[0]] = array.astype(np.float32, copy=False)
    optimizer = {b: OptimizerState(steps[b], slots.get(b, {})) for b in values}
    return GroupValues(version, values, optimizer, codes, mapped)


log = logging.getLogger("secureps")

Make = Callable[[MakeState | StepState, GroupValues | None], GroupValues]
"""Computes a version from a task and the version before (None for version 0)."""


_Place = tuple[str, int, int]
"""A group, the epoch of the placement that gave the shard its blocks, and a version."""

MAPS = 64
"""The most files that stay mapped after their digest was checked; each takes a handle."""


class States:
    """All recorded versions of a shard; the newest resident ones are in memory."""

    def __init__(
        self,
        state: ShardState,
        folders: ShardFolders,
        make: Make,
        limit: Limit = UNLIMITED,
    ) -> None:
        self._name = state.name
        self._state = state
        self._folders = folders
        self._make = make
        self.tiers = Tiers(folders.states, limit)
        self._kept: dict[_Place, GroupValues] = {}
        """Versions in memory, and mapped ones whose digest was checked, last used last."""

    def keep(self, group: str, made: GroupValues) -> bytes:
        """Writes a version's state file; returns its digest."""
        digest = self._write(group, made)
        if not self.tiers.bounded:
            self._keep(group, made)
        return digest

    def figures(self, made: GroupValues) -> tuple[Figure, ...]:
        every = (*self._kept.values(), made)
        return self.tiers.figures(sum(each.nbytes for each in every if not each.mapped))

    def codes(self, group: str, version: int, block: int) -> bytes | memoryview:
        """Reads the differences of a block of a version; only the block's digest covers them.

        It reads nothing else of a version's file. Raises DamagedStore if the file is gone or
        damaged, and KeyError if it has no differences.
        """
        with self.tiers.count_use():
            held = self._in_memory(group, version)
            if held is not None:
                return held.codes[block].data
            lie, _ = find_tensors(self._file(group, version), None)
            return b"".join(lie[tensor_name(group, block, "codes")].pieces())

    def _in_memory(self, group: str, version: int) -> GroupValues | None:
        found = self._kept.get(self._place(group, version))
        return None if found is None or found.mapped else found

    def _keep(self, group: str, found: GroupValues) -> None:
        self._kept[self._place(group, found.version)] = found
        if found.mapped:
            for old in [at for at, each in self._kept.items() if each.mapped][:-MAPS]:
                del self._kept[old]

    def values(self, group: str, version: int) -> GroupValues:
        """Reads, maps or recomputes a version; DamagedStore if no copy or source of it is whole.

        A mapped version stays mapped from its sum to its step, so that its digest is checked once.
        """
        with self.tiers.count_use():
            return self._values(group, version)

    def _values(self, group: str, version: int) -> GroupValues:
        found = self._loaded(group, version)
        if found is None:
            found = self._recover(group, version)
            if found.mapped or not self.tiers.bounded:
                self._keep(group, found)
        return found

    def _loaded(self, group: str, version: int) -> GroupValues | None:
        """Returns a version in memory or mapped."""
        place = self._place(group, version)
        found = self._kept.pop(place, None)
        if found is not None:
            self._kept[place] = found
        return found

    def published(self, group: str, version: int, block: int) -> memoryview:
        """Reads the bytes of a block that clients pull; raises as `values`, or KeyError."""
        with self.tiers.count_use():
            found = self._loaded(group, version)
            if found is None and (alone := self._read_block(group, version, block)) is not None:
                return alone
            return published_bytes((found or self._values(group, version)).values[block])

    def _read_block(self, group: str, version: int, block: int) -> memoryview | None:
        """Reads a block from its version's file, if versions lie there and the block is whole.

        Reading the optimizer's vectors too would push other blocks out of the page cache.
        """
        if not self.tiers.bounded:
            return None
        with suppress(ClientError, DamagedStore, LookupError, ValueError):
            digests = self._state.group(group).states[version].blocks
            digest = digests[self._state.own(group).index(block)]
            lie, _ = find_tensors(self._file(group, version), None)
            found = b"".join(lie[tensor_name(group, block)].pieces())
            return memoryview(found) if payload_digest(found) == digest else None
        return None

    def block(self, group: str, version: int, block: int) -> bytes:
        """Encodes one block of a version for another shard; raises as `values`."""
        head = tensor_name(group, block)
        made = to_tensors(group, self.values(group, version))
        return save({n: made[n] for n in made if n == head or n.startswith(f"{head}/")})

    def gather(self, task: GatherState, parts: Sequence[bytes]) -> Prepared:
        """Writes a version's state file from other shards' `block`s, or a part of a checkpoint."""
        order, own = task.order, task.blocks
        group, version = order.group, order.version
        if not task.epoch and not parts:
            return Prepared(self._name, group, version, self._restore_ordered(order), order.state)
        text = f"{self._name}: version {version} of {group}"
        try:
            given = {name: each for part in parts for name, each in load(part).items()}
            found = from_tensors(version, given)
            if task.epoch and version in self._state.group(group).states:
                found = merge(version, (self.values(group, version), found))
            made = select(found, own)
        except (SafetensorError, ValueError, KeyError, IndexError):
            what = "what other shards gave of it is damaged"
            raise DamagedStore(f"{text} is lost: {what}") from None
        blocks = tuple(block_digest(values) for values in made.values.values())
        epoch = task.epoch or self._state.group(group).epoch
        path = self._folders.state(group, version, epoch)
        self._kept.pop((group, epoch, version), None)  # the old file is replaced
        digest = write_state(path, to_tensors(group, made), {"version": str(version)})
        if order.blocks not in ((), blocks) or order.state not in (b"", digest):
            raise DamagedStore(
                f"{text} is lost: other shards have another state of it than was published: one of "
                "them computes wrongly; begin a new run from the last checkpoint"
            )
        return Prepared(self._name, group, version, blocks, digest, epoch=task.epoch)

    def _restore_ordered(self, order: Commit) -> tuple[bytes, ...]:
        """Writes a state file from the part of a checkpoint that has the ordered digest.

        Returns the digests of its blocks. Raises DamagedStore, with advice, if there is no such
        part.
        """
        group, version = order.group, order.version
        gone = DamagedStore(
            f"{self._name}: its journal is gone or an older copy, and no part of a checkpoint in "
            f"{self._folders.checkpoints} has version {version} of {group} whole: bring its newest "
            "state folder back (secureps restore) or that part, or begin a new run from the last "
            "checkpoint that is whole (secureps export)"
        )
        everywhere = itertools.chain(self._parts(), self._folders.elsewhere())
        whole = self._restore(group, {version: order.state}, everywhere, gone)
        if whole is None:
            raise gone
        return tuple(
            block_digest(values) for values in from_tensors(version, whole).values.values()
        )

    def write_part(self, number: int, versions: tuple[GroupVersion, ...]) -> Checkpointed:
        tensors: dict[str, NDArray[np.generic] | FiledTensor] = {}
        metadata = {"shard": self._name}
        for at in versions:
            coming = self._state.group(at.group).coming
            if coming is not None:  # the part must be complete whether or not the move succeeds
                tensors |= self._filed_coming(coming)
            if self._state.own(at.group):
                tensors |= self._to_copy(at.group, at.version)
            if coming is not None or self._state.own(at.group):
                metadata |= {f"version.{at.group}": str(at.version)}
        claim(self._folders.checkpoints, self._state.pinned.run.id)
        path = self._part(checkpoint_path(self._folders.checkpoints, number))
        digest = write_state(path, tensors, metadata, None)
        return Checkpointed(self._name, number, path.name, path.stat().st_size, digest)

    def _filed_coming(self, made: Prepared) -> Mapping[str, FiledTensor]:
        path = self._folders.state(made.group, made.version, made.epoch)
        return find_tensors(path, made.state)[0]

    def damaged_coming(self) -> tuple[str, ...]:
        damaged = list[str]()
        for group in self._state.pinned.plan.all_groups:
            if (made := self._state.group(group).coming) is not None:
                try:
                    self._filed_coming(made)
                except DamagedStore as damage:
                    log.warning("%s: %s; it is made again", self._name, damage)
                    damaged.append(group)
        return tuple(damaged)

    def prune_parts(self, number: int, kept: Sequence[int]) -> None:
        """Deletes parts before `number` that are not `kept`; an empty `kept` keeps all."""
        for directory in checkpoint_directories(self._folders.checkpoints) if kept else ():
            if int(directory.name) < number and int(directory.name) not in kept:
                remove_files(directory, self._part(directory).name)

    def _to_copy(self, group: str, version: int) -> Mapping[str, NDArray[np.generic] | FiledTensor]:
        """Returns a version's tensors to copy into another file.

        They are values in memory, or else their places in the version's own state file.
        """
        made = self._in_memory(group, version)
        if made is None and self.tiers.bounded:
            with suppress(DamagedStore, KeyError):
                record = self._state.group(group).states[version]
                return find_tensors(self._file(group, version), record.state)[0]
        return to_tensors(group, made or self.values(group, version))

    def forget(self, group: str, version: int, keep: int) -> None:
        """Deletes the files older than `keep` of a group whose `version` is committed."""
        now, placed = self._state.group(group).epoch, self._state.pinned.placement.epoch
        oldest = version - (not self.tiers.bounded)
        for place, each in list(self._kept.items()):
            if place[0] == group and (each.mapped or place[1] != now or place[2] < oldest):
                del self._kept[place]
        for path, at, epoch in self._folders.state_files(group):
            if epoch <= placed and (at < keep or epoch != now):  # a later epoch is to come
                path.unlink(missing_ok=True)

    # --- when files are damaged ---------------------------------------------------

    def _recover(self, group: str, version: int) -> GroupValues:
        """Finds the newest version that is whole on disk, and recomputes from there."""
        tasks: list[MakeState | StepState] = []
        reasons: list[str] = []
        found: GroupValues | None = None
        while found is None and not (tasks and isinstance(tasks[-1], MakeState)):
            at = version - len(tasks)
            try:
                found = self._read(group, at)
            except DamagedStore as damage:
                log.warning("%s: %s", self._name, damage)
                reasons.append(str(damage))
                task = self._state.work_of(group, at)
                if task is None and self._restore_older(group, at, version, damage):
                    return self._recover(group, version)
                if task is None:
                    older = f"; so is version {at}: {reasons[-1]}" if tasks else ""
                    raise DamagedStore(
                        f"{self._name}: version {version} of {group} is lost: {reasons[0]}{older}; "
                        f"no whole part of a checkpoint here holds version {at}, and what it was "
                        "made from is gone: restore one of these files"
                    ) from damage
                tasks.append(task)
        for task in reversed(tasks):
            found = self._remake(group, task, found)
        assert found is not None
        return found

    def _restore_older(self, group: str, oldest: int, newest: int, damage: DamagedStore) -> bool:
        known = self._state.group(group).states
        wanted = {at: known[at].state for at in range(oldest, newest + 1) if at in known}
        return self._restore(group, wanted, self._folders.elsewhere(), damage) is not None

    def _read(self, group: str, version: int) -> GroupValues:
        """Reads a version from its state file, or restores that; DamagedStore if neither works."""
        record = self._state.group(group).states.get(version)
        if record is None:
            raise DamagedStore(f"nothing is on record of {group} version {version}")
        digest = record.state
        path = self._file(group, version)
        try:
            if self.tiers.bounded:
                return from_tensors(version, map_state(path, digest), mapped=True)
            tensors: Tensors = read_state(path, digest=digest)[0]
        except DamagedStore as damage:
            # The manifest, which may be missing here, is not needed: the digest proves the part.
            restored = self._restore(group, {version: digest}, self._parts(), damage)
            if restored is None:
                raise
            tensors = restored
        return from_tensors(version, tensors)

    def _restore(
        self, group: str, wanted: Mapping[int, bytes], parts: Iterable[Path], damage: DamagedStore
    ) -> Tensors | None:
        """Writes the state file of a wanted version, by its digest, from the first whole part."""
        for part in parts:
            try:
                version = int(read_metadata(part).get(f"version.{group}", -1))
                if version not in wanted:
                    continue
                tensors = self._select_own(group, read_state(part, f"{group}/")[0])
                if self._write_tensors(group, version, tensors) != wanted[version]:
                    raise DamagedStore(f"{part}: damaged")
            except (DamagedStore, ClientError, ValueError) as error:
                log.warning("%s: %s", self._name, error)
                continue
            log.warning("%s: %s; taken from %s", self._name, damage, part)
            return tensors
        return None

    def _select_own(self, group: str, tensors: Tensors) -> Tensors:
        own = self._state.own(group)
        return {name: each for name, each in tensors.items() if int(name.split("/")[1]) in own}

    def _remake(
        self, group: str, task: MakeState | StepState, before: GroupValues | None
    ) -> GroupValues:
        version = before.version + 1 if before is not None else 0
        path = self._file(group, version)
        record = self._state.group(group).states.get(version)
        try:
            made = self._make(task, before)
        except (ClientError, PeerError, DamagedStore) as error:
            # The old cohort's sums failed; the cohort that is stepped now is not at fault.
            text = f"{self._name}: {path}: damaged, and cannot be made again: {error}"
            raise DamagedStore(text) from error
        if record is None or self._write(group, made) != record.state:
            raise DamagedStore(f"{self._name}: {path}: made again, it came out different")
        log.warning("%s: %s: made again", self._name, path)
        return made

    # --- files --------------------------------------------------------------------

    def _place(self, group: str, version: int) -> _Place:
        return group, self._state.group(group).epoch, version

    def _file(self, group: str, version: int) -> Path:
        return self._folders.state(group, version, self._state.group(group).epoch)

    def _parts(self) -> Iterator[Path]:
        return map(self._part, checkpoint_directories(self._folders.checkpoints))

    def _part(self, directory: Path) -> Path:
        return directory / f"{self._name}.safetensors"

    def _write(self, group: str, made: GroupValues) -> bytes:
        return self._write_tensors(group, made.version, to_tensors(group, made))

    def _write_tensors(self, group: str, version: int, tensors: Tensors) -> bytes:
        self._kept.pop(self._place(group, version), None)  # the old file is replaced
        return write_state(self._file(group, version), tensors, {"version": str(version)})


# --- tiers -------------------------------------------------------------------------


try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def nowhere() -> Iterator[Path]:
    return iter(())


@dataclass(frozen=True, slots=True)
class ShardFolders:
    """The folders of a shard: its states, and its parts of checkpoints.

    `initial` is the shard's own path or URL of the file of version 0; None: the plan's. `elsewhere`
    downloads the shard's parts of a store's checkpoints, newest first, and deletes each after its
    use; it raises DiskFailed.
    """

    states: Path
    checkpoints: Path
    elsewhere: Callable[[], Iterator[Path]] = nowhere
    initial: str | None = None

    def state(self, group: str, version: int, epoch: int) -> Path:
        """Returns the path of a version's file with the blocks of this placement."""
        name = f"{group}-{version:06d}" + (f".{epoch}" if epoch else "")
        return self.states / f"{name}.safetensors"

    def state_files(self, group: str) -> Iterator[tuple[Path, int, int]]:
        for path in self.states.glob(f"{group}-*.safetensors"):
            name, _, number = path.stem.rpartition("-")
            if name == group:
                version, epoch = map(int, [*number.split("."), "0"][:2])
                yield path, version, epoch


def _count_disk_reads() -> int:
    """Counts the disk reads of this thread; 0 where the system does not tell."""
    if resource is None:
        return 0
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_inblock


class Tiers:
    """Decides where versions lie and where the next one is made; counts waits for the disk.

    Args:
        folder: versions that are too long for memory are made in its file system.
        limit: without one all versions are in memory; with one none but the one being made.
    """

    def __init__(self, folder: Path, limit: Limit) -> None:
        self._limit = limit
        self._scratch = Scratch(folder)
        self._hits = self._waits = 0
        self._waited = 0.0

    @property
    def bounded(self) -> bool:
        return self._limit.memory is not None

    def allocate(self, size: int) -> Allocate:
        """Chooses where to make a version of so many bytes: in memory, or in a nameless file."""
        memory = self._limit.memory
        return in_memory if memory is None or size <= memory else self._scratch.vector

    @contextmanager
    def count_use(self) -> Iterator[None]:
        """Counts a use of a version as a hit, or as a wait for the disk."""
        reads, began = _count_disk_reads(), time.perf_counter()
        yield
        if _count_disk_reads() == reads:
            self._hits += 1
        else:
            self._waits += 1
            self._waited += time.perf_counter() - began

    def figures(self, held: int) -> tuple[Figure, ...]:
        if self._limit.memory is None:
            return ()
        known = {
            MEMORY: self._limit.memory,
            RESIDENT: held,
            HITS: self._hits,
            WAITS: self._waits,
            WAIT_SECONDS: self._waited,
        }
        return tuple(Figure(name, float(value)) for name, value in known.items())
