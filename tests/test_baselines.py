"""Holders alone: as many trainings, the same settings and privacy, and nobody else's data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from secureps.client.script import Script
from secureps.client.trainer import Array, EvaluateResult, FitConfig, FitResult, RecordPrivacy
from secureps.config import PlanSection
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.plan import Plan
from secureps.run.baselines import Judge, Race, Score, run_baselines, train_alone
from secureps.sections import parse

PLAN = Plan(
    parse(
        PlanSection,
        {
            "name": "p",
            "versions": 9,
            "group": [{"rule": {"quorum": 5}}],
            "training": {"lr": 0.5, "local_steps": 2},
            "privacy": {
                "noise_multiplier": 1.0,
                "max_grad_norm": 2.0,
                "records": 10,
                "sample_rate": 0.5,
                "delta": 1e-5,
                "budget": 3.0,
            },
        },
        "test",
    )
)
START: dict[str, Array] = {"w": np.zeros(2, np.float32)}
SCRIPT = """
from secureps.client.trainer import EvaluateResult, FitResult

class Holder:
    def __init__(self, step): self.step = step
    def fit(self, parameters, config):
        return FitResult({"w": parameters["w"] + self.step}, 1, {}, 2)
    def evaluate(self, parameters):
        return EvaluateResult(1.0, 4, {"accuracy": float(parameters["w"][0])})

def make(settings): return Holder(float(settings["step"]))
"""
MORE = """
def make_evaluator(settings): return Holder(0)
def central(settings): return EvaluateResult(0.5, 4, {"accuracy": float(settings["best"])})
"""


class Recorder:
    def __init__(self) -> None:
        self.configs: list[FitConfig] = []

    def parameters(self, seed: int) -> dict[str, Array]:
        return dict(START)

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        self.configs.append(config)
        parameters["w"] += 1
        return FitResult(parameters, 1, {}, 2)

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        return EvaluateResult(0.0, 1, {})


def race(tmp_path: Path, code: str, versions: int = 3, start: bool = True) -> tuple[Race, Judge]:
    path = tmp_path / "script.py"
    path.write_text(code)
    holders = {"a": {"step": "0.1"}, "b": {"step": "0.2"}}
    script = Script(path)
    pooled = {"best": "0.9"}
    made = Race(PLAN, script, versions, holders, pooled, START if start else {}, UnsafeSeed(1))
    return made, Judge(script, pooled, local=False)


def test_alone_trains_once_per_version_from_the_same_start() -> None:
    trainer = Recorder()
    model = train_alone(trainer, "a", START, 4, PLAN, UnsafeSeed(3))
    assert model["w"].tolist() == [4, 4]
    assert START["w"].tolist() == [0, 0]
    assert [dict(config.versions) for config in trainer.configs] == [{"all": v} for v in range(4)]
    assert len({config.seed for config in trainer.configs}) == 4
    for config in trainer.configs:
        assert config.settings == PLAN.section.training
        assert config.privacy == RecordPrivacy(1.0, 2.0, 0.5, 1e-5)


def test_everybody_is_judged_alike(tmp_path: Path) -> None:
    made, judge = race(tmp_path, SCRIPT + MORE)
    said: list[str] = []
    done = run_baselines(made, judge, said.append)
    assert {name: score.value for name, score in done.alone.items()} == pytest.approx(
        {"a": 0.3, "b": 0.6}
    )
    assert done.central == Score("accuracy", 0.9, 0.5, 4)
    assert done.notes == ()
    trained = ("a alone", "b alone", "centrally, without privacy")
    assert said == [f"for comparison, trains {who}" for who in trained]


def test_what_a_script_does_not_offer_is_left_out_with_a_note(tmp_path: Path) -> None:
    made, judge = race(tmp_path, SCRIPT)
    done = run_baselines(made, judge, lambda text: None)
    assert (done.alone, done.central) == ({}, None)
    assert ["make_evaluator" in note or "central" in note for note in done.notes] == [True, True]
    assert judge.score(START) is None


def test_without_version_0_nobody_trains_alone(tmp_path: Path) -> None:
    made, judge = race(tmp_path, SCRIPT + MORE, start=False)
    done = run_baselines(made, judge, lambda text: None)
    assert done.alone == {}
    assert "version 0" in done.notes[0]
    assert done.central is not None


def test_a_model_with_local_parts_is_not_judged(tmp_path: Path) -> None:
    made, _ = race(tmp_path, SCRIPT + MORE)
    judge = Judge(made.script, {}, local=True)
    assert "stay with the clients" in judge.note
    assert judge.score(START) is None


def test_the_score_is_accuracy_or_what_there_is() -> None:
    assert Score.of(EvaluateResult(1.0, 2, {"a": 5.0, "accuracy": 0.5})).measure == "accuracy"
    assert Score.of(EvaluateResult(1.0, 2, {"b": 3.0, "a": 5.0})) == Score("a", 5.0, 1.0, 2)
    assert Score.of(EvaluateResult(1.5, 2, {})) == Score("loss", 1.5, 1.5, 2)
