"""A script that cannot evaluate: its client declines, says why where it runs, and trains on."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from secureps.client.trainer import EvaluateResult
from secureps.errors import ConfigError, Malformed, PlanRefused
from secureps.messages.evaluation import EVALUATION
from secureps.messages.requests import Decline
from tests.federation.test_evaluating import JUDGE, MINIMUM, cast, designated
from tests.kits.evaluations import Examiner, evaluated_plan, examined, metrics_of
from tests.kits.federations import Tensors


class Silent(Examiner):
    """Has no accuracy."""

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return EvaluateResult(1.0, 10, {"speed": 1.0})


class Undefined(Examiner):
    """Divides by zero."""

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return EvaluateResult(math.nan, 10, {"accuracy": 1.0})


def says(*result: object) -> type[Examiner]:
    """A kind of examiner that says this of every model."""
    made = EvaluateResult(*result)  # type: ignore[arg-type]
    return type("Says", (Examiner,), {"evaluate": lambda self, p: made})


def fails(error: Exception) -> type[Examiner]:
    """A kind of examiner that raises an error of ours."""

    def evaluate(self: Examiner, parameters: Tensors) -> EvaluateResult:
        raise error

    return type("Fails", (Examiner,), {"evaluate": evaluate})


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Silent, "what evaluate returned: there is no metric 'accuracy'"),
        (Undefined, "metric 'loss' is nan"),
        (type("Raises", (Examiner,), {"evaluate": lambda self, p: 1 / 0}), "ZeroDivisionError"),
        (says(1.0, 0, {"accuracy": 1.0}), "0 examples: at least 1 is needed"),
        (says(1.0, None, {"accuracy": 1.0}), "examples is None, and must be a whole number"),
        (says(1.0, 2.5, {"accuracy": 1.0}), "examples is 2.5, and must be a whole number"),
        (says(1.0, 5, {"accuracy": None}), "metric 'accuracy' is None, and must be a number"),
        (says("low", 5, {"accuracy": 1.0}), "loss is 'low', and must be a number, or None"),
        (fails(ConfigError("no file of held-out records")), "no file of held-out records"),
        (fails(PlanRefused("this plan judges nothing")), "this plan judges nothing"),
        (type("Tuple", (Examiner,), {"evaluate": lambda self, p: (1.0, 2)}), "EvaluateResult"),
    ],
)
def test_a_script_that_cannot_evaluate_is_told_so_once_and_trains_on(
    kind: type[Examiner], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator hears that it sends none, and not why."""
    caplog.set_level(logging.INFO, logger="secureps")
    trainers = cast(Examiner) | {"client-03": kind(3)}
    simulation = examined(evaluated_plan(evaluation={"rule": MINIMUM}), tmp_path, trainers=trainers)
    simulation.run()
    federation = simulation.coordinator.federation
    assert simulation.versions() == {"all": 5}
    assert list(metrics_of(simulation)) == [2, 4, 5]
    assert sum(id.client == "client-03" for id in federation.fates) == 5
    lines = [each.getMessage() for each in caplog.records]
    told = [line for line in lines if reason in line]
    assert len(told) == 1
    assert told[0].startswith("client-03: sends no evaluation: ")
    assert "client-03 takes no part: sends no evaluation" in caplog.text
    own = [line for line in lines if line.startswith("client-01: evaluates version ")]
    assert [line.split()[3] for line in own] == ["2:", "4:", "5:"], "its data holder hears of each"
    assert "evaluation: version" not in caplog.text, "no other numbers of evaluations are told"


def test_an_evaluator_whose_script_fails_holds_nobody_up(tmp_path: Path) -> None:
    plan = evaluated_plan(evaluation={"evaluator": JUDGE})
    trainers = cast(Examiner, 7) | {JUDGE: Silent(6)}
    simulation = examined(plan, tmp_path, trainers=trainers)
    simulation.run()
    assert simulation.versions() == {"all": 5}
    skipped = simulation.coordinator.federation.evaluations.skipped
    why = f"{JUDGE}: sends no evaluation; its own log says why"
    assert skipped == dict.fromkeys((2, 4, 5), why)
    assert simulation.loop.now() < 5.0, "a round waited for who had declined"


def test_an_evaluator_declines_what_it_is_to_judge_now_and_nothing_else(tmp_path: Path) -> None:
    simulation = designated(tmp_path)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    simulation.kill(JUDGE)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    coordinator = simulation.coordinator
    for version in (1, 3, 4):
        coordinator.handle(0.0, JUDGE, Decline(JUDGE, EVALUATION, version, "no"))
    assert coordinator.federation.evaluations.skipped == {}
    with pytest.raises(Malformed, match="no group is called"):
        coordinator.handle(0.0, "client-00", Decline("client-00", EVALUATION, 2, "no"))
    coordinator.handle(0.0, JUDGE, Decline(JUDGE, EVALUATION, 2, "no"))
    assert coordinator.federation.evaluations.skipped == {2: f"{JUDGE}: no"}
