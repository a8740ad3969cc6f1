"""Rounds a clipped update to whole steps and adds its noise, to the bits of `privacy`.

Nothing is kept that can be made again from values and words: rounding is repeated for the norm, for
the digests of what is hidden, and for the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from secureps.crypto.sampling import Stream
from secureps.device.encoding import TOGETHER, pieces, rounded, unsigned, words
from secureps.errors import InternalError
from secureps.privacy.client_level import MOST_TRIES, ClientMechanism
from secureps.privacy.skellam import Skellam

_SQUARES = 1 << 14
"""Squares that add up within int64, each up to 2^48."""


class DeviceRounding:
    """The rounding of one update in whole steps: `ClientMechanism.rounded`, block by block.

    Args:
        blocks: each makes the values of a block, float32, after the clip, the same at every call.
        starts: how many values are before each block, and in the end how many there are.
        stream: the words of all tries, one after another.
    Raises:
        InternalError: the words are not random, or the update was not clipped.
    """

    def __init__(
        self,
        mechanism: ClientMechanism,
        blocks: Sequence[Callable[[], Tensor]],
        starts: Sequence[int],
        stream: Stream,
    ) -> None:
        self._made, self._stream = mechanism.calibration, stream
        self._blocks, self._starts = blocks, starts
        for self._tried in range(MOST_TRIES):
            if sum(map(self._squares, range(len(blocks)))) <= self._made.limit:
                return
        raise InternalError(f"{MOST_TRIES} roundings were too long: the words are not random")

    @property
    def blocks(self) -> int:
        """How many there are."""
        return len(self._blocks)

    def steps(self, block: int) -> Iterator[Tensor]:
        """z of the values of a block before any noise, a few at a time: int64."""
        at = self._tried * self._starts[-1] + self._starts[block]
        for piece in pieces(self._blocks[block]()):
            drawn = words(self._stream, at, piece.numel(), piece.device)
            # as `ClientMechanism.rounded` has it
            scaled = piece.double() * (1.0 / self._made.step * (1.0 - 2.0**-50))
            yield rounded(scaled, drawn).to(torch.int64)
            at += piece.numel()

    def _squares(self, block: int) -> int:
        """The squared norm of a block, exactly."""
        sums = [part.sum() for z in self.steps(block) for part in pieces(z * z, _SQUARES)]
        return sum(torch.stack(sums).tolist())


class DeviceSkellam:
    """A sampler whose table lies on a device: `Skellam.sample`, to the same values.

    Args:
        stream: of the noise, which is used for nothing else.
    """

    def __init__(self, sampler: Skellam, stream: Stream, device: torch.device) -> None:
        self._sampler, self._stream, self._device = sampler, stream, device
        self._read = 0

    @cached_property
    def _bounds(self) -> Tensor:
        return torch.from_numpy(self._sampler.table.bounds).to(self._device)

    @cached_property
    def _guide(self) -> Tensor:
        return torch.from_numpy(self._sampler.table.guide).to(self._device)

    def next(self, count: int) -> Tensor:
        """The next values, int64 (count,).

        Raises:
            InternalError: the words are not random.
        """
        values = torch.empty(count, dtype=torch.int64, device=self._device)
        done = 0
        while done < count:
            n = min(TOGETHER, count - done)
            found, undecided = self._look_up(words(self._stream, self._read, 2 * n, self._device))
            if not undecided.numel():
                values[done : done + n] = found
                self._read, done = self._read + 2 * n, done + n
                continue
            # once in 2^40 or less: the host reads on
            first = int(undecided[0])
            values[done : done + first] = found[:first]
            self._read += 2 * first
            values[done + first] = self._sampler.decided(self._pair)
            done += first + 1
        return values

    def _pair(self) -> int:
        low, high = self._stream.at(self._read).words(2).tolist()
        self._read += 2
        return int(low | high << 32)

    def _look_up(self, held: Tensor) -> tuple[Tensor, Tensor]:
        """Signed values of pairs of words, and the places of those that are undecided."""
        table, upper = self._sampler.table, self._bounds[1:]
        low, high = unsigned(held).view(-1, 2).unbind(1)
        u = (high << 30) | (low >> 2)
        size = self._guide[u >> table.shift].to(torch.int64)
        size += (upper[size] <= u).to(torch.int64)
        late = (upper[size] <= u).nonzero()[:, 0]
        if late.numel():
            size[late] = torch.searchsorted(upper, u[late], right=True)
        undecided = (u - self._bounds[size] < table.slack).nonzero()[:, 0]
        negative = -(low & 1)
        return (size ^ negative) - negative, undecided
