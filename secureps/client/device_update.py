"""Makes an update on the device where its model was trained, with the same bits as on the host.

The pulled model is copied to the device, subtracted from the trained one, and clipped in place.
Only integers come to the host, block by block. The device needs memory for the trained model, the
values of one group, `device.encoding.TOGETHER` values in float64 and one encoded block. If its
memory does not suffice, the host makes the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

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
    Words,
    overlapping_slices,
    overlaps,
    subtract,
)
from secureps.codec.chain import BlockCode
from secureps.codec.grid import Grid, MovingRange
from secureps.crypto.sampling import Stream
from secureps.device.encoding import (
    TOGETHER,
    DeviceRounding,
    DeviceSkellam,
    clip_factor,
    decode,
    divisor,
    encode,
    first_difference,
    largest_magnitude,
    pieces,
    round_to_grid,
    shrink,
    words,
)
from secureps.errors import NotFinite
from secureps.model.layout import SCALE
from secureps.policy.plan import scale_mover
from secureps.privacy.client_level import AdaptiveClip, ClientMechanism
from secureps.privacy.mechanism import PIECE
from secureps.service.logs import tell

Made = TypeVar("Made")


def device_update(made: Trained, device: torch.device) -> Update | None:
    """Makes the clipped update of a group on the device that has some of its tensors.

    Returns None, and logs why, if the device's memory does not suffice, or its bits differ from the
    host's. Raises NotFinite if a value is not finite.
    """
    try:
        if other := first_difference(device):
            text = f"{device} makes other bits than the host ({other})"
            tell(made.party, "Note", f"{text}: updates are made on the host")
            return None
        values = _subtract_published(made, device)
        if made.kept is not None:
            for at, piece in _copy_pieces(made.kept):
                values[at : at + piece.numel()] += piece.to(device)
        return _clip(made, values)
    except torch.OutOfMemoryError:
        pass
    text = f"{made.plan.head(made.layout.name)}{_no_memory(device)}"
    tell(made.party, "Note", f"{text}: this update is made on the host, with the same bits")
    return None


def _no_memory(device: torch.device) -> str:
    return f"{device} has no memory left for the update"


class DeviceVector:
    """The values of an update in a device's memory, or on the host once the device was full.

    Args:
        where: the beginning of log lines.
        values: float32 (n,), which nothing else uses.
    """

    def __init__(self, party: str, where: str, values: Tensor) -> None:
        self._party, self._where = party, where
        self._values: Tensor | None = values
        self._host: NDArray[np.float32] | None = None

    def part(self, first: int, last: int) -> NDArray[np.float32]:
        """Returns values [first, last) on the host; a view if all values are there."""
        if self._host is not None:
            return self._host[first:last]
        made: NDArray[np.float32] = self._there[first:last].to("cpu", copy=True).numpy()
        return made

    @property
    def _there(self) -> Tensor:
        assert self._values is not None, "values have gone to the host"
        return self._values

    def attempt(self, action: Callable[[], Made]) -> Made | None:
        """Performs an action on the device; returns None if its memory does not suffice.

        The values then move to the host, and all later attempts return None.
        """
        if self._values is None:
            return None
        try:
            return action()
        except torch.OutOfMemoryError:
            pass  # continue outside: the traceback keeps the action's tensors in memory
        text = f"{self._where}{_no_memory(self._there.device)}"
        tell(self._party, "Note", f"{text}: the rest of it is made on the host, with the same bits")
        self._host, self._values = self.part(0, self._values.numel()), None
        return None

    def round_block(
        self, code: BlockCode, place: tuple[int, int], grid: Grid, share: float, words_at: Words
    ) -> Integers:
        """Rounds the block whose values are at a place; NotFinite if a value is not finite."""
        stream, start = words_at
        encoded, made = encode(code, self._there[slice(*place)]), list[Integers]()
        for at, piece in _number_pieces(encoded):
            drawn = words(stream, start + at, piece.numel(), piece.device)
            made.append(_to_host(round_to_grid(piece, drawn, grid, share), grid.levels))
        return np.concatenate(made)

    def round_and_noise(
        self,
        mechanism: ClientMechanism,
        blocks: Sequence[tuple[BlockCode, tuple[int, int]]],
        coded: bool,
        stream: Stream,
        hidden: Callable[[Iterator[Integers]], Stream],
    ) -> list[Integers]:
        """Rounds all blocks, and adds this client's noise.

        `coded` tells whether a codec may have lengthened the values; `hidden` returns the words of
        the noise for the rounded integers of all blocks.
        """

        def encoded(code: BlockCode, place: tuple[int, int]) -> Tensor:
            return encode(code, self._there[slice(*place)]).float()

        factor = 1.0
        if coded:
            every = partial(map, encoded, *zip(*blocks, strict=True))
            factor, _ = clip_factor(lambda: _align(every()), mechanism.clip)

        def block(code: BlockCode, place: tuple[int, int]) -> Tensor:
            if not coded:
                return self._there[slice(*place)]
            made = encoded(code, place)
            if factor < 1:
                shrink(made, factor)
            return made

        starts = [0, *itertools.accumulate(code.sent for code, _ in blocks)]
        makers = [partial(block, *each) for each in blocks]
        rounding = DeviceRounding(mechanism, makers, starts, stream)
        own, most = range(len(blocks)), mechanism.most
        rounded = ([z.to(torch.int32).cpu().numpy() for z in rounding.steps(k)] for k in own)
        words_of_noise = hidden(map(np.concatenate, rounded))
        noise = None
        if mechanism.placement != "aggregator":
            noise = DeviceSkellam(mechanism.sampler, words_of_noise, self._there.device)

        def made(z: Tensor) -> Integers:
            if noise is not None:
                z = z + noise.next(z.numel())
            return _to_host(z.clamp(-most, most) + most, 2 * most)

        return [np.concatenate([made(z) for z in rounding.steps(k)]) for k in own]

    def subtract(
        self, code: BlockCode, place: tuple[int, int], integers: Integers, step: float
    ) -> bool:
        """Subtracts what a block's integers, times a step, decode to."""
        values = self._there[slice(*place)]
        carried = torch.from_numpy(integers.astype(np.int32)).to(values.device)
        values -= decode(code, carried.double() * step)
        return True


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
    party, plan, layout, scale = made.party, made.plan, made.layout, made.scale
    mover, clip = scale_mover(plan, layout.name, layout.sent), plan.group(layout.name).clip
    where = plan.head(layout.name)
    vector = DeviceVector(party, where, values)
    if isinstance(mover, AdaptiveClip) and scale is not None:
        by = divisor(mover.check(scale), values)
        for piece in pieces(values):
            piece.copy_(piece.double() / by)
        factor, norm = clip_factor(lambda: pieces(values), mover.clip)
        if factor < 1:
            shrink(values, factor)
        values[-1] = mover.indicator if norm <= mover.clip else -mover.indicator
        far = largest_magnitude(values)
        return Update(layout.size, far, mover.norm, vector.part, vector)
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


def _align(parts: Iterator[Tensor]) -> Iterator[Tensor]:
    """Cuts values into pieces of PIECE values; only the last may have fewer."""
    left: Tensor | None = None
    for part in parts:
        whole = part if left is None else torch.cat((left, part))
        cut = whole.numel() // PIECE * PIECE
        yield from pieces(whole[:cut]) if cut else ()
        left = whole[cut:]
    if left is not None and left.numel():
        yield left


def _to_host(integers: Tensor, levels: int) -> Integers:
    if levels < 1 << 16:
        return integers.to(torch.int16).cpu().numpy().view(np.uint16)
    made: Integers = integers.to(torch.int32).cpu().numpy()
    return made
