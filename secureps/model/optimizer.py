"""Server optimizers: pure (init, apply) pairs over flattened values, in optax's style.

They work element by element in float32, so a group may be cut into blocks anywhere and
the model comes out the same, bit for bit. An update is the cohort's mean of (trained
model - base model), so the pseudo-gradient is minus the update (Reddi et al. 2021,
"Adaptive Federated Optimization"). Only + - * / and square roots are applied to vectors:
IEEE 754 rounds those the same way on every machine. What must not live here: clipping,
noise and weighting, which belong to the update before it gets here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from secureps.errors import PlanRefused, WrongShape
from secureps.wording import meant

Values: TypeAlias = NDArray[np.float32]
Schedule: TypeAlias = Callable[[int], float]
"""A function from the step (0, 1, 2, ...) to its learning rate."""


@dataclass(frozen=True, eq=False)
class OptimizerState:
    """The state of an optimizer for one block.

    Args:
        step: how many updates were applied.
        slots: float32 vectors as long as the values, by name ("momentum", "second").
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

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Optimizer:
    """A pair of pure functions; neither changes its arguments.

    `init(values)` gives the state before the first update. `apply(update, values, state)`
    gives (new values, new state). Vectors are float32 of shape (n,), for any n.

    Raises:
        WrongShape: update, values and slots differ in shape.
    """

    init: Callable[[Values], OptimizerState]
    apply: Callable[[Values, Values, OptimizerState], tuple[Values, OptimizerState]]


@dataclass(frozen=True)
class ScheduleSettings:
    """The settings of a learning rate schedule; see the function of its name.

    Args:
        name: "constant", "cosine", "exponential" or "warmup".
        total_steps: cosine: steps until the floor is reached.
        floor: cosine: the learning rate at the end.
        decay: exponential: factor per step, in (0, 1].
        warmup_steps: warmup: steps until the full learning rate.
    """

    name: str = "constant"
    total_steps: int = 100
    floor: float = 0.0
    decay: float = 0.99
    warmup_steps: int = 10


@dataclass(frozen=True)
class OptimizerSettings:
    """A server optimizer by name; the defaults are federated averaging.

    Args:
        name: "sgd", "momentum", "adam", "yogi", "fedadam", "fedyogi", "fedadagrad", or
            "replace" for what is no model.
        learning_rate: of the server.
        schedule: how it changes.
        momentum: of "momentum", in [0, 1).
        betas: of all but "sgd" and "momentum", each in [0, 1).
        tau: what keeps the denominator from zero: epsilon of "adam", tau of the others
            (1e-3 in Reddi et al. 2021).
    """

    name: str = "sgd"
    learning_rate: float = 1.0
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = 1e-3


def constant(learning_rate: float) -> Schedule:
    """The same learning rate for ever."""
    return lambda step: learning_rate


def cosine(learning_rate: float, total_steps: int, floor: float = 0.0) -> Schedule:
    """Half a cosine from `learning_rate` to `floor` (Loshchilov and Hutter 2017, without restarts).

    It stays at the floor after `total_steps`.
    """

    def at(step: int) -> float:
        done = min(step, total_steps) / total_steps
        return floor + (learning_rate - floor) * 0.5 * (1.0 + math.cos(math.pi * done))

    return at


def exponential(learning_rate: float, decay: float) -> Schedule:
    """learning_rate * decay^step."""
    return lambda step: learning_rate * decay**step


def warmup(learning_rate: float, warmup_steps: int) -> Schedule:
    """Linear growth over `warmup_steps` (step 0 is not zero), then constant."""
    return lambda step: learning_rate * min(1.0, (step + 1) / warmup_steps)


