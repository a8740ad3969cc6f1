"""Clips, encodes and rounds values where they lie, to the bits of `privacy` and `codec`.

Support, rotation and rounding are gathers, additions and single operations of float64 in the order
that the host has them; places and signs are the `codec.chain.BlockCode`'s. A device without float64
(MPS) has none of it.

**Words.** The words of a stream, ChaCha20 (RFC 8439), are made on the device that uses them, in
operations of torch: additions of int32 wrap around, and a rotation is two shifts and a mask.
Nothing else is needed, so that every device makes the words that `crypto.sampling.Stream` makes on
the host.

**Norms.** Values are clipped where they lie, to the bits of `privacy.mechanism`. A sum of squares
is made in one order: of each PIECE values pairwise as NumPy adds them, and of pieces exactly. NumPy
halves a run until 128 values are left, adds these up in eight columns, and the columns as ((0 + 1)
+ (2 + 3)) + ((4 + 5) + (6 + 7)) (Higham 1993, "The accuracy of floating point summation"). Products
and sums are operations of their own, so that none is fused. NumPy itself adds what is left after
the last whole piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secureps.codec.chain import BlockCode
from secureps.codec.grid import Grid
from secureps.codec.rotate import sections
from secureps.crypto.sampling import Stream
from secureps.errors import NotFinite
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


BLOCK = 16
"""Words of a block."""


def rotated_left(x: Tensor, bits: int) -> Tensor:
    """x, int32 of any shape, with its bits moved round to the left."""
    # `>>` of a signed number brings its sign along: the mask takes that away again
    return (x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))


def words(stream: Stream, first: int, count: int, device: torch.device) -> Tensor:
    """Words first to first + count of a stream, counted from its beginning.

    Returns:
        int32 (count,), the bits of the stream's uint32, on the device; it takes the memory of three
        such tensors meanwhile.
    Raises:
        InternalError: beyond the end of the stream.
    """
    skipped = first % BLOCK
    blocks = -(-(skipped + count) // BLOCK)
    given = torch.from_numpy(stream.state(first, count).astype("int64")).to(device)
    start = given.to(torch.int32).reshape(4, 4, 1).repeat(1, 1, blocks)
    # the counter is below 2^32, as `state` sees to
    start[3, 0] = (given[12] + torch.arange(blocks, device=device)).to(torch.int32)
    a, b, c, d = start.clone()
    for _ in range(10):
        a, b, c, d = _round(a, b, c, d)  # of columns, then of diagonals
        a, b, c, d = _round(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    made = torch.stack((a, b, c, d)) + start
    return made.reshape(BLOCK, blocks).t().reshape(-1)[skipped : skipped + count]


def _round(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds beside one another, of rows of a state, each (4, blocks)."""
    return _half_round(*_half_round(a, b, c, d, 16, 12), 8, 7)


def _half_round(
    a: Tensor, b: Tensor, c: Tensor, d: Tensor, left_d: int, left_b: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half of a quarter round, by how far it turns d and b to the left.

    Args:
        a, b, c, d: int32, of one shape.
    """
    a = a + b
    d = rotated_left(d ^ a, left_d)
    c = c + d
    b = rotated_left(b ^ c, left_b)
    return a, b, c, d


def unsigned(made: Tensor) -> Tensor:
    """The same words as they count, int64 in [0, 2^32)."""
    return made.to(torch.int64) & 0xFFFFFFFF


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
