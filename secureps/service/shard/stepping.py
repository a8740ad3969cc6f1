"""Steps blocks of a group from a cohort's opened sums: their mean, and the optimizer's step.

It is done in pieces that stay in the processor's cache: of a large block neither the integers nor
what is made of them on the way to new values is in memory as a whole. A device may do the
arithmetic, to the same bits; where it fails, the processor steps the same block again. What must
not live here: opening sums (`service.shard.worker`), and files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from secureps.codec import delta
from secureps.codec.chain import BlockCode
from secureps.codec.grid import Grid
from secureps.errors import SecurepsError
from secureps.messages.encoding import payload_digest
from secureps.messages.submission import Cohort
from secureps.model.layout import GroupLayout
from secureps.model.optimizer import (
    NUMPY,
    Arithmetic,
    Optimizer,
    OptimizerState,
    Values,
    Vector,
)
from secureps.policy.block_codes import block_code
from secureps.policy.block_deltas import Codes, block_delta
from secureps.policy.counting import shares_in
from secureps.policy.plan import Plan
from secureps.policy.rules.supports import common_version
from secureps.policy.scales import moved
from secureps.service.shard.group_values import Allocate, GroupValues, in_memory, laid_out

PIECE = 1 << 15
"""Values that are stepped at a time."""

Opened: TypeAlias = Callable[[], Iterator[NDArray[np.int64]]]
"""Opens a block's sums, from the beginning, piece by piece."""
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Stepped:
    """A block of the next version.

    Args:
        values: as they are published.
        codes: what clients may pull in place of them, where the plan has `pull_bits`.
    """

    values: Values
    state: OptimizerState
    codes: Codes | None


