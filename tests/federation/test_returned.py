"""Scripts that return what people write: the same bits as plain numbers give, or words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secureps.client.script import Script
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ScriptFailed, TooFew
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from tests.kits.evaluations import Examiner, evaluated_plan, examined, judged, metrics_of
from tests.kits.federations import (
    Tensors,
    Walker,
    finished,
    same,
    small_federation,
    small_plan,
    unharmed,
)
from tests.kits.flower_apps import CLIENT_APP, write

CLIENTS = client_names(6)


class Loose(Examiner):
    """Returns what torch and NumPy make of the same numbers, and metrics that are none."""

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        plain = super().fit(parameters, config)
        loose: dict[str, Any] = {
            name: torch.tensor(each, dtype=torch.float64, requires_grad=True)
            for name, each in plain.parameters.items()
        }
        loose["head.bias"] = plain.parameters["head.bias"].tolist()
        nothing: Any = None
        examples: Any = np.float32(plain.examples)
        return FitResult(loose, examples, nothing, np.int64(plain.steps))  # type: ignore[arg-type]

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        plain = judged(self.number, parameters)
        metrics: Any = {
            "accuracy": torch.tensor(plain.metrics["accuracy"], dtype=torch.float64),
            "table": [1, 2],
        }
        loss: Any = np.array([plain.loss])
        examples: Any = np.int64(plain.examples)
        return EvaluateResult(loss, examples, metrics)


def test_the_same_bits_as_of_plain_numbers(tmp_path: Path) -> None:
    plan = evaluated_plan()
    plain = examined(plan, tmp_path / "plain")
    loose = small_federation(plan, tmp_path / "loose", kind=Loose)
    for played in (plain, loose):
        played.run()
    assert same(plain.model(), loose.model())
    assert metrics_of(plain) == metrics_of(loose)


class Empty(Walker):
    """Has no records in versions before `since`."""

    def __init__(self, number: int, since: int) -> None:
        super().__init__(number)
        self._since = since

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        made = super().fit(parameters, config)
        there = config.versions["all"] >= self._since
        return FitResult(made.parameters, made.examples * there, {}, made.steps)


def federation(folder: Path, since: dict[str, int], **changes: Any) -> Simulation:
    group = {"clip": 3.0, "range": 1.0, "rule": {"quorum": 6, "minimum": 4, "deadline": 10.0}}
    plan = small_plan(group=[{**group, **changes}], versions=3)
    return small_federation(plan, folder, kind=lambda i: Empty(i, since.get(CLIENTS[i], 0)))


@pytest.mark.parametrize("how", [{}, {"most_examples": 32}, {"weighting": "uniform"}], ids=str)
def test_who_has_no_examples_sits_out_and_comes_back(how: dict[str, Any], tmp_path: Path) -> None:
    """Also where each site counts by a number of its own."""
    played = federation(tmp_path, {CLIENTS[5]: 2}, **how)
    played.run()
    assert played.versions() == {"all": 3}
    counted = [id.client for id in played.coordinator.federation.fates]
    assert (counted.count(CLIENTS[4]), counted.count(CLIENTS[5])) == (3, 1)


@pytest.mark.parametrize("how", [{}, {"most_examples": 32}, {"weighting": "uniform"}], ids=str)
def test_where_nobody_has_examples_the_run_ends_and_says_so(
    how: dict[str, Any], tmp_path: Path
) -> None:
    played = federation(tmp_path, dict.fromkeys(CLIENTS, 3), **how)
    played.run(lambda: finished(played))
    federal = played.coordinator.federation
    assert "too few clients are left for version 1 of all" in federal.finished
    assert "its script trained on 0 examples" in federal.finished
    assert federal.failure == TooFew.__name__


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (np.array([7, 2**24 + 1]), r"tensor 'ids' \(int64\) has the value 16777217"),
        (np.array([0, 2**63 - 1]), r"tensor 'ids' \(int64\) has the value 9223372036854775807"),
        (np.array([1.0, 0.1]), r"tensor 'ids' \(float64\) has the value 0\.1"),
    ],
    ids=["past 2^24", "the largest", "a constant"],
)
def test_a_number_that_float32_cannot_hold_is_refused_and_stays_itself_where_frozen(
    tensor: np.ndarray[Any, Any], named: str, tmp_path: Path
) -> None:
    class Named(Walker):
        def parameters(self, seed: int) -> Tensors:
            return {"ids": tensor.copy(), **super().parameters(seed)}

        def kinds(self) -> dict[str, str]:
            return {"ids": "constant"}

        def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
            ids = parameters.pop("ids")
            assert np.array_equal(ids, tensor), "it became another number"
            made = super().fit(parameters, config)
            return FitResult({"ids": ids, **made.parameters}, made.examples, {}, made.steps)

    travels = small_federation(small_plan(versions=2), tmp_path / "travels", kind=Named)
    founder = travels.parties[CLIENTS[0]].halted
    travels.run(founder.done)
    halt = founder.result()
    assert halt.error is ScriptFailed
    assert "what parameters returned: " in halt.reason
    assert re.search(named, halt.reason)
    assert "which float32 cannot hold" in halt.reason
    frozen = small_plan(versions=2, frozen=["ids"])
    played = small_federation(frozen, tmp_path / "frozen", kind=Named)
    played.run()
    assert same(played.model(), unharmed(versions=2)[0])


def test_a_counter_that_grows_past_what_float32_holds_is_refused(tmp_path: Path) -> None:
    class Counts(Walker):
        def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
            made = super().fit(parameters, config)
            made.parameters["body.count"] = np.array(2**24 + 1)
            return made

    played = small_federation(small_plan(local=[], versions=1), tmp_path, kind=Counts)
    ends = [played.parties[name].halted for name in CLIENTS]
    played.run(lambda: all(end.done() for end in ends))
    assert "what fit returned: tensor 'body.count' (int64) has the value 16777217" in (
        ends[0].result().reason
    )


def test_a_flower_node_without_held_out_records_trains_on(tmp_path: Path) -> None:
    """It said 0 examples, and its client and `up` ended with it."""
    empty = CLIENT_APP.replace(
        "return loss, 4 + self.partition", "return loss, 4 * (self.partition > 0)"
    )
    script = Script(write(tmp_path, empty))
    trainers = {
        name: script.make({"partition": number}, tmp_path / name, name)
        for number, name in enumerate(CLIENTS)
    }
    plan = evaluated_plan(
        local=[],
        training={"lr": 0.5},
        versions=2,
        evaluation={"metrics": {"accuracy": 1.0}, "rule": {"quorum": 6, "minimum": 5}},
    )
    played = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path / "run")
    played.run()
    assert played.versions() == {"all": 2}
    assert list(metrics_of(played)) == [2]
