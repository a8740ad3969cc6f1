"""What clients pull of a block in place of it: differences from one version to the next.

Which values are in a difference, and so its length, follows from the plan and from the published
block before it: the block's shard and all clients know it. The last value of an adaptive clip's
group, its scale, goes as it is.

The public state of a codec for one block is the same at the clients and at the block's shard:

    rotation  follows from the group and the block, so that updates of any versions add up
    support   follows from the published block that updates are made from, too; without rounds
              it stays for some versions, and follows from which: a cohort has updates of several

Nothing else is drawn from: two runs of the same models send the same parts of them, encrypted or
not. With rounds nobody can tell a later version's part before its model is there.
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
    """Draws the code of each block when it is asked for: together they may be large.

    Args:
        base: the digests of all blocks; empty for metrics.
    """
    known = base or [b""] * layout.blocks
    return lambda block: block_code(plan, layout, block, version, known[block])


def block_code(plan: Plan, layout: GroupLayout, block: int, version: int, base: bytes) -> BlockCode:
    """The code of a block in updates of one version.

    Args:
        version: that updates are made from; base: digest of the block, as it was published in it.
    """
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
    """The difference of one block from a version to the next: pure.

    Args:
        values: of the block; bits: of each that is in the difference.
        one_in: one of so many is; 1: all are.
        scaled: whether the last value is a scale, and goes as it is.
        code: of updates of a version, by its number and by the digest of the block in it.
    """

    values: int
    bits: int
    one_in: int
    scaled: bool
    code: Callable[[int, bytes], BlockCode]

    @property
    def length(self) -> int:
        """Bytes of one difference."""
        coded = count_sent(self.values - self.scaled, self.one_in)
        return delta.length(coded, self.bits) + FLOAT_BYTES * self.scaled

    @property
    def behind(self) -> int:
        """The most differences in a row that are shorter than the block."""
        return (FLOAT_BYTES * self.values - 1) // self.length

    def publish(
        self,
        values: Values,
        before: Values,
        code: BlockCode | None,
    ) -> Codes:
        """Moves exact values, in place, to what is published of them; returns the difference.

        Args:
            values, before: float32 (values,), of a version and as published of the one before.
            code: of updates of the one before, where they have one.
        """
        here, last = self._places(code), values[values.size - self.scaled :]
        # A kernel would be compiled anew for a block that nobody may write to: one of a file.
        coded = delta.encode(values[here], np.require(before[here], requirements="W"), self.bits)
        codes = np.concatenate([coded, last.astype("<f4").view(np.uint8)])
        values[:] = before
        self._add(values, codes, code)
        return codes

    def follow(self, before: Values, payload: bytes | memoryview, version: int) -> Values:
        """The block of a version, by differences from one before it, one after another.

        Raises:
            Malformed: these are no differences, or not shorter than the block.
        """
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
        part = values[here]  # a view of them, or a copy of scattered ones
        delta.add(part, codes[:end], self.bits)
        values[here] = part
        values[values.size - self.scaled :] = codes[end:].view("<f4")

    def _places(self, code: BlockCode | None) -> slice | NDArray[np.int64]:
        """The places in the block of the values that a difference has."""
        if self.one_in == 1:
            return slice(0, self.values - self.scaled)
        assert code is not None
        assert code.places is not None
        return code.places[: code.places.size - self.scaled]


def block_delta(plan: Plan, layout: GroupLayout, block: int) -> BlockDelta | None:
    """Describes the differences of one block; None where blocks are pulled whole."""
    section, (start, stop) = plan.group(layout.name), layout.span(block)
    if section.pull_bits is None:
        return None
    # A step without memory moves nothing but what was sent: of the last version's support, which
    # where it stays for some versions may be an older one.
    moves_sent = section.optimizer.name in STATELESS and section.support_every is None
    one_in = plan.chain(layout.name).one_in if moves_sent else 1
    code = partial(block_code, plan, layout, block)
    scaled = bool(layout.apart(block))
    return BlockDelta(stop - start, section.pull_bits, one_in, scaled, code)


def bytes_down(plan: Plan, layout: GroupLayout) -> int:
    """Bounds the bytes of a version that a client pulls who has the version before."""
    deltas = (block_delta(plan, layout, block) for block in range(layout.blocks))
    spans = (layout.span(block) for block in range(layout.blocks))
    return sum(
        FLOAT_BYTES * (stop - start) if delta is None or not delta.behind else delta.length
        for delta, (start, stop) in zip(deltas, spans, strict=True)
    )