class StepArithmetic(Protocol):
    """Does the arithmetic of steps: this processor, or a device; both make the same bits.

    `together` is how many values are stepped at a time, `library` of which vectors optimizers are
    given. What it makes before the step, float32, is its own; values, state and codes are NumPy's.
    """

    together: int
    library: Arithmetic

    def mean(
        self, grid: Grid, sums: NDArray[np.int64], shares: Fraction, total_weight: int
    ) -> Vector:
        """The mean of a few sums; see `Grid.weighted_mean`."""

    def decoded(self, code: BlockCode, means: Sequence[Vector]) -> Vector:
        """What of a block's values a codec made these means of; see `BlockCode.decode`."""

    def apply(
        self, optimizer: Optimizer, mean: Vector, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        """A step of an optimizer that was built with the library."""

    def codes(self, exact: Values, published: Values, bits: int) -> Codes:
        """A difference; see `codec.delta.encode`."""


class HostStep:
    """The `StepArithmetic` that every machine has."""

    together = PIECE
    library = NUMPY

    def mean(
        self, grid: Grid, sums: NDArray[np.int64], shares: Fraction, total_weight: int
    ) -> Values:
        """As of `StepArithmetic`."""
        return grid.weighted_mean(sums, shares, total_weight)

    def decoded(self, code: BlockCode, means: Sequence[Values]) -> Values:
        """As of `StepArithmetic`."""
        return code.decode(np.concatenate(means))

    def apply(
        self, optimizer: Optimizer, mean: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        """As of `StepArithmetic`."""
        return optimizer.apply(mean, values, state)

    def codes(self, exact: Values, published: Values, bits: int) -> Codes:
        """As of `StepArithmetic`."""
        # A kernel would be compiled anew for a block that nobody may write to: one of a file.
        return delta.encode(exact, np.require(published, requirements="W"), bits)


HOST = HostStep()


class TriedStep(Protocol):
    """A device that may step, until it fails."""

    def of(self, plan: Plan, group: str, size: int) -> StepArithmetic | None:
        """What steps blocks of so many values of a group; None for the processor."""

    def tried(self, action: Callable[[], Made]) -> Made | None:
        """Does what the device is to do; None if the processor has to do it."""


class Stepping:
    """Makes the version of one cohort; several threads may step blocks of it at once.

    Args:
        allocate: where it is made.
        device: where blocks are stepped; None for the processor.
    """

    def __init__(
        self,
        plan: Plan,
        layout: GroupLayout,
        cohort: Cohort,
        before: GroupValues,
        allocate: Allocate = in_memory,
        device: TriedStep | None = None,
    ) -> None:
        self._plan = plan
        self._layout = layout
        self._cohort = cohort
        self._before = before
        self._device = device
        self._there = None
        sizes = {block: values.size for block, values in before.values.items()}
        if device is not None and sizes:
            self._there = device.of(plan, cohort.group, max(sizes.values()))
        self._values = laid_out(sizes, allocate)
        names = {name for state in before.optimizer.values() for name in state.slots}
        self._slots = {name: laid_out(sizes, allocate) for name in names}

    def step(self, block: int, opened: Opened) -> Stepped:
        """Steps a block, as a pure function of its sums and of the version before.

        Args:
            opened: asked once more where a device fails.
        Raises:
            Malformed, NotFinite: no members can have sent these who keep to the plan.
        """
        there = self._there
        if self._device is not None and there is not None:
            sums = gathered(opened(), there.together)
            made = self._device.tried(lambda: self._step(block, sums, there))
            if made is not None:
                return made
        return self._step(block, opened(), HOST)

    def _step(self, block: int, opened: Iterator[NDArray[np.int64]], by: StepArithmetic) -> Stepped:
        try:
            return self._stepped(block, opened, by)
        except SecurepsError:
            for _ in opened:  # whether they open at all is known after the last, and told first
                pass
            raise

    def _stepped(
        self, block: int, opened: Iterator[NDArray[np.int64]], by: StepArithmetic
    ) -> Stepped:
        plan, cohort = self._plan, self._cohort
        optimizer = plan.optimizer(cohort.group, by.library)
        mover = moved(plan, cohort.group, self._layout.sent)
        scale = None if mover is None else float(np.float32(mover.check(cohort.scale)))
        scaled = bool(self._layout.apart(block))
        values, before = self._before.values[block], self._before.optimizer[block]
        made, state = self._values[block], before
        slots = {name: blocks[block] for name, blocks in self._slots.items()}
        at, measured = 0, 0.0
        code = None if plan.chain(cohort.group).plain else self._code(block)
        for mean in self._means(opened, code, by):
            here = slice(at, at + len(mean))
            last = scaled and here.stop == values.size
            if last:
                measured = float(mean[-1])
            if scale is not None:
                mean *= scale
            if last:
                mean[-1] = 0  # no step of the optimizer's
            part = OptimizerState(before.step, {n: v[here] for n, v in before.slots.items()})
            made[here], state = by.apply(optimizer, mean, values[here], part)
            for name, vector in state.slots.items():
                slots[name][here] = vector
            at = here.stop
        if mover is not None and scaled:
            made[-1] = mover.after(float(values[-1]), measured)
        codes, difference = None, block_delta(plan, self._layout, block)
        if difference is not None:
            codes = difference.publish(made, values, code, by.codes)
        return Stepped(made, OptimizerState(state.step, slots), codes)

    def _means(
        self, opened: Iterator[NDArray[np.int64]], code: BlockCode | None, by: StepArithmetic
    ) -> Iterator[Vector]:
        """What a block's values are to move by on average, a few of them at a time."""
        means = self._sent(opened, by)
        if code is None:
            yield from means
            return
        mean = by.decoded(code, tuple(means))
        yield from (mean[start : start + by.together] for start in range(0, len(mean), by.together))

    def _sent(self, opened: Iterator[NDArray[np.int64]], by: StepArithmetic) -> Iterator[Vector]:
        """The mean of what members sent of a block, piece by piece."""
        plan, cohort, layout = self._plan, self._cohort, self._layout
        grid, terms = plan.grid(cohort.group, layout.sent), cohort.weight + plan.noisy_shards
        shares = shares_in(plan.group(cohort.group), cohort)
        for sums in opened:
            for start in range(0, sums.size, by.together):
                yield by.mean(grid, sums[start : start + by.together], shares, terms)

    def _code(self, block: int) -> BlockCode:
        """The code of what the members sent."""
        published = self._before.values[block].astype("<f4", copy=False)
        base = payload_digest(published.data.cast("B"))
        version = common_version(self._plan.group(self._cohort.group).support_every, self._cohort)
        return block_code(self._plan, self._layout, block, version, base)


def gathered(opened: Iterator[NDArray[np.int64]], together: int) -> Iterator[NDArray[np.int64]]:
    """The same sums in pieces of up to so many, each until the next one is asked for."""
    room, held = np.empty(together, np.int64), 0
    for sums in opened:
        if not held and together // 2 <= sums.size <= together:
            yield sums
            continue
        at = 0
        while at < sums.size:
            part = sums[at : at + together - held]
            room[held : held + part.size] = part
            at, held = at + part.size, held + part.size
            if held == together:
                yield room
                held = 0
    if held:
        yield room[:held]
