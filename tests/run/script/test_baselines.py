"""Holders alone: as many trainings, the same settings and privacy, and nobody else's data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.script import Script
from secureps.client.trainer import Array, EvaluateResult, FitConfig, FitResult, RecordPrivacy
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.plan import Plan
from secureps.run.script.scoring import (
    OF_THEIR_OWN,
    Judge,
    Look,
    Race,
    Score,
    find_goal,
    run_baselines,
    train_alone,
)

RAW: dict[str, Any] = {
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
}
PLAN = Plan(parse(PlanSection, RAW, "test"))
START: dict[str, Array] = {"own": np.zeros(1, np.float32), "w": np.zeros(2, np.float32)}
PERSONAL = Plan(PLAN.section.model_copy(update={"local": ("own",)}))
SCRIPT = """
import numpy as np
from secureps.client.trainer import EvaluateResult, FitResult

class Holder:
    def __init__(self, step): self.step = step
    def parameters(self, seed):
        return {"own": np.zeros(1, np.float32), "w": np.zeros(2, np.float32)}
    def fit(self, parameters, config):
        return FitResult({name: each + self.step for name, each in parameters.items()}, 1, {}, 2)
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


def race(tmp_path: Path, code: str, start: bool = True, plan: Plan = PLAN, **own: Array) -> Race:
    """`own` are the clients' local tensors, by client."""
    path = tmp_path / "script.py"
    path.write_text(code)
    holders = {"a": {"step": "0.1"}, "b": {"step": "0.2"}}
    script = Script(path)
    pooled = {"best": "0.9"}
    first = {n: each for n, each in START.items() if n not in plan.section.local} if start else {}

    def newest(name: str) -> dict[str, Array] | None:
        return {"own": own[name]} if name in own else None

    look = Look.at(script.make(holders["a"]))
    judge = Judge(plan, script, holders, pooled, look, newest)
    return Race(judge, 3, {}, first, UnsafeSeed(1))


def test_alone_trains_once_per_version_from_the_same_start() -> None:
    trainer = Recorder()
    *_, model = train_alone(trainer, "a", START, 4, PLAN, UnsafeSeed(3))
    assert model["w"].tolist() == [4, 4]
    assert START["w"].tolist() == [0, 0]
    assert [dict(config.versions) for config in trainer.configs] == [{"all": v} for v in range(4)]
    assert len({config.seed for config in trainer.configs}) == 4
    for config in trainer.configs:
        assert config.settings == PLAN.section.training
        assert config.privacy == RecordPrivacy(1.0, 2.0, 0.5, 1e-5, 10)


def test_what_a_script_does_not_offer_is_left_out_with_a_note(tmp_path: Path) -> None:
    made = race(tmp_path, SCRIPT)
    done = run_baselines(made, lambda text: None)
    assert (done.alone, done.central) == ({}, None)
    assert ["make_evaluator" in note or "central" in note for note in done.notes] == [True, True]
    assert made.judge.score(START) is None


def test_without_version_0_nobody_trains_alone(tmp_path: Path) -> None:
    made = race(tmp_path, SCRIPT + MORE, start=False)
    done = run_baselines(made, lambda text: None)
    assert done.alone == {}
    assert "version 0" in done.notes[0]
    assert done.central is not None
    assert not done.noiseless, "record-level noise is each holder's own"


OWN = SCRIPT.replace('["w"][0]', '["w"][0] + parameters["own"][0]')


def test_holders_with_local_tensors_judge_their_own_models(tmp_path: Path) -> None:
    """Nobody else has such a model: a mean of the holders' scores, alone as together."""
    made = race(tmp_path, OWN + MORE, plan=PERSONAL, a=np.full(1, 0.5, np.float32))
    assert made.judge.notes == (OF_THEIR_OWN,)
    score = made.judge.score({"w": np.full(2, 0.25, np.float32)})
    assert score == Score("accuracy", (0.75 + 0.25) / 2, 1.0, 8)
    done = run_baselines(made, lambda text: None)
    alone = {name: score.value for name, score in done.alone.items()}
    assert alone == pytest.approx({"a": 0.6, "b": 1.2})
    assert done.central is not None
    assert done.notes == (OF_THEIR_OWN,)


