"""What a shard does with payloads: stores, adds, opens, averages, steps, writes state files.

Blocks are taken one at a time, so that memory does not grow with the number of members.
A state file that is damaged is made again from an older one and the sums that are kept;
what comes out must have the digest on record. What must not live here: decisions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_safetensors

from secureps.crypto.cipher import Cipher
from secureps.crypto.suite import cipher
from secureps.errors import DamagedStore, InternalError, Malformed
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import GroupVersion
from secureps.messages.requests import Figure, PutBlock, Telemetry
from secureps.messages.submission import FOUNDING, UPDATE
from secureps.model.optimizer import OptimizerState
from secureps.roles.shard import sum_key
from secureps.roles.shelf import Shelves
from secureps.roles.tasks import (
    MakeState,
    PartWritten,
    Prune,
    StateReady,
    StepState,
    SumCohort,
    SumsDamaged,
    SumsReady,
    Sweep,
    WritePart,
)
from secureps.service.shard_noise import ShardNoise
from secureps.store.checkpoint import checkpoint_path, read_state, tensor_name, write_state
from secureps.store.spool import Spool

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GroupValues:
    """A group's own blocks at one version: values and optimizer state by block."""

    version: int
    values: Mapping[int, Values]
    optimizer: Mapping[int, OptimizerState]


@dataclass(frozen=True, slots=True)
class ShardFolders:
    """Where a shard keeps files: its states, and its parts of checkpoints."""

    states: Path
    checkpoints: Path


