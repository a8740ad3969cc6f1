"""Exactness: SGD, momentum, Nesterov, Adam and Yogi are those of torch and the papers."""

import itertools
import math
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secureps.config.plan import OptimizerSection, ScheduleSection
from secureps.config.sections import Section, parse
from secureps.errors import ConfigError
from secureps.model.optimizer import (
    OPTIMIZERS,
    Optimizer,
    Values,
    build_optimizer,
    build_schedule,
    keeping_exact,
)

NAMES = list(OPTIMIZERS)
STEPS = 12


def run(optimizer: Optimizer, values: Values, updates: list[Values]) -> Values:
    state = optimizer.init(values)
    for update in updates:
        values, state = optimizer.apply(update, values, state)
    return values


def problem(size: int = 97, seed: int = 3) -> tuple[Values, list[Values]]:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size).astype(np.float32)
    scale = np.logspace(-4, 1, size)
    return values, [(scale * rng.normal(size=size)).astype(np.float32) for _ in range(STEPS)]


def run_torch(kind: Any, values: Values, updates: list[Values], **settings: Any) -> Values:
    parameter = torch.nn.Parameter(torch.from_numpy(values.copy()))
    optimizer = kind([parameter], **settings)
    for update in updates:
        parameter.grad = torch.from_numpy(-update)
        optimizer.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize(
    ("settings", "kind", "torch_settings"),
    [
        (OptimizerSection(name="sgd", learning_rate=0.3), torch.optim.SGD, {"lr": 0.3}),
        (
            OptimizerSection(name="momentum", learning_rate=0.1, momentum=0.8),
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.8},
        ),
        (
            OptimizerSection(name="nesterov", learning_rate=0.1, momentum=0.8),
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.8, "nesterov": True},
        ),
        (
            OptimizerSection(name="adam", learning_rate=0.02, betas=(0.9, 0.95), tau=1e-5),
            torch.optim.Adam,
            {"lr": 0.02, "betas": (0.9, 0.95), "eps": 1e-5},
        ),
    ],
)
def test_same_as_torch(
    settings: OptimizerSection, kind: Any, torch_settings: dict[str, Any]
) -> None:
    values, updates = problem()
    ours = run(build_optimizer(settings, 9), values, updates)
    assert ours.dtype == np.float32
    theirs = run_torch(kind, values, updates, **torch_settings)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def test_yogi_is_algorithm_2_of_the_paper() -> None:
    lr, b1, b2, tau = 0.05, 0.9, 0.97, 1e-2
    values, updates = problem()
    settings = OptimizerSection(name="yogi", learning_rate=lr, betas=(b1, b2), tau=tau)
    ours = run(build_optimizer(settings, 9), values, updates)
    for i in range(values.size):
        x, m, v = float(values[i]), 0.0, tau**2
        for update in updates:
            d = float(update[i])
            m = b1 * m + (1 - b1) * d
            if v > d * d:
                v = v - (1 - b2) * d * d
            elif v < d * d:
                v = v + (1 - b2) * d * d
            x = x + lr * m / (math.sqrt(v) + tau)
        assert ours[i] == pytest.approx(x, rel=2e-5, abs=2e-6)


def test_nesterov_is_the_outer_step_of_diloco() -> None:
    """In exact fractions of powers of two: m = m / 2 + u; x += lr (m / 2 + u)."""
    settings = OptimizerSection(name="nesterov", learning_rate=0.75, momentum=0.5)
    optimizer, ones = build_optimizer(settings, 9), np.ones(3, np.float32)
    values, state = optimizer.apply(ones, 0 * ones, optimizer.init(ones))
    assert (values[0], state.slots["momentum"][0]) == (0.75 * 1.5, 1.0)
    values, state = optimizer.apply(ones, values, state)
    assert (values[0], state.slots["momentum"][0]) == (0.75 * (1.5 + 1.75), 1.5)


def test_a_plan_may_name_every_optimizer_and_no_other() -> None:
    assert get_args(OptimizerSection.model_fields["name"].annotation) == tuple(OPTIMIZERS)


@pytest.mark.parametrize("name", NAMES)
@given(cuts=st.lists(st.integers(1, 96), unique=True, max_size=6))
def test_blocks_do_not_matter_bit_for_bit(name: Any, cuts: list[int]) -> None:
    values, updates = problem()
    settings = OptimizerSection(
        name=name, learning_rate=0.1, schedule=ScheduleSection(name="cosine")
    )
    optimizer = build_optimizer(settings, 9)
    whole = run(optimizer, values, updates)
    edges = [0, *sorted(cuts), values.size]
    parts = [
        run(optimizer, values[a:b], [update[a:b] for update in updates])
        for a, b in itertools.pairwise(edges)
    ]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_not_changed_and_float32_stays(name: Any) -> None:
    values, updates = problem()
    optimizer = build_optimizer(OptimizerSection(name=name, learning_rate=0.1), 9)
    state = optimizer.init(values)
    for update in updates[:3]:
        frozen = [values, update, *state.slots.values()]
        for vector in frozen:
            vector.setflags(write=False)
        new_values, new_state = optimizer.apply(update, values, state)
        assert new_state.step == state.step + 1
        assert new_state.slots.keys() == state.slots.keys()
        for vector in (new_values, *new_state.slots.values()):
            assert vector.dtype == np.float32
            assert not any(np.shares_memory(vector, old) for old in frozen)
        values, state = new_values, new_state


def rates(settings: ScheduleSection, steps: range) -> list[float]:
    schedule = build_schedule(settings, 2.0, 4)
    return [schedule(step) for step in steps]


def test_schedules() -> None:
    assert rates(ScheduleSection(), range(3)) == [2.0, 2.0, 2.0]
    assert rates(ScheduleSection(name="warmup", warmup_steps=4), range(6)) == [0.5, 1, 1.5, 2, 2, 2]
    assert rates(ScheduleSection(name="exponential", decay=0.5), range(3)) == [2.0, 1.0, 0.5]
    cosine = rates(ScheduleSection(name="cosine"), range(7))
    half = math.sqrt(0.5)
    assert cosine == pytest.approx([2.0, 1.0 + half, 1.0, 1.0 - half, 0.0, 0.0, 0.0])


def test_the_schedule_is_read_at_the_state_s_step() -> None:
    settings = OptimizerSection(
        name="sgd", learning_rate=1.0, schedule=ScheduleSection(name="exponential", decay=0.5)
    )
    ones = np.ones(2, dtype=np.float32)
    assert run(build_optimizer(settings, 9), 0 * ones, [ones] * 3).tolist() == [1.75, 1.75]


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (OptimizerSection, "name", "lion"),
        (OptimizerSection, "betas", [0.9, 1.0]),
        (ScheduleSection, "name", "linear"),
    ],
)
def test_unknown_names_and_numbers_out_of_range_are_no_settings(
    kind: type[Section], key: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=key):
        parse(kind, {key: value}, "plan.toml")


def test_what_is_published_coarser_is_stepped_from_what_was_made() -> None:
    optimizer = keeping_exact(build_optimizer(OptimizerSection(name="sgd", learning_rate=1.0), 9))
    made = np.array([0.25, -1.5], np.float32)
    state = optimizer.init(made)
    for _ in range(3):
        published, update = np.round(made), np.array([0.125, 0.25], np.float32)
        again, state = optimizer.apply(update, published, state)
        assert np.array_equal(again, made + update)
        made = again
