"""Makes an update on the device where its model was trained, with the same bits as on the host.

The pulled model is copied to the device, subtracted from the trained one, and clipped in place.
Integers come to the host block by block. The device needs memory for the trained model, the values
of one group, TOGETHER values in float64 and one encoded block. If its memory does not suffice, the
host makes the update. Under client-level privacy the host always makes it.

All arithmetic has the host's order and precision. `first_difference` tests a device before it gets
an update: the device may lack float64 (MPS), or not round as IEEE 754 says.

**Words.** The device computes ChaCha20 (RFC 8439) by additions of int32, which wrap around, and by
rotations, which are two shifts and a mask.

**Norms.** Squares are added up in the host's order: those of each PIECE values pairwise, as NumPy
does, and the sums of pieces exactly. NumPy halves a run until 128 values are left, adds these up in
eight columns, and the columns as ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) (Higham 1993, "The
accuracy of floating point summation"). Products and sums are separate operations, so that torch
fuses none of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secureps.client.trainer import HeldTensor
from secureps.client.update import (
    EXACT,
    Integers,
    Trained,
    Update,
    overlapping_slices,
    overlaps,
    subtract,
)
from secureps.codec.chain import BlockCode, Chain, sections
from secureps.codec.grid import Grid, MovingRange
from secureps.crypto.sampling import Stream, public_stream
from secureps.errors import NotFinite
from secureps.model.layout import SCALE
from secureps.policy.plan import scale_mover
from secureps.privacy import mechanism as host
from secureps.privacy.mechanism import PIECE, factor_within
from secureps.service.logs import tell
from secureps.wording import one_line


def device_update(made: Trained, device: torch.device) -> Update | None:
    """Makes the clipped update of a group on the device that has some of its tensors.

    Returns None, and logs why, if the device's memory does not suffice, or its bits differ from the
    host's. Raises NotFinite if a value is not finite.
    """
    with within_memory(made, device):
        if other := first_difference(device):
            text = f"{device} makes other bits than the host ({other})"
            tell(made.party, "Note", f"{text}: updates are made on the host")
            return None
        values = _subtract_published(made, device)
        if made.kept is not None:
            for at, piece in _copy_pieces(made.kept):
                values[at : at + piece.numel()] += piece.to(device)
        return _clip(made, values)
    return None


@contextmanager
def within_memory(made: Trained, device: torch.device) -> Iterator[None]:
    """Logs that a device's memory does not suffice for an update, which the host then makes."""
    try:
        yield
    except torch.OutOfMemoryError:
        text = f"{made.plan.head(made.layout.name)}{device} has no memory left for the update"
        tell(made.party, "Note", f"{text}: this update is made on the host, with the same bits")


@dataclass(frozen=True, eq=False)
class DeviceVector:
    """The values of an update in a device's memory, float32 (n,), which nothing else uses."""

    values: Tensor

    def part(self, first: int, last: int) -> NDArray[np.float32]:
        """Copies values [first, last) to the host."""
        made: NDArray[np.float32] = self.values[first:last].to("cpu", copy=True).numpy()
        return made

    def round_block(
        self,
        code: BlockCode,
        place: tuple[int, int],
        grid: Grid,
        share: float,
        stream: Stream,
        start: int,
    ) -> Integers:
        """Rounds the block whose values are at a place, by the words of a stream from `start` on.

        Raises NotFinite if a value is not finite.
        """
        encoded, made = encode(code, self.values[slice(*place)]), list[Integers]()
        for at, piece in _number_pieces(encoded):
            drawn = words(stream, start + at, piece.numel(), piece.device)
            made.append(_to_host(round_to_grid(piece, drawn, grid, share), grid.levels))
        return np.concatenate(made)

    def subtract(
        self, code: BlockCode, place: tuple[int, int], integers: Integers, step: float
    ) -> None:
        """Subtracts what a block's integers, times a step, decode to."""
        values = self.values[slice(*place)]
        carried = torch.from_numpy(integers.astype(np.int32)).to(values.device)
        values -= decode(code, carried.double() * step)


