"""Server optimizers: pure (init, apply) pairs over flattened values, in optax's style.

They work element by element in float32, so the model is the same, bit for bit, wherever a group is
cut into blocks. An update is the cohort's mean of (trained model - base model), so the
pseudo-gradient is minus the update (Reddi et al. 2021, "Adaptive Federated Optimization"). Vectors
are only added, subtracted, multiplied, divided and square-rooted, because IEEE 754 rounds these
alike on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # a status is read without pydantic
    from secureps.config.plan import OptimizerSection, ScheduleSection

Values: TypeAlias = NDArray[np.float32]
Schedule: TypeAlias = Callable[[int], float]
"""A function from the step (0, 1, 2, ...) to its learning rate."""


@dataclass(frozen=True, eq=False)
class OptimizerState:
    """The state of an optimizer for one block, after so many steps.

    `slots` are float32 vectors as long as the values, by name ("momentum", "second").
    """

    step: int
    slots: Mapping[str, Values]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, OptimizerState)
            and self.step == other.step
            and self.slots.keys() == other.slots.keys()
            and all(np.array_equal(self.slots[k], other.slots[k]) for k in self.slots)
        )


@dataclass(frozen=True)
class Optimizer:
    """A pair of pure functions; neither changes its arguments.

    `init(values)` gives the state before the first update. `apply(update, values, state)`
    gives (new values, new state). Vectors are float32 of shape (n,), for any n.
    """

    init: Callable[[Values], OptimizerState]
    apply: Callable[[Values, Values, OptimizerState], tuple[Values, OptimizerState]]


def build_schedule(section: ScheduleSection, learning_rate: float, versions: int) -> Schedule:
    """Makes the schedule of a name for a group that makes so many versions."""
    return SCHEDULES[section.name](learning_rate, section, versions)


def build_optimizer(section: OptimizerSection, versions: int) -> Optimizer:
    """Makes the optimizer of a name for a group that makes so many versions."""
    schedule = build_schedule(section.schedule, section.learning_rate, versions)
    return OPTIMIZERS[section.name](schedule, section)


# --- schedules --------------------------------------------------------------------


def _constant(rate: float, section: ScheduleSection, versions: int) -> Schedule:
    return lambda step: rate


def _cosine(rate: float, section: ScheduleSection, versions: int) -> Schedule:
    """Half a cosine from the rate to zero, which the step after the last version would have.

    Loshchilov and Hutter 2017, without restarts.
    """
    return lambda step: rate * 0.5 * (1.0 + math.cos(math.pi * min(step, versions) / versions))


def _exponential(rate: float, section: ScheduleSection, versions: int) -> Schedule:
    return lambda step: rate * section.decay**step


def _warmup(rate: float, section: ScheduleSection, versions: int) -> Schedule:
    """Linear growth over `warmup_steps` (step 0 is not zero), then constant."""
    return lambda step: rate * min(1.0, (step + 1) / section.warmup_steps)


SCHEDULES: dict[str, Callable[[float, ScheduleSection, int], Schedule]] = {
    "constant": _constant,
    "cosine": _cosine,
    "exponential": _exponential,
    "warmup": _warmup,
}


# --- optimizers -------------------------------------------------------------------

STATELESS = ("sgd",)
"""Optimizers that do not change a value whose update is 0."""
EXACT = "exact"
"""The slot of the exact values, where published ones are coarser."""


def keeping_exact(optimizer: Optimizer) -> Optimizer:
    """Makes an optimizer step from exact values in a slot: error feedback at the server."""

    def init(values: Values) -> OptimizerState:
        state = optimizer.init(values)
        return OptimizerState(state.step, {**state.slots, EXACT: values})

    def apply(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        made, after = optimizer.apply(update, state.slots[EXACT], state)
        return made, OptimizerState(after.step, {**after.slots, EXACT: made})

    return Optimizer(init, apply)


Step: TypeAlias = Callable[[Values, Values, OptimizerState], tuple[Values, dict[str, Values]]]
"""(update, values, state) -> (new values, new slots)."""

SecondMoment: TypeAlias = Callable[[Values, Values], Values]
"""Computes the new v from the old v and the square of an update."""


def _optimizer_of_step(step: Step, **starts: float) -> Optimizer:
    """Makes an optimizer of a step; `starts` are the first values of its slots."""

    def init(values: Values) -> OptimizerState:
        slots = {name: np.full(values.shape, at, np.float32) for name, at in starts.items()}
        return OptimizerState(0, slots)

    def apply(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        moved, slots = step(update, values, state)
        return moved, OptimizerState(state.step + 1, slots)

    return Optimizer(init, apply)


def _sgd(schedule: Schedule, section: OptimizerSection) -> Optimizer:
    """x += lr * update; with lr = 1 this is federated averaging (McMahan et al. 2017)."""
    return _optimizer_of_step(lambda update, x, state: (x + _rate(schedule, state) * update, {}))


def _momentum(schedule: Schedule, section: OptimizerSection) -> Optimizer:
    """m = decay * m + update; x += lr * m: heavy ball as in `torch.optim.SGD`, no dampening."""
    return _with_momentum(schedule, section, lambda first, update: first)


def _nesterov(schedule: Schedule, section: OptimizerSection) -> Optimizer:
    """m = decay * m + update; x += lr * (decay * m + update).

    As `nesterov=True` of `torch.optim.SGD`; DiLoCo's outer step (Douillard et al. 2023).
    """
    decay = _single(section.momentum)
    return _with_momentum(schedule, section, lambda first, update: decay * first + update)


def _with_momentum(
    schedule: Schedule, section: OptimizerSection, direction: Callable[[Values, Values], Values]
) -> Optimizer:
    """Makes an optimizer that steps along `direction`, of the new momentum and the update."""

    def step(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, dict[str, Values]]:
        first = _single(section.momentum) * state.slots["momentum"] + update
        moved = values + _rate(schedule, state) * direction(first, update)
        return moved, {"momentum": first}

    return _optimizer_of_step(step, momentum=0.0)


def _adam(schedule: Schedule, section: OptimizerSection) -> Optimizer:
    """Adam with bias correction, as in `torch.optim.Adam` (Kingma and Ba 2015, Algorithm 1).

    `tau` is its epsilon. FedAdam of Reddi et al. 2021 has no bias correction; see `_yogi` for
    that family.
    """
    betas = section.betas

    def step(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, dict[str, Values]]:
        first = _average(betas[0], state.slots["momentum"], update)
        second = _average(betas[1], state.slots["second"], update * update)
        count = state.step + 1
        rate = _single(schedule(state.step) / (1.0 - betas[0] ** count))
        bias = _single(math.sqrt(1.0 - betas[1] ** count))
        root = np.divide(np.sqrt(second), bias)
        moved = values + np.divide(rate * first, root + _single(section.tau))
        return moved, {"momentum": first, "second": second}

    return _optimizer_of_step(step, momentum=0.0, second=0.0)


def _yogi(schedule: Schedule, section: OptimizerSection) -> Optimizer:
    """FedYogi (Reddi et al. 2021, Algorithm 2): no bias correction, v starts at tau^2.

    m = b1 m + (1 - b1) u;  v = v - (1 - b2) u^2 sign(v - u^2);  x += lr m / (sqrt(v) + tau).
    """
    moment = _yogi_moment(section)
    return _adaptive(schedule, section, moment, section.tau * section.tau)


def _fedyogi(schedule: Schedule, section: OptimizerSection) -> Optimizer:
    """FedYogi as in Flower 1.41: `_yogi`, but v starts at 0."""
    return _adaptive(schedule, section, _yogi_moment(section))


def _fedadagrad(schedule: Schedule, section: OptimizerSection) -> Optimizer:
    """FedAdagrad as in Flower 1.41 (Reddi et al. 2021, Algorithm 2, but v starts at 0).

    m as in `_yogi` (Flower's b1 is 0);  v = v + u^2;  x += lr m / (sqrt(v) + tau).
    """
    return _adaptive(schedule, section, lambda second, square: second + square)


def _fedadam(schedule: Schedule, section: OptimizerSection) -> Optimizer:
    """FedAdam as in Flower 1.41: m and v of Adam, both from 0.

    x += lr sqrt(1 - b2^(t+1)) / (1 - b1^(t+1)) m / (sqrt(v) + tau), in round t = 1, 2, ...
    """
    betas = section.betas

    def rate(step: int) -> float:
        power = step + 2  # t + 1
        return schedule(step) * math.sqrt(1 - betas[1] ** power) / (1 - betas[0] ** power)

    def moment(second: Values, square: Values) -> Values:
        return _average(betas[1], second, square)

    return _adaptive(rate, section, moment)


OPTIMIZERS: dict[str, Callable[[Schedule, OptimizerSection], Optimizer]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adam": _adam,
    "yogi": _yogi,
    "fedadam": _fedadam,
    "fedyogi": _fedyogi,
    "fedadagrad": _fedadagrad,
}


REPLACING = _optimizer_of_step(lambda update, x, state: (update, {}))
"""x = update, for sum groups, whose opened total is the new value."""


def _yogi_moment(section: OptimizerSection) -> SecondMoment:
    share = _single(1.0 - section.betas[1])
    return lambda second, square: second - share * square * np.sign(second - square)


def _adaptive(
    schedule: Schedule,
    section: OptimizerSection,
    second_moment: SecondMoment,
    start: float = 0.0,
) -> Optimizer:
    """Makes an optimizer of Reddi et al. 2021; they differ in v, which begins at `start`."""

    def step(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, dict[str, Values]]:
        first = _average(section.betas[0], state.slots["momentum"], update)
        second = second_moment(state.slots["second"], update * update)
        below = np.sqrt(second) + _single(section.tau)
        moved = values + np.divide(_rate(schedule, state) * first, below)
        return moved, {"momentum": first, "second": second}

    return _optimizer_of_step(step, momentum=0.0, second=start)


def _average(beta: float, old: Values, new: Values) -> Values:
    return _single(beta) * old + _single(1.0 - beta) * new


def _rate(schedule: Schedule, state: OptimizerState) -> float:
    return _single(schedule(state.step))


def _single(number: float) -> float:
    """Rounds a number to float32, so that NumPy multiplies float32 vectors by that number."""
    return float(np.float32(number))
