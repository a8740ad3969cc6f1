"""Differences from one version of a block to the next, which clients pull instead of the block.

The plan and the published block before determine which values a difference has, and so its length:
the block's shard and all clients compute the same. The last value of a group with a moving scale
is that scale, which is sent whole.

The codec's public draws for one block are the same at the clients and at the block's shard:

    rotation  depends on the group and the block, so that updates of any versions add up
    support   depends on the published base block too; without rounds, on the number of the period
              instead, because a cohort has updates of several versions

Nothing else enters the draws, so two runs of the same models send the same values, encrypted or
not. With rounds nobody can predict the support of a later version before that version exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from secureps.codec import delta
from secureps.codec.chain import BlockCode, count_sent
from secureps.crypto.sampling import Label, public_stream
from secureps.errors import Malformed
from secureps.messages.encoding import payload_digest
from secureps.model.layout import GroupLayout
from secureps.model.optimizer import STATELESS, Values
from secureps.policy.plan import Plan


def block_codes(
    plan: Plan, layout: GroupLayout, version: int, base: Sequence[bytes]
) -> Callable[[int], BlockCode]:
    """Returns a function that draws the code of one block; all codes at once may be large.

    `base` has the digests of all blocks; it is empty for metrics.
    """
    known = base or [b""] * layout.blocks
    return lambda block: block_code(plan, layout, block, version, known[block])


def block_code(plan: Plan, layout: GroupLayout, block: int, version: int, base: bytes) -> BlockCode:
    """Draws a block's code for updates with this base version; `base` is its digest there."""
    every = plan.group(layout.name).support_every
    support: tuple[Label, ...] = (version, base) if every is None else (version // every,)
    named: dict[str, tuple[Label, ...]] = {"support": support, "rotate": ()}

    def draw(stage: str, count: int) -> NDArray[np.uint32]:
        return public_stream(stage, layout.name, block, *named[stage]).words(count)

    start, stop = layout.span(block)
    return plan.chain(layout.name).block(stop - start, draw, layout.apart(block))


FLOAT_BYTES = 4
Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BlockDelta:
    """Encodes and applies the difference of one block from a version to the next.

    Args:
        bits: per value of the difference.
        one_in: a difference has one of so many values; 1: all of them.
        scaled: whether the last value is a scale, which is sent whole.
        code: returns the code of updates, by base version and the block's digest in it.
    """

    values: int
    bits: int
    one_in: int
    scaled: bool
    code: Callable[[int, bytes], BlockCode]

    @property
    def length(self) -> int:
        coded = count_sent(self.values - self.scaled, self.one_in)
        return delta.length(coded, self.bits) + FLOAT_BYTES * self.scaled

    @property
    def behind(self) -> int:
        """The most consecutive differences that are shorter than the block together."""
        return (FLOAT_BYTES * self.values - 1) // self.length

    def publish(self, values: Values, before: Values, code: BlockCode | None) -> Codes:
        """Rounds exact values, in place, to the values that are published; returns the difference.

        `before` has the values as published of the version before, and `code` is that of updates
        with this version as their base, where they have one.
        """
        here, last = self._places(code), values[values.size - self.scaled :]
        coded = delta.encode(values[here], before[here], self.bits)
        codes = np.concatenate([coded, last.astype("<f4").view(np.uint8)])
        values[:] = before
        self._add(values, codes, code)
        return codes

    def follow(self, before: Values, payload: bytes | memoryview, version: int) -> Values:
        """Applies consecutive differences to an older block; Malformed if they are none."""
        count, rest = divmod(len(payload), self.length)
        if rest or not 0 < count <= min(self.behind, version):
            raise Malformed(f"{len(payload)} bytes are no differences of {self.values} values")
        values, code = np.array(before), None
        for k, codes in enumerate(np.frombuffer(payload, np.uint8).reshape(count, -1)):
            if self.one_in > 1:
                digest = payload_digest(values.astype("<f4", copy=False).data.cast("B"))
                code = self.code(version - count + k, digest)
            self._add(values, codes, code)
        return values

    def _add(self, values: Values, codes: Codes, code: BlockCode | None) -> None:
        here, end = self._places(code), codes.size - FLOAT_BYTES * self.scaled
        part = values[here]  # a view, or a copy if the places are scattered
        delta.add(part, codes[:end], self.bits)
        values[here] = part
        values[values.size - self.scaled :] = codes[end:].view("<f4")

    def _places(self, code: BlockCode | None) -> slice | NDArray[np.int64]:
        if self.one_in == 1:
            return slice(0, self.values - self.scaled)
        assert code is not None
        assert code.places is not None
        return code.places[: code.places.size - self.scaled]


def block_delta(plan: Plan, layout: GroupLayout, block: int) -> BlockDelta | None:
    """Returns the encoder of one block's differences; None where blocks are pulled whole."""
    section, (start, stop) = plan.group(layout.name), layout.span(block)
    if section.pull_bits is None:
        return None
    # A stateless optimizer moves only the values that were sent, those of the last version's
    # support. A support that is kept for several versions may be an older one: send all values.
    moves_sent = section.optimizer.name in STATELESS and section.support_every is None
    one_in = plan.chain(layout.name).one_in if moves_sent else 1
    code = partial(block_code, plan, layout, block)
    scaled = bool(layout.apart(block))
    return BlockDelta(stop - start, section.pull_bits, one_in, scaled, code)


def bytes_down(plan: Plan, layout: GroupLayout) -> int:
    """Bounds the bytes that a client with the version before pulls of the next one."""
    deltas = (block_delta(plan, layout, block) for block in range(layout.blocks))
    spans = (layout.span(block) for block in range(layout.blocks))
    return sum(
        FLOAT_BYTES * (stop - start) if delta is None or not delta.behind else delta.length
        for delta, (start, stop) in zip(deltas, spans, strict=True)
    )