def _subtract_published(made: Trained, device: torch.device) -> Tensor:
    """Like `client.update.difference`, but on a device, where it can: float32 (size,).

    Tensors of other dtypes, and tensors that are elsewhere, are subtracted on the host.
    """
    layout, published = made.layout, made.published
    values = torch.empty(layout.size, dtype=torch.float32, device=device)
    ends = [0, *itertools.accumulate(block.size for block in published)]
    rows = slice(None) if layout.rows is None else slice(*layout.rows)
    for spec, (_, part) in zip(layout.tensors, layout.parts(), strict=True):
        if spec == SCALE:
            values[part] = 0
            continue
        now = made.model[spec.name]
        held = isinstance(now, HeldTensor) and now.tensor.device == device
        if held and spec.dtype in EXACT:
            for block, first, last in overlaps(ends, part.start, part.stop):
                was = published[block][first - ends[block] : last - ends[block]]
                for at, piece in _copy_pieces(was):
                    values[first + at : first + at + piece.numel()].copy_(piece)
            there = (now.tensor[rows] if spec.shape else now.tensor).detach().reshape(-1)
            for before, after in zip(pieces(values[part]), pieces(there), strict=True):
                torch.sub(after.float(), before, out=before)
            continue
        array = np.asarray(now)
        flat = (array[rows] if spec.shape else array).reshape(-1)
        for block, first, last in overlaps(ends, part.start, part.stop):
            own = np.empty(last - first, np.float32)
            was = published[block][first - ends[block] : last - ends[block]]
            subtract(spec, flat[first - part.start : last - part.start], was, own)
            values[first:last].copy_(torch.from_numpy(own))
    return values


def _clip(made: Trained, values: Tensor) -> Update:
    plan, layout, scale = made.plan, made.layout, made.scale
    mover, clip = scale_mover(plan, layout.name, layout.sent), plan.group(layout.name).clip
    vector = DeviceVector(values)
    statistics = [part for name, part in layout.parts() if made.kinds.get(name) == "statistics"]
    if statistics and not all(bool(torch.isfinite(piece).all()) for piece in pieces(values)):
        raise NotFinite("an update has a value that is not a finite float32")
    far = largest_magnitude(values)

    def counted() -> Iterator[Tensor]:
        for at, piece in _number_pieces(values):
            found = list(overlapping_slices(statistics, at, at + piece.numel()))
            own = piece.clone() if found else piece
            for part in found:
                own[part] = 0
            yield own

    factor, norm = clip_factor(counted, clip)
    if factor < 1:
        as_they_were = [(part, values[part].clone()) for part in statistics]
        shrink(values, factor)
        for part, was in as_they_were:
            values[part] = was
    known = (far, min(norm, clip), vector.part, vector)
    update = Update(layout.size, *known, norm if norm > clip else None)
    if isinstance(mover, MovingRange) and scale is not None:
        by = divisor(float(np.float32(scale)), values, torch.float32)
        for piece in pieces(values):
            piece /= by
        values[-1] = float(mover.encode_length(update.norm, scale))
    return update


def _copy_pieces(array: NDArray[np.float32]) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, array.size, TOGETHER):
        yield start, torch.from_numpy(np.array(array[start : start + TOGETHER], np.float32))


def _number_pieces(values: Tensor) -> Iterator[tuple[int, Tensor]]:
    return zip(itertools.count(0, TOGETHER), pieces(values), strict=False)


def _to_host(integers: Tensor, levels: int) -> Integers:
    if levels < 1 << 16:
        return integers.to(torch.int16).cpu().numpy().view(np.uint16)
    made: Integers = integers.to(torch.int32).cpu().numpy()
    return made


# --- the arithmetic of `privacy` and `codec`, in the host's order and precision ---------------

