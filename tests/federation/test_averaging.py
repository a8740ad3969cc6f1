"""Exactness: a plan that states only its rule, and BatchNorm, train as averaging of floats."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from secureps.client.torch import TorchTrainer
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import PlanRefused
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from secureps.scenario.datasets import digits
from tests.kits.federations import averaged, small_plan
from tests.kits.privacy_kit import PRIVACY

FEW_VERSIONS = 6


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


SHARES = (20, 1000, 40, 60, 80)
LOCAL = {"lr": 0.1, "momentum": 0.9, "local_epochs": 4}


def cast() -> dict[str, TorchTrainer]:
    data, start, trainers = digits(1), 0, {}
    held_out = (data.held_out_x, data.held_out_y)
    for number, size in enumerate(SHARES):
        part = slice(start, start + size)
        trainers[f"client-{number:02d}"] = TorchTrainer(
            perceptron, (data.x[part], data.y[part]), held_out, device="cpu"
        )
        start += size
    return trainers


@pytest.mark.slow
def test_a_minimal_plan_is_within_a_point_of_float_averaging(tmp_path: Path) -> None:
    body = {
        "name": "minimal",
        "versions": FEW_VERSIONS,
        "cipher": {"name": "plain"},
        "group": [{"rule": {"quorum": 5}}],
        "training": LOCAL,
    }
    plan = Plan(parse(PlanSection, body, "test"))
    trainers = cast()
    simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path)
    simulation.run()
    judge = trainers["client-00"]
    start = judge.parameters(UnsafeSeed(3).derive("initial").integer(63))
    floats = judge.evaluate(averaged(trainers, start, FEW_VERSIONS, LOCAL)).metrics["accuracy"]
    ours = judge.evaluate(dict(simulation.model())).metrics["accuracy"]
    assert ours > floats - 0.01


CLIENTS = client_names(5)
VERSIONS = 6
SETTINGS = {"lr": 0.05, "batch_size": 16, "local_epochs": 2}


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.BatchNorm1d(24),
        nn.ReLU(), nn.Linear(24, 3),
    )  # fmt: skip


def records_of(seed: int, count: int, unit: float) -> tuple[Any, Any]:
    """Three classes, inputs far from zero: without running statistics nothing is told apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    centre = np.array([[6.0, 4.0], [8.0, 4.0], [7.0, 6.0]])
    x = rng.normal(5.0, 1.0, (count, 8))
    x[:, :2] = centre[y] + rng.normal(0, 0.5, (count, 2))
    return (x * unit).astype(np.float32), y.astype(np.int64)


def trainers(unit: float = 1.0) -> dict[str, TorchTrainer]:
    held_out = records_of(99, 500, unit)
    return {
        name: TorchTrainer(model, records_of(i, 120, unit), held_out, device="cpu")
        for i, name in enumerate(CLIENTS)
    }


def federation(folder: Path, **changes: Any) -> Simulation:
    group = {
        "clip": 40.0,
        "range": 4.0,
        "most_examples": 128,
        "rule": {"quorum": 5, "deadline": 10.0},
    } | changes.pop("group", {})
    apart, unit = changes.pop("apart", []), changes.pop("unit", 1.0)
    made: dict[str, Any] = {"local": [], "training": SETTINGS, "versions": VERSIONS} | changes
    plan = small_plan(group=[*apart, group], **made)
    return Simulation(plan, Cast(trainers(unit), UnsafeSeed(3)), folder)


@pytest.mark.slow
def test_statistics_in_a_group_of_their_own_end_as_plain_averaging_does(tmp_path: Path) -> None:
    """Inputs of some hundreds: variances of ten thousand, which no grid for weights carries."""
    rule = {"rule": {"quorum": 5, "deadline": 10.0}}
    apart = {"name": "statistics", "pattern": "*running_*", "bits": 24, "range": 1e5, **rule}
    played = federation(tmp_path, apart=[apart], unit=100.0)
    played.run()
    cast = trainers(100.0)
    judge = cast[CLIENTS[0]]
    reached = judge.evaluate(dict(played.model())).metrics["accuracy"]
    floats = averaged(cast, judge.parameters(1), VERSIONS, SETTINGS)
    plain = judge.evaluate(floats).metrics["accuracy"]
    assert plain > 0.93
    assert reached >= plain - 0.03, "runs of other seeds differ by 0.02"
    assert int(played.model()["1.num_batches_tracked"]) == 0


def test_statistics_that_a_range_cuts_shrink_no_weights_and_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="secureps")
    federation(tmp_path, versions=1, unit=100.0).run()
    assert "update norm" not in caplog.text, "their length is in no norm"
    told = [each for each in caplog.messages if "beyond range" in each]
    assert len(told) == len(CLIENTS)
    assert all(" of them in 1.running_" in each for each in told)


@pytest.mark.slow
def test_what_is_cut_is_told_where_it_is_cut_and_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="secureps")
    played = federation(tmp_path, versions=1, group={"clip": 0.1, "range": 0.01})
    played.run()
    told = [each for each in caplog.records if "update norm" in each.getMessage()]
    assert len(told) == len(CLIENTS)
    assert "client-00: update norm" in caplog.text
    assert "clip 0.1: cut to" in caplog.text
    assert "values are beyond range 0.01: cut to it" in caplog.text
    parties = {each.getMessage().partition(":")[0] for each in told}
    assert parties == set(CLIENTS)
    reports = played.coordinator.telemetry
    figures = {figure.name for report in reports for figure in report.figures}
    assert figures
    assert not any("norm" in name or "clip" in name for name in figures)


def test_noise_on_running_statistics_is_refused_by_their_client(tmp_path: Path) -> None:
    private = PRIVACY | {"placement": "local"}
    group = {"weighting": "uniform", "range": None}
    played = federation(tmp_path, privacy=private, group=group, versions=1)
    with pytest.raises(PlanRefused, match=r"'1\.running_mean' and 3 more"):
        played.run()
    kept = ["*running_mean", "*running_var"]
    federation(tmp_path / "kept", privacy=private, group=group, versions=1, local=kept).run()