def sgd(schedule: Schedule) -> Optimizer:
    """x += lr * update; with lr = 1 this is federated averaging (McMahan et al. 2017)."""

    def init(values: Values) -> OptimizerState:
        return OptimizerState(0, {})

    def apply(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        _demand_shapes(update, values, state)
        moved = values + np.float32(schedule(state.step)) * update
        return moved, OptimizerState(state.step + 1, {})

    return Optimizer(init, apply)


def momentum(schedule: Schedule, decay: float) -> Optimizer:
    """m = decay * m + update; x += lr * m: heavy ball as in `torch.optim.SGD`, no dampening."""

    def init(values: Values) -> OptimizerState:
        return OptimizerState(0, {"momentum": np.zeros(values.shape, dtype=np.float32)})

    def apply(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        _demand_shapes(update, values, state)
        first = np.float32(decay) * state.slots["momentum"] + update
        moved = values + np.float32(schedule(state.step)) * first
        return moved, OptimizerState(state.step + 1, {"momentum": first})

    return Optimizer(init, apply)


def adam(schedule: Schedule, betas: tuple[float, float], epsilon: float) -> Optimizer:
    """Adam with bias correction, as in `torch.optim.Adam` (Kingma and Ba 2015, Algorithm 1).

    FedAdam of Reddi et al. 2021 has no bias correction; see `yogi` for that family.
    """

    def init(values: Values) -> OptimizerState:
        zeros = np.zeros(values.shape, dtype=np.float32)
        return OptimizerState(0, {"momentum": zeros, "second": zeros.copy()})

    def apply(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        _demand_shapes(update, values, state)
        first = _average(betas[0], state.slots["momentum"], update)
        second = _average(betas[1], state.slots["second"], update * update)
        count = state.step + 1
        rate = np.float32(schedule(state.step) / (1.0 - betas[0] ** count))
        bias = np.float32(math.sqrt(1.0 - betas[1] ** count))
        root: Values = np.sqrt(second)
        moved = values + rate * first / (root / bias + np.float32(epsilon))
        return moved, OptimizerState(count, {"momentum": first, "second": second})

    return Optimizer(init, apply)


def yogi(schedule: Schedule, betas: tuple[float, float], tau: float) -> Optimizer:
    """FedYogi (Reddi et al. 2021, Algorithm 2): no bias correction, v starts at tau^2.

    m = b1 m + (1 - b1) u;  v = v - (1 - b2) u^2 sign(v - u^2);  x += lr m / (sqrt(v) + tau).
    """
    return _adaptive(schedule, betas[0], _yogi(betas[1]), tau, tau * tau)


def fedyogi(schedule: Schedule, betas: tuple[float, float], tau: float) -> Optimizer:
    """FedYogi as Flower 1.41 has it: `yogi`, but v starts at 0."""
    return _adaptive(schedule, betas[0], _yogi(betas[1]), tau)


def fedadagrad(schedule: Schedule, betas: tuple[float, float], tau: float) -> Optimizer:
    """FedAdagrad as Flower 1.41 has it (Reddi et al. 2021, Algorithm 2, but v starts at 0).

    m as in `yogi` (Flower's b1 is 0);  v = v + u^2;  x += lr m / (sqrt(v) + tau).
    """
    return _adaptive(schedule, betas[0], lambda second, square: second + square, tau)


def fedadam(schedule: Schedule, betas: tuple[float, float], tau: float) -> Optimizer:
    """FedAdam as Flower 1.41 has it: m and v of Adam, both from 0.

    x += lr sqrt(1 - b2^(t+1)) / (1 - b1^(t+1)) m / (sqrt(v) + tau), in round t = 1, 2, ...
    """

    def rate(step: int) -> float:
        power = step + 2  # t + 1
        return schedule(step) * math.sqrt(1 - betas[1] ** power) / (1 - betas[0] ** power)

    def second_moment(second: Values, square: Values) -> Values:
        return _average(betas[1], second, square)

    return _adaptive(rate, betas[0], second_moment, tau)


SecondMoment: TypeAlias = Callable[[Values, Values], Values]
"""The new v from the old one and the square of an update."""


def _yogi(beta: float) -> SecondMoment:
    def second_moment(second: Values, square: Values) -> Values:
        made: Values = second - np.float32(1.0 - beta) * square * np.sign(second - square)
        return made

    return second_moment


def _adaptive(
    schedule: Schedule, beta: float, second_moment: SecondMoment, tau: float, start: float = 0.0
) -> Optimizer:
    """The family of Reddi et al. 2021: they differ in v, which begins at `start`."""

    def init(values: Values) -> OptimizerState:
        zeros = np.zeros(values.shape, dtype=np.float32)
        return OptimizerState(0, {"momentum": zeros, "second": zeros + np.float32(start)})

    def apply(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        _demand_shapes(update, values, state)
        first = _average(beta, state.slots["momentum"], update)
        second = second_moment(state.slots["second"], update * update)
        rate = np.float32(schedule(state.step))
        root: Values = np.sqrt(second)
        moved = values + rate * first / (root + np.float32(tau))
        return moved, OptimizerState(state.step + 1, {"momentum": first, "second": second})

    return Optimizer(init, apply)


def replace() -> Optimizer:
    """x = update: the opened mean is the new value itself, not a change of the old one."""

    def init(values: Values) -> OptimizerState:
        return OptimizerState(0, {})

    def apply(
        update: Values, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        _demand_shapes(update, values, state)
        return update.copy(), OptimizerState(state.step + 1, {})

    return Optimizer(init, apply)


def build_schedule(settings: ScheduleSettings, learning_rate: float) -> Schedule:
    """Makes the schedule of a name; PlanRefused for an unknown name or a number out of range."""
    builders: dict[str, Callable[[], Schedule]] = {
        "constant": lambda: constant(learning_rate),
        "cosine": lambda: cosine(learning_rate, settings.total_steps, settings.floor),
        "exponential": lambda: exponential(learning_rate, settings.decay),
        "warmup": lambda: warmup(learning_rate, settings.warmup_steps),
    }
    _demand(0 < learning_rate < math.inf, "learning rate", "finite and > 0", learning_rate)
    _demand(settings.total_steps >= 1, "total_steps", "at least 1", settings.total_steps)
    _demand(0 <= settings.floor <= learning_rate, "floor", "0 to the learning rate", settings.floor)
    _demand(0 < settings.decay <= 1, "decay", "in (0, 1]", settings.decay)
    _demand(settings.warmup_steps >= 1, "warmup_steps", "at least 1", settings.warmup_steps)
    if settings.name not in builders:
        raise PlanRefused(f"unknown schedule {settings.name!r}: {meant(settings.name, builders)}")
    return builders[settings.name]()


def build_optimizer(settings: OptimizerSettings) -> Optimizer:
    """Makes the optimizer of a name; PlanRefused for an unknown name or a number out of range."""
    rate = build_schedule(settings.schedule, settings.learning_rate)
    builders: dict[str, Callable[[], Optimizer]] = {
        "sgd": lambda: sgd(rate),
        "momentum": lambda: momentum(rate, settings.momentum),
        "adam": lambda: adam(rate, settings.betas, settings.tau),
        "yogi": lambda: yogi(rate, settings.betas, settings.tau),
        "fedadam": lambda: fedadam(rate, settings.betas, settings.tau),
        "fedyogi": lambda: fedyogi(rate, settings.betas, settings.tau),
        "fedadagrad": lambda: fedadagrad(rate, settings.betas, settings.tau),
        "replace": replace,
    }
    _demand(0 <= settings.momentum < 1, "momentum", "in [0, 1)", settings.momentum)
    for beta in settings.betas:
        _demand(0 <= beta < 1, "betas", "in [0, 1)", beta)
    _demand(0 < settings.tau < math.inf, "tau", "finite and > 0", settings.tau)
    if settings.name not in builders:
        known = [name for name in builders if name != "replace"]  # which is for metrics
        raise PlanRefused(f"unknown optimizer {settings.name!r}: {meant(settings.name, known)}")
    return builders[settings.name]()


def _average(beta: float, old: Values, new: Values) -> Values:
    """The exponential moving average beta * old + (1 - beta) * new."""
    return np.float32(beta) * old + np.float32(1.0 - beta) * new


def _demand(sound: bool, name: str, expected: str, value: float) -> None:
    if not sound:
        raise PlanRefused(f"the optimizer's {name} is {value}: it must be {expected}")


def _demand_shapes(update: Values, values: Values, state: OptimizerState) -> None:
    for name, vector in {"update": update, "values": values, **state.slots}.items():
        if vector.shape != values.shape or vector.dtype != np.float32:
            raise WrongShape(
                f"{name} is {vector.dtype}{list(vector.shape)}, expected "
                f"float32{list(values.shape)} as the values"
            )