TOGETHER = 1 << 20
"""Values that are processed at a time, a multiple of PIECE: 8 MiB as float64."""

_RUN = 128
"""Number of values that NumPy adds up in eight columns."""

BLOCK = 16
"""The number of words in a block of ChaCha20."""

_COLUMNS = 1 << 10
"""Pieces that are rotated at a time: 8 MiB where each has 1024 values."""


def pieces(values: Tensor, each: int | None = None) -> Iterator[Tensor]:
    """Yields views of `each` values (None: TOGETHER); the last may have fewer."""
    step = TOGETHER if each is None else each
    return (values[start : start + step] for start in range(0, values.numel(), step))


def divisor(value: float, like: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Puts a divisor on a device: some devices multiply by the inverse of a host's number."""
    return torch.full((1,), value, dtype=dtype, device=like.device)


# --- norms and clips -----------------------------------------------------------------


def largest_magnitude(values: Tensor) -> float:
    """The largest distance of a value from zero; 0 of none."""
    return max((float(each.abs().max()) for each in pieces(values)), default=0.0)


def clip_factor(parts: Callable[[], Iterable[Tensor]], bound: float) -> tuple[float, float]:
    """Like `privacy.mechanism.clip_factor`, with the same result.

    `parts` yields float32 tensors, all but the last a multiple of PIECE long. It is called a second
    time if the norm is too close to the bound to decide.
    """

    def total() -> float:
        return math.fsum(each for part in parts() for each in sums_of_squares(part))

    def exact() -> float:
        """Adds up on the host; needed about once in 2^45 updates."""
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
    """Adds up the squares of each PIECE float32 values, in float64."""
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
    made = squares[..., 0, :]
    for row in range(1, squares.shape[-2]):
        made = made + squares[..., row, :]
    made = made[..., 0::2] + made[..., 1::2]
    made = made[..., 0::2] + made[..., 1::2]
    return made[..., 0] + made[..., 1]


# --- words ---------------------------------------------------------------------------


def rotate_left(x: Tensor, bits: int) -> Tensor:
    # `>>` of a signed number fills with its sign, which the mask removes
    return (x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))


