"""Encodes values where they lie, and rounds them to a grid, to the bits of `codec`.

Support, rotation and rounding are gathers, additions and single operations of float64 in the order
that the host has them; places and signs are the `codec.chain.BlockCode`'s. A device without float64
(MPS) has none of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secureps.codec.chain import BlockCode
from secureps.codec.grid import Grid
from secureps.codec.rotate import sections
from secureps.device.norms import divisor
from secureps.device.words import unsigned
from secureps.errors import NotFinite

_COLUMNS = 1 << 10
"""Pieces of a rotation at a time: of 1024 values each they are 8 MiB."""


def encode(code: BlockCode, x: Tensor) -> Tensor:
    """What of a block is rounded, and sent: `BlockCode.encode`.

    Args:
        x: float32 (values,).
    Returns:
        float64 (sent,), or x itself where there is nothing to do.
    """
    if code.places is None and code.signs is None:
        return x
    taken = (x if code.places is None else x[_placed(code.places, x)]).double()
    if code.signs is not None:
        turned = taken[: code.signs.size]
        turned *= _placed(code.signs, x)
        _transform(turned)
    return taken


def decode(code: BlockCode, mean: Tensor) -> Tensor:
    """What an encoding stands for: float32 (values,), `BlockCode.decode`.

    Args:
        mean: float64 (sent,); it is changed.
    """
    if code.signs is not None:
        turned = mean[: code.signs.size]
        _transform(turned)
        turned *= _placed(code.signs, mean)
    if code.places is None:
        return mean.float()
    if code.factors is not None:
        mean *= _placed(code.factors, mean)
    whole = torch.zeros(code.values, dtype=torch.float32, device=mean.device)
    whole[_placed(code.places, mean)] = mean.float()
    return whole


def round_to_grid(x: Tensor, words: Tensor, grid: Grid, share: float) -> Tensor:
    """The integers of values, int32 (n,): `Grid.encode`.

    Args:
        x: float32 or float64 (n,).
        words: int32 (n,), the bits of as many uint32.
    Raises:
        NotFinite: x has a NaN or an infinity.
    """
    most = float(grid.most)
    value = x.double() * share
    if not bool(torch.isfinite(value).all()):
        raise NotFinite("an update has a value that is not finite")
    value = value.clamp_(-grid.range, grid.range) / divisor(grid.range, x) * most
    steps = rounded(value, words).clamp_(-most, most)
    return (steps + most).to(torch.int32)


def rounded(value: Tensor, words: Tensor) -> Tensor:
    """floor(value) + [word < frac(value) 2^32], float64 (n,).

    Args:
        value: float64 (n,), finite; words: int32 (n,), the bits of as many uint32.
    """
    floor = value.floor()
    return floor + (unsigned(words).double() < (value - floor) * 2.0**32).double()


def _placed(array: NDArray[Any], like: Tensor) -> Tensor:
    """An array where a tensor lies."""
    return torch.from_numpy(np.array(array)).to(like.device)


def _transform(x: Tensor) -> None:
    """H x / 2^k of every piece, in place: `codec.rotate`, butterfly by butterfly."""
    for where, size in sections(x.numel()):
        table = x[where].view(size, -1)
        for first in range(0, table.shape[1], _COLUMNS):
            columns = table[:, first : first + _COLUMNS]
            part, half = columns.contiguous(), 1
            while half < size:
                pairs = part.view(size // (2 * half), 2, half, -1)
                difference = pairs[:, 0] - pairs[:, 1]
                pairs[:, 0] += pairs[:, 1]
                pairs[:, 1] = difference
                half *= 2
            columns.copy_(part * 0.5 ** (size.bit_length() // 2))