def test_local_tensors_that_nothing_trains_are_filled_in(tmp_path: Path) -> None:
    """Counters, frozen parameters: the script's evaluator judges, as if they were not local."""
    kinds = "    def kinds(self): return {'own': 'constant'}\n\ndef make("
    made = race(tmp_path, OWN.replace("\ndef make(", kinds) + MORE, plan=PERSONAL)
    assert made.judge.notes == ()
    assert made.judge.score({"w": np.full(2, 0.25, np.float32)}) == Score("accuracy", 0.25, 1.0, 4)
    assert set(run_baselines(made, lambda text: None).alone) == {"a", "b"}


FAILING = """
def make_evaluator(settings): raise KeyError("no held-out records")
def central(settings): return 1 / 0
"""


def test_what_a_script_fails_at_is_noted_once_and_ends_nothing(tmp_path: Path) -> None:
    made = race(tmp_path, SCRIPT + FAILING)
    (note,) = made.judge.notes
    assert "no held-out score: make_evaluator(settings) raised KeyError" in note
    assert "in make_evaluator)" in note
    assert made.judge.score(START) is None
    done = run_baselines(made, lambda text: None)
    assert done.alone == {}
    assert done.notes[0] == note
    assert "central training: left out: central(settings) raised ZeroDivisionError" in done.notes[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise RuntimeError('no GPU')", "evaluate raised RuntimeError: no GPU (script.py:"),
        ("return EvaluateResult(float('nan'), 4, {})", "what evaluate returned: loss is nan"),
        ("return EvaluateResult(1.0, 4, {'f1': float('nan')})", "f1 is nan"),
        ("return 0.5", "it is a float, and must be an EvaluateResult"),
        ("raise SystemExit(2)", "evaluate raised SystemExit: 2"),
    ],
)
def test_an_evaluation_that_fails_is_noted_once(tmp_path: Path, line: str, said: str) -> None:
    kept = SCRIPT.index("        return EvaluateResult(1.0")
    code = SCRIPT[:kept] + f"        {line}\n" + SCRIPT[SCRIPT.index("\ndef make(") :]
    made = race(tmp_path, code + MORE)
    assert made.judge.note == ""
    assert made.judge.score(START) is None
    first = made.judge.failed
    assert said in first
    assert made.judge.score(START) is None
    assert made.judge.failed == first
    done = run_baselines(made, lambda text: None)
    assert (done.alone, done.central) == ({}, Score("accuracy", 0.9, 0.5, 4))
    assert done.notes[0] == first


def test_the_score_is_accuracy_or_what_there_is() -> None:
    assert Score.of(EvaluateResult(1.0, 2, {"a": 5.0, "accuracy": 0.5})).measure == "accuracy"
    assert Score.of(EvaluateResult(1.0, 2, {"b": 3.0, "a": 5.0})).measure == "a"
    assert Score.of(EvaluateResult(1.5, 2, {})) == Score("loss", 1.5, 1.5, 2)


def test_the_score_is_the_plans_metric_and_all_others_are_kept() -> None:
    result = EvaluateResult(1.0, 2, {"mae": 3.0, "accuracy": 0.5, "gap": float("nan")})
    judged = Score.of(result, by("mae", "min"))
    assert judged == Score("mae", 3.0, 1.0, 2, {"accuracy": 0.5})
    assert judged.metrics == {"mae": 3.0, "accuracy": 0.5, "loss": 1.0}


def by(metric: str, goal: str) -> Plan:
    evaluation = {"every": 1, "metrics": {metric: 4.0}, "best": {"metric": metric, "goal": goal}}
    plan = {k: v for k, v in RAW.items() if k != "privacy"} | {"evaluation": evaluation}
    return Plan(parse(PlanSection, plan, "test"))


KNOWN: dict[str, str | None] = {
    **dict.fromkeys(("mae", "RMSE", "val_loss", "logloss", "test-error", "wer"), "min"),
    **dict.fromkeys(("MeanAbsoluteError", "perplexity", "negative_log_likelihood"), "min"),
    **dict.fromkeys(("accuracy", "top5_acc", "f1", "r2_score", "valAUC", "hit@10"), "max"),
    **dict.fromkeys(("neg_mean_squared_error", "macro avg precision"), "max"),
    **dict.fromkeys(("lift", "spread", "rank", ""), None),
}


