"""What does a shard's arithmetic beside the processor: opens sums, and steps blocks.

A device steps blocks once it made the processor's bits in a trial; under `auto`, where such a step
was done there sooner than on a core of this processor. A device that fails, or is out of memory, is
not asked again. What must not live here: how a block is stepped (`service.shard.stepping`), and
whether a device opens (`gpu.choice`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

from secureps.codec.grid import Grid
from secureps.config.serve import Sealing
from secureps.crypto.backend import Backend
from secureps.errors import ConfigError
from secureps.gpu.choice import Fallback, fastest, sealing_backend, sooner
from secureps.gpu.device import device
from secureps.model.optimizer import NoNumber, OptimizerState
from secureps.policy.plan import Plan
from secureps.service.shard.stepping import HOST, StepArithmetic, TriedStep

MOST_MEASURED = 1 << 20
"""Values of a larger block, of which so many are stepped to measure."""
_GRID = Grid(16, 1.0)

Made = TypeVar("Made")


@dataclass(frozen=True)
class ShardDevices:
    """What opens ring elements, and what steps blocks; None for the processor."""

    opening: Backend | None = None
    stepping: TriedStep | None = None


PROCESSOR = ShardDevices()


def shard_devices(sealing: Sealing) -> ShardDevices:
    """What opens and steps, by the word of a shard's file.

    Raises:
        ConfigError: "gpu", and there is none that can be used, or it makes other bits; says what is
            missing.
    """
    backend = sealing_backend(sealing)
    if backend is None:
        return PROCESSOR
    return ShardDevices(backend, ChosenStep(gpu_step, measured=sealing == "auto"))


def gpu_step() -> tuple[StepArithmetic, str]:
    """The device's arithmetic, and what it does otherwise than the processor; empty: nothing.

    Raises:
        ConfigError: as of `gpu.device.device`.
    """
    found = device()
    from secureps.device.step_bits import difference
    from secureps.device.stepping import DeviceStep

    where = found.torch.device(found.where)
    return DeviceStep(where), difference(where)


class ChosenStep:
    """A `TriedStep` that asks the device first, and the processor once the device fails.

    Args:
        make: as `gpu_step`.
        measured: blocks are stepped on the device if that was sooner; else always, and there must
            be one, which makes the processor's bits.

    Raises:
        ConfigError: there is none, and nothing is measured.
    """

    def __init__(self, make: Callable[[], tuple[StepArithmetic, str]], measured: bool) -> None:
        self._make, self._measured = make, measured
        self._there: StepArithmetic | None = None
        self._fallback = Fallback("steps")
        self._sooner: dict[tuple[str, int], bool] = {}
        if not measured:
            self._there, other = make()
            if other:
                raise ConfigError(
                    f"the GPU makes other bits of a step than the processor ({other}): take "
                    "sealing = cpu, or mend its driver, or torch's version"
                )

    def of(self, plan: Plan, group: str, size: int) -> StepArithmetic | None:
        """As of `TriedStep`; the first time that it is asked for such blocks, it measures."""
        section = plan.group(group).name  # a table's row-blocks, which may be thousands, are alike
        with self._fallback.lock:
            if self._fallback.failed:
                return None
            if (section, size) not in self._sooner:
                self._sooner[section, size] = self._is_sooner(plan, group, size)
            return self._there if self._sooner[section, size] else None

    def tried(self, action: Callable[[], Made]) -> Made | None:
        """As of `TriedStep`, and of `Fallback`; of what is no number there is nothing either."""

        def number() -> Made | None:
            try:
                return action()
            except NoNumber:
                return None

        return self._fallback.tried(number)

    def _is_sooner(self, plan: Plan, group: str, size: int) -> bool:
        """Whether there is a device that steps such blocks sooner, or must step them."""
        if not self._measured:
            return True

        def begin() -> float | None:
            if self._there is None:
                self._there, other = self._make()
                if other:
                    self._fallback.unfit(f"makes other bits ({other})")
                    return None
            return _fastest(self._there, plan, group, size)

        seconds = self._fallback.begun(begin)
        if seconds is None:
            return False
        own = _fastest(HOST, plan, group, size)
        return sooner(f"steps blocks of {plan.group(group).name}: one", seconds, own)


def _fastest(by: StepArithmetic, plan: Plan, group: str, size: int) -> float:
    """The seconds of the clock that a block takes, or as much of it as is measured."""
    count, optimizer = min(size, MOST_MEASURED), plan.optimizer(group, by.library)
    sums = np.arange(count, dtype=np.int64) % (_GRID.levels + 1)
    values = np.zeros(count, np.float32)
    state = plan.optimizer(group).init(values)

    def step() -> None:
        for start in range(0, count, by.together):
            here = slice(start, start + by.together)
            part = OptimizerState(state.step, {n: slot[here] for n, slot in state.slots.items()})
            mean = by.mean(_GRID, sums[here], Fraction(1), 1)
            by.apply(optimizer, mean, values[here], part)

    return fastest(step)
