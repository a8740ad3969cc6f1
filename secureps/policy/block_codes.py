"""The public state of a codec for one block: the same at the clients and at the block's shard.

    rotation  follows from the group and the block, so that updates of any versions add up
    support   follows from the published block that updates are made from, too; without rounds
              it stays for some versions, and follows from which: a cohort has updates of several

Nothing else is drawn from: two runs of the same models send the same parts of them, encrypted or
not. With rounds nobody can tell a later version's part before its model is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from secureps.codec.chain import BlockCode
from secureps.crypto.sampling import Label, public_stream
from secureps.model.layout import GroupLayout
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
