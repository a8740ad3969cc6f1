"""Tries whether a device makes the host's bits of a step, before a block is left to it.

As `device.bits` does for updates. What must not live here: what is done then
(`service.shard.devices`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from secureps.codec import delta
from secureps.codec.chain import Chain
from secureps.codec.grid import Grid
from secureps.config.optimizer import OptimizerSection
from secureps.crypto.sampling import public_stream
from secureps.device.bits import first_difference
from secureps.device.stepping import DeviceStep
from secureps.model.optimizer import (
    OPTIMIZERS,
    OptimizerState,
    Values,
    build_optimizer,
)

_VALUES = 10_007
_GRID = Grid(16, 0.7)
_WEIGHT = 1 << 44
"""Of a cohort whose sums are beyond the integers that float64 has."""
_STEPS = 3


@cache
def difference(device: torch.device) -> str:
    """What of a step a device does otherwise than the host; empty if nothing is."""
    return first_difference(_steps(device))


def _steps(device: torch.device) -> Iterator[tuple[str, bool]]:
    """Each step, and whether its bits are the same, of values of every size."""
    by, stream = DeviceStep(device), public_stream("secureps-step-bits")
    drawn = stream.words(_VALUES)
    sums = drawn.astype(np.int64) * (_WEIGHT * _GRID.levels >> 32)
    for shares, terms in ((Fraction(1), _WEIGHT), (Fraction(3, 1 << 16), 7)):
        mean = by.mean(_GRID, sums, shares, terms)
        yield "means", _same(mean.cpu().numpy(), _GRID.weighted_mean(sums, shares, terms))

    vectors = [_sized(stream.words(_VALUES)) for _ in range(_STEPS + 1)]
    code = Chain(3, True).block(_VALUES, lambda stage, count: public_stream(stage).words(count))
    sent = vectors[0][: code.sent]
    back = by.decoded(code, [torch.from_numpy(sent.copy()).to(device)])
    yield "decoding", _same(back.cpu().numpy(), code.decode(sent))

    for name in OPTIMIZERS:
        yield name, _same_steps(by, device, name, vectors)
    for bits in range(2, 9):
        here = delta.encode(vectors[0], vectors[1], bits)
        yield "differences", _same(by.codes(vectors[0], vectors[1], bits), here)


def _same_steps(by: DeviceStep, device: torch.device, name: str, vectors: list[Values]) -> bool:
    """Whether some steps of an optimizer end alike."""
    section = OptimizerSection(name=name, learning_rate=0.37)
    here, there = build_optimizer(section), build_optimizer(section, by.library)
    values, *updates = vectors
    state = here.init(values)
    for update in updates:
        made, after = by.apply(there, torch.from_numpy(update.copy()).to(device), values, state)
        values, state = here.apply(update, values, state)
        if not _same(made, values) or not _same_state(after, state):
            return False
    return True


def _same_state(found: OptimizerState, right: OptimizerState) -> bool:
    return (found.step, found.slots.keys()) == (right.step, right.slots.keys()) and all(
        _same(found.slots[name], slot) for name, slot in right.slots.items()
    )


def _same(found: NDArray[np.generic], right: NDArray[np.generic]) -> bool:
    return found.dtype == right.dtype and found.tobytes() == right.tobytes()


def _sized(drawn: NDArray[np.uint32]) -> Values:
    """Values of every size, those that are smaller than float32's normal ones among them."""
    whole = (drawn.astype(np.float64) / 2**32 - 0.5) * 10.0 ** (drawn % 50 - 42.0)
    return whole.astype(np.float32)
