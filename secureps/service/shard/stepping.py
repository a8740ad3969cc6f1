"""Steps blocks of a group from a cohort's opened sums: their mean, and the optimizer's step.

It works on pieces that stay in the processor's cache. Of a large block neither the integers nor
intermediate values are in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from secureps.codec.chain import BlockCode
from secureps.errors import SecurepsError
from secureps.messages.submission import Cohort
from secureps.model.layout import GroupLayout
from secureps.model.optimizer import OptimizerState, Values
from secureps.policy.block_deltas import Codes, block_code, block_delta
from secureps.policy.counting import shares_in
from secureps.policy.groups import moved
from secureps.policy.plan import Plan
from secureps.policy.rules.supports import common_version
from secureps.service.shard.group_values import (
    Allocate,
    GroupValues,
    digest_of,
    in_memory,
    laid_out,
)

PIECE = 1 << 15
"""Values that are stepped at a time."""

Opened: TypeAlias = Callable[[], Iterator[NDArray[np.int64]]]
"""Opens a block's sums, from the beginning, piece by piece."""


class Stepping:
    """Makes the version of one cohort; several threads may step blocks of it at once."""

    def __init__(
        self,
        plan: Plan,
        layout: GroupLayout,
        cohort: Cohort,
        before: GroupValues,
        allocate: Allocate = in_memory,
    ) -> None:
        self._plan = plan
        self._layout = layout
        self._cohort = cohort
        self._before = before
        sizes = {block: values.size for block, values in before.values.items()}
        self._values = laid_out(sizes, allocate)
        names = {name for state in before.optimizer.values() for name in state.slots}
        self._slots = {name: laid_out(sizes, allocate) for name in names}

    def step(self, block: int, opening: Opened) -> GroupValues:
        """Steps a block, as a pure function of its sums and of the version before.

        Returns:
            the next version of this block alone.

        Raises:
            Malformed, NotFinite: no members who keep to the plan can have sent these sums.
        """
        opened = opening()
        try:
            return self._stepped(block, opened)
        except SecurepsError:
            for _ in opened:  # whether they open at all is known after the last, and told first
                pass
            raise

    def _stepped(self, block: int, opened: Iterator[NDArray[np.int64]]) -> GroupValues:
        plan, cohort = self._plan, self._cohort
        optimizer = plan.optimizer(cohort.group)
        mover = moved(plan, cohort.group, self._layout.sent)
        scale = None if mover is None else float(np.float32(mover.check(cohort.scale)))
        scaled = bool(self._layout.apart(block))
        values, before = self._before.values[block], self._before.optimizer[block]
        made, state = self._values[block], before
        slots = {name: blocks[block] for name, blocks in self._slots.items()}
        at, measured = 0, 0.0
        code = None if plan.chain(cohort.group).plain else self._code(block)
        for mean in self._means(opened, code):
            here = slice(at, at + len(mean))
            last = scaled and here.stop == values.size
            if last:
                measured = float(mean[-1])
            if scale is not None:
                mean *= scale
            if last:
                mean[-1] = 0  # no step of the optimizer's
            part = OptimizerState(before.step, {n: v[here] for n, v in before.slots.items()})
            made[here], state = optimizer.apply(mean, values[here], part)
            for name, vector in state.slots.items():
                slots[name][here] = vector
            at = here.stop
        if mover is not None and scaled:
            made[-1] = mover.after(float(values[-1]), measured)
        codes, difference = dict[int, Codes](), block_delta(plan, self._layout, block)
        if difference is not None:
            codes[block] = difference.publish(made, values, code)
        stepped = OptimizerState(state.step, slots)
        return GroupValues(cohort.version, {block: made}, {block: stepped}, codes)

    def _means(
        self, opened: Iterator[NDArray[np.int64]], code: BlockCode | None
    ) -> Iterator[Values]:
        """Yields the mean change of a block's values, a few values at a time."""
        means = self._sent(opened)
        if code is None:
            yield from means
            return
        mean = code.decode(np.concatenate(tuple(means)))
        yield from (mean[start : start + PIECE] for start in range(0, len(mean), PIECE))

    def _sent(self, opened: Iterator[NDArray[np.int64]]) -> Iterator[Values]:
        """The mean, or in a sum group the total, of what members sent of a block, in pieces."""
        plan, cohort, layout = self._plan, self._cohort, self._layout
        grid, terms = plan.grid(cohort.group, layout.sent), cohort.weight + plan.noisy_shards
        shares = shares_in(plan.group(cohort.group), cohort)
        if plan.is_sum(cohort.group):
            shares = Fraction(1)
        for sums in opened:
            for start in range(0, sums.size, PIECE):
                yield grid.weighted_mean(sums[start : start + PIECE], shares, terms)

    def _code(self, block: int) -> BlockCode:
        base = digest_of(self._before.values[block])
        version = common_version(self._plan.group(self._cohort.group).support_every, self._cohort)
        return block_code(self._plan, self._layout, block, version, base)