def words(stream: Stream, first: int, count: int, device: torch.device) -> Tensor:
    """Computes words [first, first + count) of a stream, int32; InternalError beyond its end."""
    skipped = first % BLOCK
    blocks = -(-(skipped + count) // BLOCK)
    given = torch.from_numpy(stream.state(first, count).astype("int64")).to(device)
    start = given.to(torch.int32).reshape(4, 4, 1).repeat(1, 1, blocks)
    # `state` ensures that the counter stays below 2^32
    start[3, 0] = (given[12] + torch.arange(blocks, device=device)).to(torch.int32)
    a, b, c, d = start.clone()
    for _ in range(10):
        a, b, c, d = _round(a, b, c, d)  # of columns, then of diagonals
        a, b, c, d = _round(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    made = torch.stack((a, b, c, d)) + start
    return made.reshape(BLOCK, blocks).t().reshape(-1)[skipped : skipped + count]


def _round(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _half_round(*_half_round(a, b, c, d, 16, 12), 8, 7)


def _half_round(
    a: Tensor, b: Tensor, c: Tensor, d: Tensor, left_d: int, left_b: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = a + b
    d = rotate_left(d ^ a, left_d)
    c = c + d
    b = rotate_left(b ^ c, left_b)
    return a, b, c, d


def to_unsigned(made: Tensor) -> Tensor:
    """Converts words to unsigned numbers, int64 in [0, 2^32)."""
    return made.to(torch.int64) & 0xFFFFFFFF


# --- encoding and rounding -------------------------------------------------------------


def encode(code: BlockCode, x: Tensor) -> Tensor:
    """`BlockCode.encode` on the device: float32 (values,) -> float64 (sent,), or x itself."""
    if code.places is None and code.signs is None:
        return x
    taken = (x if code.places is None else x[_like(code.places, x)]).double()
    if code.signs is not None:
        turned = taken[: code.signs.size]
        turned *= _like(code.signs, x)
        _transform(turned)
    return taken


def decode(code: BlockCode, mean: Tensor) -> Tensor:
    """`BlockCode.decode` on the device: float64 (sent,), overwritten, -> float32 (values,)."""
    if code.signs is not None:
        turned = mean[: code.signs.size]
        _transform(turned)
        turned *= _like(code.signs, mean)
    if code.places is None:
        return mean.float()
    if code.factors is not None:
        mean *= _like(code.factors, mean)
    whole = torch.zeros(code.values, dtype=torch.float32, device=mean.device)
    whole[_like(code.places, mean)] = mean.float()
    return whole


def round_to_grid(x: Tensor, words: Tensor, grid: Grid, share: float) -> Tensor:
    """`Grid.encode` on the device, int32 (n,); words are int32 (n,), bit patterns of uint32."""
    most = float(grid.most)
    value = x.double() * share
    if not bool(torch.isfinite(value).all()):
        raise NotFinite("an update has a value that is not finite")
    value = value.clamp_(-grid.range, grid.range) / divisor(grid.range, x) * most
    floor = value.floor()
    up = to_unsigned(words).double() < (value - floor) * 2.0**32
    return ((floor + up.double()).clamp_(-most, most) + most).to(torch.int32)


def _like(array: NDArray[Any], like: Tensor) -> Tensor:
    return torch.from_numpy(np.array(array)).to(like.device)


def _transform(x: Tensor) -> None:
    """H x / 2^k of every piece, in place, butterfly by butterfly."""
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


# --- whether a device makes the same bits ------------------------------------------------

_TRIED = PIECE + 4321
_TRIED_GRID = Grid(16, 0.7)


@cache
def first_difference(device: torch.device) -> str:
    """Names the first step of an update in which a device's bits differ from the host's.

    If the device cannot take a step, it returns why. Empty if all bits are the same.
    """
    try:
        return next((step for step, same in _steps(device) if not same), "")
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError) as error:
        # an empty text would mean that all bits are the same
        return one_line(error, lines=1) or type(error).__name__


def _steps(device: torch.device) -> Iterator[tuple[str, bool]]:
    """Yields for each step, tried on values of every size, whether its bits are the host's."""
    stream = public_stream("secureps-bits")
    drawn = stream.at(5).words(_TRIED)
    there = words(stream, 5, _TRIED, device)
    yield "words", np.array_equal(there.cpu().numpy().view(np.uint32), drawn)

    whole = (drawn.astype(np.float64) / 2**32 - 0.5) * 10.0 ** (drawn % 30 - 25.0)
    x = whole.astype(np.float32)
    values = torch.from_numpy(x.copy()).to(device)
    factor, norm = clip_factor(lambda: [values], 3.0)
    here_too = host.clip_factor(lambda: np.split(x, [PIECE]), 3.0)
    yield "norms", (factor, norm) == here_too
    shrink(values, factor)
    host.shrink(x, factor)
    yield "clips", np.array_equal(values.cpu().numpy(), x)
    quotient = values / divisor(0.37, values, torch.float32)
    yield "quotients", np.array_equal(quotient.cpu().numpy(), x / np.float32(0.37))

    code = Chain(3, True).block(_TRIED, lambda stage, count: public_stream(stage).words(count))
    here, encoded = code.encode(x), encode(code, values)
    yield "rotations", np.array_equal(encoded.cpu().numpy(), here)
    back = decode(code, encoded.clone()).cpu().numpy()
    yield "decoding", np.array_equal(back, code.decode(here))
    steps = round_to_grid(encoded, there[: code.sent], _TRIED_GRID, 0.3).cpu().numpy()
    yield "rounding", np.array_equal(steps, _TRIED_GRID.encode(here, drawn[: code.sent], 0.3))
