"""Tries whether a device makes the host's bits, before an update is left to it.

A device may lack float64 (MPS), or round otherwise than IEEE 754 says; whoever builds one, or torch
for it, decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch

from secureps.codec.chain import Chain
from secureps.codec.grid import Grid
from secureps.crypto.sampling import public_stream
from secureps.device.encoding import (
    clip_factor,
    decode,
    divisor,
    encode,
    round_to_grid,
    shrink,
    words,
)
from secureps.device.noise import DeviceSkellam
from secureps.privacy import mechanism
from secureps.privacy.skellam import Skellam
from secureps.wording import one_line

_VALUES = mechanism.PIECE + 4321
_GRID = Grid(16, 0.7)
_VARIANCE = 1000.0


@cache
def difference(device: torch.device) -> str:
    """What of an update a device does otherwise than the host; empty if nothing is."""
    return first_difference(_steps(device))


def first_difference(steps: Iterator[tuple[str, bool]]) -> str:
    """The name of the first step with other bits, or why it cannot be done; empty: none has."""
    try:
        return next((step for step, same in steps if not same), "")
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return one_line(error, lines=1) or type(error).__name__  # empty: all bits are the same


def _steps(device: torch.device) -> Iterator[tuple[str, bool]]:
    """Each step, and whether its bits are the same, of values of every size."""
    stream = public_stream("secureps-bits")
    drawn = stream.at(5).words(_VALUES)
    there = words(stream, 5, _VALUES, device)
    yield "words", np.array_equal(there.cpu().numpy().view(np.uint32), drawn)

    whole = (drawn.astype(np.float64) / 2**32 - 0.5) * 10.0 ** (drawn % 30 - 25.0)
    x = whole.astype(np.float32)
    values = torch.from_numpy(x.copy()).to(device)
    factor, norm = clip_factor(lambda: [values], 3.0)
    yield (
        "norms",
        (factor, norm) == mechanism.clip_factor(lambda: np.split(x, [mechanism.PIECE]), 3.0),
    )
    shrink(values, factor)
    mechanism.shrink(x, factor)
    yield "clips", np.array_equal(values.cpu().numpy(), x)
    quotient = values / divisor(0.37, values, torch.float32)
    yield "quotients", np.array_equal(quotient.cpu().numpy(), x / np.float32(0.37))

    code = Chain(3, True).block(_VALUES, lambda stage, count: public_stream(stage).words(count))
    here, encoded = code.encode(x), encode(code, values)
    yield "rotations", np.array_equal(encoded.cpu().numpy(), here)
    back = decode(code, encoded.clone()).cpu().numpy()
    yield "decoding", np.array_equal(back, code.decode(here))
    steps = round_to_grid(encoded, there[: code.sent], _GRID, 0.3).cpu().numpy()
    yield "rounding", np.array_equal(steps, _GRID.encode(here, drawn[: code.sent], 0.3))

    sampler = Skellam(_VARIANCE)
    noise = DeviceSkellam(sampler, stream, device).next(1000).cpu().numpy()
    yield "noise", np.array_equal(noise, sampler.sample(1000, stream.at(0).words))