class ShardHands:
    """The hands of one shard."""

    def __init__(
        self, name: str, shelves: Shelves, spool: Spool, folders: ShardFolders, noise: ShardNoise
    ) -> None:
        self._name = name
        self._shelves = shelves
        self._spool = spool
        self._folders = folders
        self._noise = noise
        self._newest: dict[str, dict[int, GroupValues]] = {}

    def seconds(self, task: object) -> float:
        return 0.0

    # --- payloads -----------------------------------------------------------------

    def keep(self, request: object, payload: bytes) -> None:
        """Stores a block that the machine wants, once its bytes are what the header says.

        Raises:
            Malformed: another length, another digest, or a coefficient out of range.
        """
        if not isinstance(request, PutBlock):
            raise Malformed(f"no payload is expected with a {type(request).__name__}")
        header = request.header
        if len(payload) != header.length:
            raise Malformed(f"{len(payload)} bytes came, the header announced {header.length}")
        if payload_digest(payload) != header.digest:
            raise Malformed("the payload does not have the digest of its header; send it again")
        slots = self._slots(header.group, header.block)
        if header.purpose == UPDATE:
            self._cipher().adder().check(slots, payload)
        elif header.purpose == FOUNDING:
            if not np.isfinite(np.frombuffer(payload, dtype="<f4")).all():
                raise Malformed("the founding model has a value that is not finite")
        else:
            sums = np.frombuffer(payload, dtype="<i8")
            if sums.min() < 0:
                raise Malformed("an opened sum is negative")
        self._spool.put(header.key, payload)

    def fetch(self, key: str) -> bytes:
        """A held ciphertext sum, or the values of a published block (float32 LE)."""
        kind, group, number, block = key.split("/")
        if kind == "sum":
            return self._spool.get(key)
        values = self._values(group, int(number)).values[int(block)]
        return values.astype("<f4").tobytes()

    # --- works --------------------------------------------------------------------

    def work(self, task: object) -> object:
        match task:
            case SumCohort():
                return self._sum(task)
            case MakeState(group, keys):
                return self._found(group, keys)
            case StepState():
                return self._step(task)
            case WritePart(number, versions):
                return self._write_part(number, versions)
            case Prune(keys, group, version, keep):
                self._prune(keys, group, version, keep)
            case Sweep(referenced):
                for key in self._spool.keys(""):
                    if not key.startswith("sum/") and key not in referenced:
                        self._spool.delete(key)
            case _:
                raise InternalError(f"a shard has no hands for a {type(task).__name__}")
        return None

    def _sum(self, task: SumCohort) -> SumsReady | SumsDamaged:
        began, cohort = time.perf_counter(), task.cohort
        damaged = tuple(
            member.id
            for member, keys in zip(cohort.members, task.keys, strict=True)
            if not all(self._whole(key) for key in keys)
        )
        if damaged:
            return SumsDamaged(cohort, damaged)
        adder, digests = self._cipher().adder(), []
        plan, layout = self._shelves.plan, self._shelves.layout.group(cohort.group)
        for place, block in enumerate(self._shelves.own(cohort.group)):
            total = adder.zero(self._slots(cohort.group, block))
            for member, keys in zip(cohort.members, task.keys, strict=True):
                adder.add(total, self._spool.get(keys[place]), member.weight)
            noise = self._noise.sealed(plan, layout, cohort, block)
            if noise is not None:
                adder.add(total, noise, 1)
            data = adder.total(total)
            self._spool.put(sum_key(cohort.group, cohort.number, block), data)
            digests.append(payload_digest(data))
        figures = (Figure("adding_seconds", time.perf_counter() - began),)
        report = Telemetry(self._name, cohort.group, cohort.version, figures)
        return SumsReady(cohort, tuple(digests), report)

    def _whole(self, key: str) -> bool:
        """Whether the payload that a header's key names is there, with its digest."""
        try:
            return payload_digest(self._spool.get(key)).hex() == key.rpartition("/")[2]
        except KeyError:
            return False

    def _found(self, group: str, keys: tuple[str, ...] | None) -> StateReady:
        own = self._shelves.own(group)
        if keys is not None:
            parts = [np.frombuffer(self._spool.get(key), dtype="<f4") for key in keys]
            values = {b: part.astype(np.float32) for b, part in zip(own, parts, strict=True)}
        else:
            flat = self._initial(group)
            layout = self._shelves.layout.group(group)
            values = {b: flat[slice(*layout.span(b))] for b in own}
        init = self._shelves.plan.optimizer(group).init
        made = GroupValues(0, values, {b: init(v) for b, v in values.items()})
        return self._ready(group, made, -1, None)

    def _initial(self, group: str) -> Values:
        plan = self._shelves.plan
        data = Path(plan.section.initial or "").read_bytes()
        if payload_digest(data).hex() != plan.initial_digest:
            raise DamagedStore(f"{plan.section.initial} is not the file that the run is founded on")
        return self._shelves.layout.group(group).flatten(load_safetensors(data))

    def _step(self, task: StepState) -> StateReady:
        began, cohort = time.perf_counter(), task.cohort
        before = self._values(cohort.group, cohort.version - 1)
        made = self._stepped(task, before)
        figures = (Figure("stepping_seconds", time.perf_counter() - began),)
        report = Telemetry(self._name, cohort.group, cohort.version, figures)
        return self._ready(cohort.group, made, cohort.number, report)

    def _stepped(self, task: StepState, before: GroupValues) -> GroupValues:
        """One version further: a pure function of the sums and the state before."""
        cohort, group = task.cohort, task.cohort.group
        plan, size = self._shelves.plan, self._shelves.layout.group(group).size
        grid, apply = plan.grid(group, size), plan.optimizer(group).apply
        terms = cohort.weight + plan.noisy_shards
        values: dict[int, Values] = {}
        states: dict[int, OptimizerState] = {}
        for place, block in enumerate(self._shelves.own(group)):
            sums = self._opened(task, place, block)
            plan.check_weight(group, cohort.weight, int(sums[0]))
            mean = grid.weighted_mean(sums[1:], int(sums[0]), terms)
            values[block], states[block] = apply(
                mean, before.values[block], before.optimizer[block]
            )
        return GroupValues(cohort.version, values, states)

    def _opened(self, task: StepState, place: int, block: int) -> NDArray[np.int64]:
        group = task.cohort.group
        if task.opened is not None:
            if not self._whole(task.opened[place]):
                raise DamagedStore(f"{self._name}: the opened sum of block {block} is damaged")
            opened = self._spool.get(task.opened[place])
            return np.frombuffer(opened, dtype="<i8").astype(np.int64)
        total = self._spool.get(sum_key(group, task.cohort.number, block))
        return self._cipher().opener(None).open(total, self._slots(group, block))

    # --- state files --------------------------------------------------------------

    def _ready(
        self, group: str, made: GroupValues, cohort: int, report: Telemetry | None
    ) -> StateReady:
        state = write_state(self._state_file(group, made.version), *_tensors(group, made))
        self._newest.setdefault(group, {})[made.version] = made
        digests = tuple(
            payload_digest(made.values[b].astype("<f4").tobytes()) for b in self._shelves.own(group)
        )
        return StateReady(group, made.version, cohort, digests, state, report)

    def _state_file(self, group: str, version: int) -> Path:
        return self._folders.states / f"{group}-{version:06d}.safetensors"

    def _values(self, group: str, version: int) -> GroupValues:
        """A version's values: from memory, from its file, or made again from an older one.

        Raises:
            DamagedStore: neither the file nor anything to make it from is intact.
        """
        known = self._newest.get(group, {}).get(version)
        if known is not None:
            return known
        record = self._shelves.shelf(group).states.get(version)
        if record is None:
            raise DamagedStore(f"{self._name}: nothing is on record of {group} version {version}")
        try:
            tensors, _ = read_state(self._state_file(group, version), record.state)
            values = _group_values(group, version, tensors)
        except DamagedStore as damage:
            values = self._again(group, version, damage)
            if write_state(self._state_file(group, version), *_tensors(group, values)) != (
                record.state
            ):
                raise DamagedStore(f"{damage}; made again, it came out different") from damage
        self._newest.setdefault(group, {})[version] = values
        return values

    def _again(self, group: str, version: int, damage: DamagedStore) -> GroupValues:
        task = self._shelves.step_to(group, version)
        if task is None:
            raise damage
        return self._stepped(task, self._values(group, version - 1))

    def _write_part(self, number: int, versions: tuple[GroupVersion, ...]) -> PartWritten:
        tensors: dict[str, NDArray[np.generic]] = {}
        for at in versions:
            if self._shelves.own(at.group):
                tensors |= _tensors(at.group, self._values(at.group, at.version))[0]
        path = checkpoint_path(self._folders.checkpoints, number) / f"{self._name}.safetensors"
        digest = write_state(path, tensors, {"shard": self._name})
        return PartWritten(number, path.name, path.stat().st_size, digest)

    def _prune(self, keys: tuple[str, ...], group: str, version: int, keep: int) -> None:
        for key in keys:
            self._spool.delete(key)
        if not group:
            return
        held = self._newest.get(group, {})
        for old in [v for v in held if v < version - 1]:
            del held[old]
        for path in self._folders.states.glob(f"{group}-*.safetensors"):
            if int(path.stem.rpartition("-")[2]) < keep:
                path.unlink(missing_ok=True)

    # --- small things -------------------------------------------------------------

    def _cipher(self) -> Cipher:
        return cipher(self._shelves.plan.cipher_parameters)

    def _slots(self, group: str, block: int) -> int:
        return self._shelves.layout.group(group).slots(block)


def _tensors(
    group: str, made: GroupValues
) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
    """The tensors and the metadata of a state file."""
    tensors: dict[str, NDArray[np.generic]] = {}
    for block, values in made.values.items():
        state = made.optimizer[block]
        tensors[tensor_name(group, block)] = values
        tensors[tensor_name(group, block, "step")] = np.array([state.step], dtype=np.int64)
        for slot, array in state.slots.items():
            tensors[tensor_name(group, block, slot)] = array
    return tensors, {"version": str(made.version)}


def _group_values(
    group: str, version: int, tensors: Mapping[str, NDArray[np.generic]]
) -> GroupValues:
    """What `_tensors` wrote."""
    values: dict[int, Values] = {}
    slots: dict[int, dict[str, Values]] = {}
    steps: dict[int, int] = {}
    for name, array in tensors.items():
        _, number, *slot = name.split("/")
        block = int(number)
        if not slot:
            values[block] = array.astype(np.float32)
        elif slot == ["step"]:
            steps[block] = int(array[0])
        else:
            slots.setdefault(block, {})[slot[0]] = array.astype(np.float32)
    optimizer = {b: OptimizerState(steps[b], slots.get(b, {})) for b in values}
    return GroupValues(version, values, optimizer)
