"""A client's update on its way to integers, made part by part: no copy of it need be in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from secureps.codec.chain import BlockCode
from secureps.codec.grid import Grid
from secureps.crypto.sampling import Stream
from secureps.messages.encoding import payload_digest
from secureps.model.difference import Part
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.mechanism import PIECE

Integers = NDArray[np.integer[Any]]
Made = TypeVar("Made")

Words = tuple[Stream, int]
"""A stream, and from which of its words on."""


class DeviceSteps(Protocol):
    """An update in whole grid steps on a device; see `ClientMechanism`."""

    def block(self, block: int) -> NDArray[np.int32]:
        """z of a block, before any noise."""
        ...

    def noised(self, hidden: Stream) -> list[Integers]:
        """u of all blocks, with this client's noise; `hidden` has its words."""
        ...


class DeviceValues(Protocol):
    """The values of an update in a device's memory; `client.device_update` has them."""

    def attempt(self, action: Callable[[], Made]) -> Made | None:
        """What an action on the device makes; None where its memory does not suffice.

        From then on the values are on the host, and every attempt is None.
        """
        ...

    def rounded(
        self, code: BlockCode, place: tuple[int, int], grid: Grid, share: float, words_at: Words
    ) -> Integers:
        """The integers of a block whose values lie at a place.

        Raises:
            NotFinite: a value is not finite.
        """
        ...

    def steps(
        self,
        mechanism: ClientMechanism,
        blocks: Sequence[tuple[BlockCode, tuple[int, int]]],
        coded: bool,
        stream: Stream,
    ) -> DeviceSteps:
        """All values in whole grid steps; `coded`: they may have become longer than the clip."""
        ...

    def subtract(
        self, code: BlockCode, place: tuple[int, int], integers: Integers, step: float
    ) -> bool:
        """Takes away what integers, times a step, decode to."""
        ...

    def beyond(self, part: slice, share: float, most: float) -> int:
        """How many values of a part are beyond `most`, times `share`."""
        ...


@dataclass(frozen=True)
class Update:
    """A clipped update of a group.

    Args:
        size: how many values it has.
        digest: 32 bytes; updates with the same are the same, if plan and base version are.
        largest: no value is further from zero.
        norm: L2, without running statistics.
        part: makes values [first, last): float32, from any thread.
        device: where the values lie in a device's memory, and are made integers; else None.
        uncut: L2 before the clip, without running statistics; None where the clip cuts nothing, or
            moves and so is no advice.
    """

    size: int
    digest: bytes
    largest: float
    norm: float
    part: Part
    device: DeviceValues | None = None
    uncut: float | None = None

    @classmethod
    def of(cls, values: NDArray[np.float32], norm: float) -> Update:
        """An update that is in memory, float32 (size,): its parts are views."""
        digest = payload_digest(values.astype("<f4", copy=False).data.cast("B"))
        return cls(values.size, digest, furthest(values), norm, _slices(values))

    def whole(self) -> NDArray[np.float32]:
        """All values, float32 (size,)."""
        made = np.empty(self.size, np.float32)
        for start in range(0, self.size, PIECE):
            stop = min(start + PIECE, self.size)
            made[start:stop] = self.part(start, stop)
        return made

    def held(self) -> Update:
        """The same update in memory: its parts are views, and may be changed."""
        return dataclasses.replace(self, part=_slices(self.whole()))

    def beyond(self, part: slice, share: float, most: float) -> int:
        """How many values of a part are beyond `most`, times `share` in float64."""
        if self.device is not None:
            found = self.device.attempt(partial(self.device.beyond, part, share, most))
            if found is not None:
                return found
        return sum(
            int((np.abs(values.astype(np.float64) * share) > most).sum())
            for values in pieces(self.part, part.start, part.stop)
        )


def pieces(part: Part, first: int, last: int) -> Iterator[NDArray[np.float32]]:
    """Yields values [first, last) a few at a time, so that they stay in the cache."""
    for start in range(first, last, PIECE):
        yield part(start, min(start + PIECE, last))


def furthest(values: NDArray[np.float32]) -> float:
    """How far from zero the furthest value is."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


def _slices(values: NDArray[np.float32]) -> Part:
    return lambda first, last: values[first:last]
