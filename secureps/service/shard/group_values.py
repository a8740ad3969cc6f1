"""A group's own blocks at one version, and as the tensors of a state file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secureps.messages.encoding import payload_digest
from secureps.model.optimizer import OptimizerState, Values
from secureps.policy.block_deltas import Codes
from secureps.store.checkpoint import Tensors, tensor_name


@dataclass(frozen=True, slots=True)
class GroupValues:
    """A group's own blocks at one version: values and optimizer state by block.

    `codes` are the differences from the version before, where clients pull those. `mapped` arrays
    lie in a file, and are read-only.
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
"""Makes a float32 vector of so many values, whatever they are."""


def in_memory(values: int) -> Values:
    return np.empty(values, np.float32)


def laid_out(sizes: Mapping[int, int], allocate: Allocate = in_memory) -> dict[int, Values]:
    """Makes vectors of these sizes, one after another: of much memory pages are huge."""
    whole, made, start = allocate(sum(sizes.values())), dict[int, Values](), 0
    for block, size in sizes.items():
        made[block] = whole[start : start + size]
        start += size
    return made


def published(values: Values) -> memoryview:
    """The bytes of a block that clients pull, and that have its digest: float32 LE."""
    return values.astype("<f4", copy=False).view(np.uint8).data.toreadonly()


def digest_of(values: Values) -> bytes:
    """The digest of a block as it is published."""
    return payload_digest(published(values))


def together(version: int, parts: Iterable[GroupValues]) -> GroupValues:
    """Joins blocks of a version; of a block that is in several parts the last one counts."""
    every = tuple(parts)
    return GroupValues(
        version,
        {block: each for part in every for block, each in part.values.items()},
        {block: each for part in every for block, each in part.optimizer.items()},
        {block: each for part in every for block, each in part.codes.items()},
    )


def only(made: GroupValues, own: Iterable[int]) -> GroupValues:
    """Takes these blocks, in their order."""
    blocks = tuple(own)
    return GroupValues(
        made.version,
        {block: made.values[block] for block in blocks},
        {block: made.optimizer[block] for block in blocks},
        {block: made.codes[block] for block in blocks if block in made.codes},
    )


def to_tensors(group: str, made: GroupValues) -> dict[str, NDArray[np.generic]]:
    """The tensors of a state file."""
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
    """Reads the tensors that `to_tensors` made; a float32 is no copy."""
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