@pytest.mark.parametrize(("measure", "found"), KNOWN.items())
def test_what_is_better_is_known_by_the_name_or_unknown(measure: str, found: str | None) -> None:
    assert find_goal(measure) == found
    assert find_goal(measure, PLAN) == found


def test_a_plan_says_what_is_better_of_its_metric_alone() -> None:
    assert find_goal("lift", by("lift", "min")) == "min"
    assert find_goal("accuracy", by("accuracy", "min")) == "min"
    assert find_goal("mae", by("lift", "max")) == "min"


@pytest.mark.parametrize(
    ("measure", "outer"),
    [("accuracy", {"the best": 0.6}), ("mae", {"the best": 0.3}),
     ("lift", {"the lowest": 0.3, "the highest": 0.6})],
)  # fmt: skip
def test_the_best_holder_alone_is_the_best_by_its_metric(
    measure: str, outer: dict[str, float], tmp_path: Path
) -> None:
    made = race(tmp_path, (SCRIPT + MORE).replace('"accuracy"', repr(measure)))
    done = run_baselines(made, lambda text: None)
    assert {which: s.value for which, s in done.outer.items()} == pytest.approx(outer)
    unknown = any("nothing says whether more or less lift is better" in n for n in done.notes)
    assert unknown is (measure == "lift")


def test_what_central_returns_is_checked_as_what_evaluate_does(tmp_path: Path) -> None:
    code = SCRIPT + MORE.replace("return EvaluateResult(0.5, 4, {", "return (0.5, 4, {")
    done = run_baselines(race(tmp_path, code), lambda text: None)
    assert done.central is None
    said = "central training: left out: what central(settings) returned: it is a tuple, and must be"
    assert any(note.startswith(said) for note in done.notes), done.notes


CLIENT_LEVEL = {
    "unit": "client",
    "placement": "local",
    "noise_multiplier": 1.0,
    "delta": 1e-5,
    "budget": 99.0,
}


def test_a_holder_that_fails_alone_leaves_the_others_their_scores(tmp_path: Path) -> None:
    """What is wrong may lie in one holder's records: it is named, and spoils no mean."""
    broken = 'def make(settings):\n    return Holder(1 / (float(settings["step"]) - 0.1))\n'
    code = SCRIPT.replace('def make(settings): return Holder(float(settings["step"]))', broken)
    made = race(tmp_path, SCRIPT + MORE)
    (tmp_path / "script.py").write_text(code + MORE)
    made.judge.script = Script(tmp_path / "script.py")
    done = run_baselines(made, lambda text: None)
    assert list(done.alone) == ["b"]
    assert done.alone["b"].value == pytest.approx(30.0)
    (note,) = done.notes
    assert note.startswith("a failed alone, and is not compared: make(settings) raised Zero")


def test_holders_that_fail_alone_in_one_way_are_named_in_one_note(tmp_path: Path) -> None:
    code = SCRIPT.replace("return FitResult({", "raise OSError('no disk')\n        return ({")
    made = race(tmp_path, code + MORE)
    made.judge.holders = {"site-0": {"step": "0.1"}, "site-1": {"step": "0.2"}}
    done = run_baselines(made, lambda text: None)
    assert done.alone == {}
    (note,) = done.notes
    assert note.startswith("site-0 failed alone, and is not compared: fit raised OSError: no disk")
    assert note.endswith("; so did site-1")


def test_holders_alone_have_no_noise_under_client_level_privacy_and_their_lines_say_so(
    tmp_path: Path,
) -> None:
    group = [{"rule": {"quorum": 5}, "weighting": "uniform"}]
    body = {"name": "p", "versions": 9, "group": group, "privacy": CLIENT_LEVEL}
    made = race(tmp_path, SCRIPT + MORE, plan=Plan(parse(PlanSection, body, "test")))
    said: list[str] = []
    done = run_baselines(made, said.append)
    assert said[0] == "for comparison, trains a alone, without noise"
    assert done.noiseless
