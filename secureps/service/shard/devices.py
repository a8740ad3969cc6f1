"""What does a shard's arithmetic beside the processor: opens sums, and steps blocks.

A device steps blocks once it made the processor's bits in a trial; under `auto`, where such a step
was done there sooner than on a core of this processor. A device that fails, or is out of memory, is
not asked again. What must not live here: how a block is stepped (`service.shard.stepping`), and
whether a device opens (`gpu.choice`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from secureps.codec.grid import Grid
from secureps.config.serve import Sealing
from secureps.crypto.backend import Backend
from secureps.errors import ConfigError, SecurepsError
from secureps.gpu.choice import fastest, sealing_backend
from secureps.gpu.device import device
from secureps.model.optimizer import NoNumber, OptimizerState
from secureps.policy.plan import Plan
from secureps.service.shard.stepping import HOST, StepArithmetic, TriedStep
from secureps.wording import one_line

log = logging.getLogger("secureps")

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
        self._failed = False
        self._sooner: dict[tuple[str, int], bool] = {}
        self._lock = threading.Lock()
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
        with self._lock:
            if self._failed:
                return None
            if (section, size) not in self._sooner:
                self._sooner[section, size] = self._is_sooner(plan, group, size)
            return self._there if self._sooner[section, size] else None

    def tried(self, action: Callable[[], Made]) -> Made | None:
        """As of `TriedStep`: what an action makes; None if the device fails, or did before."""
        if self._failed:
            return None
        try:
            return action()
        except (SecurepsError, MemoryError):  # which are no fault of the device
            raise
        except NoNumber:
            return None
        except Exception as error:  # of torch or the driver, which have no tree of errors
            why = f"failed ({type(error).__name__}: {one_line(error, lines=1)})"
        with self._lock:
            first, self._failed = not self._failed, True
        if first:
            log.warning("the GPU %s: the processor steps from here on", why)
        return None

    def _is_sooner(self, plan: Plan, group: str, size: int) -> bool:
        """Whether there is a device that steps such blocks sooner, or must step them."""
        if not self._measured:
            return True
        try:
            if self._there is None:
                self._there, other = self._make()
                if other:
                    return self._unfit(f"makes other bits ({other})")
            seconds = _fastest(self._there, plan, group, size)
        except ConfigError as error:
            self._failed = True
            log.info("the processor steps: %s", one_line(error, lines=1))
            return False
        except Exception as error:
            return self._unfit(f"cannot: {one_line(error, lines=1)}")
        own = _fastest(HOST, plan, group, size)
        who = "GPU" if seconds < own else "processor"
        log.info(
            "the %s steps blocks of %s: one took the GPU %.3f ms, one core of the processor %.3f",
            *(who, plan.group(group).name, 1e3 * seconds, 1e3 * own),
        )
        return seconds < own

    def _unfit(self, why: str) -> bool:
        self._failed = True
        log.warning("the processor steps: the GPU %s", why)
        return False


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
            mean = by.mean(_GRID, sums[here], _GRID.weights.most, 1)
            by.apply(optimizer, mean, values[here], part)

    return fastest(step)
