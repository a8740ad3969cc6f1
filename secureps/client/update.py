"""A client's update on its way to integers, made part by part: no copy of it need be in memory.

What must not live here: what an update is of (`model.difference`), and its clip
(`client.clipping`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secureps.messages.encoding import payload_digest
from secureps.model.difference import Part
from secureps.privacy.mechanism import PIECE


@dataclass(frozen=True)
class Update:
    """A clipped update of a group.

    Args:
        size: how many values it has.
        digest: 32 bytes; updates with the same are the same, if plan and base version are.
        largest: no value is further from zero.
        norm: L2, without running statistics.
        part: makes values [first, last): float32, from any thread.
    """

    size: int
    digest: bytes
    largest: float
    norm: float
    part: Part

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


def pieces(part: Part, first: int, last: int) -> Iterator[NDArray[np.float32]]:
    """Yields values [first, last) a few at a time, so that they stay in the cache."""
    for start in range(first, last, PIECE):
        yield part(start, min(start + PIECE, last))


def furthest(values: NDArray[np.float32]) -> float:
    """How far from zero the furthest value is."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


def _slices(values: NDArray[np.float32]) -> Part:
    return lambda first, last: values[first:last]
