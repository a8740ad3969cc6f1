"""Clips values where they lie, to the bits of `privacy.mechanism`.

A sum of squares is made in one order: of each PIECE values pairwise as NumPy adds them, and of
pieces exactly. NumPy halves a run until 128 values are left, adds these up in eight columns, and
the columns as ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) (Higham 1993, "The accuracy of floating
point summation"). Products and sums are operations of their own, so that none is fused. NumPy
itself adds what is left after the last whole piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from secureps.privacy.mechanism import PIECE, factor_within

TOGETHER = 1 << 20
"""Values that are worked on at a time, a multiple of PIECE: float64 of them are 8 MiB."""

_RUN = 128
"""Values that are added up in eight columns."""


def pieces(values: Tensor, each: int | None = None) -> Iterator[Tensor]:
    """Views of TOGETHER values, or of so many; the last may have fewer."""
    step = TOGETHER if each is None else each
    return (values[start : start + step] for start in range(0, values.numel(), step))


def divisor(value: float, like: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """A number to divide by, (1,), on a tensor's device.

    Torch divides by a number of the host's as it multiplies by its inverse, on some devices: that
    has other bits.
    """
    return torch.full((1,), value, dtype=dtype, device=like.device)


def furthest(values: Tensor) -> float:
    """How far from zero the furthest value is; 0 of none."""
    return max((float(each.abs().max()) for each in pieces(values)), default=0.0)


def clip_factor(parts: Callable[[], Iterable[Tensor]], bound: float) -> tuple[float, float]:
    """By what values are multiplied, and their norm: `privacy.mechanism.clip_factor`.

    Args:
        parts: float32, of a multiple of PIECE values but for the last; asked twice where once is
            too close.
        bound: C, finite and > 0.
    Raises:
        NotFinite, PlanRefused: as there.
    """

    def total() -> float:
        return math.fsum(each for part in parts() for each in sums_of_squares(part))

    def exact() -> float:
        """Once in 2^45: these squares come to the host."""
        squares = (
            piece.double().square().tolist() for part in parts() for piece in pieces(part, PIECE)
        )
        return math.fsum(each for piece in squares for each in piece)

    return factor_within(total, exact, bound)


def shrink(values: Tensor, factor: float) -> None:
    """Multiplies values, float32, in place, in float64, and rounds them towards zero."""
    for piece in pieces(values):
        scaled = piece.double() * factor
        piece.copy_(scaled)
        piece.view(torch.int32).sub_((piece.abs().double() > scaled.abs()).to(torch.int32))


def sums_of_squares(part: Tensor) -> list[float]:
    """Of each PIECE values, float32, the sum of their squares in float64."""
    whole = part.numel() // PIECE * PIECE
    sums = list[float]()
    if whole:
        squares = part[:whole].double().square()
        runs = _columns(squares.view(-1, PIECE // _RUN, _RUN // 8, 8))
        while runs.shape[1] > 1:
            runs = runs[:, 0::2] + runs[:, 1::2]
        sums += runs[:, 0].tolist()
    if whole < part.numel():
        rest = part[whole:].cpu().numpy()
        sums.append(float(np.sum(np.square(rest, dtype=np.float64))))
    return sums


def _columns(squares: Tensor) -> Tensor:
    """Sums of the last two dimensions, (..., rows, 8), row after row and then pairwise."""
    made = squares[..., 0, :]
    for row in range(1, squares.shape[-2]):
        made = made + squares[..., row, :]
    made = made[..., 0::2] + made[..., 1::2]
    made = made[..., 0::2] + made[..., 1::2]
    return made[..., 0] + made[..., 1]
