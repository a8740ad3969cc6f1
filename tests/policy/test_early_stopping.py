"""The best version and early stopping, as functions of the evaluations."""

from typing import Any

import pytest

from secureps.config.plan import EvaluationSection
from secureps.messages.evaluation import Metric, VersionEvaluated
from secureps.policy.checks.evaluation import find_best, why_stop


def evaluations(*values: float) -> tuple[VersionEvaluated, ...]:
    return tuple(VersionEvaluated(2 * i, (Metric("m", v),)) for i, v in enumerate(values, 1))


def section(goal: str = "max", **rule: Any) -> EvaluationSection:
    stop = rule or None
    best = {"metric": "m", "goal": goal}
    return EvaluationSection.model_validate(
        {"every": 2, "metrics": {"m": 1.0}, "best": best, "stop": stop}
    )


@pytest.mark.parametrize(
    ("goal", "values", "version"),
    [
        ("max", (0.1, 0.4, 0.3), 4),
        ("min", (0.1, 0.4, 0.3), 2),
        ("max", (0.4, 0.4), 2),  # the earliest of equals
        ("min", (-1.0, -2.0, -2.0), 4),
    ],
)
def test_the_best_is_the_most_or_the_least(
    goal: str, values: tuple[float, ...], version: int
) -> None:
    found = find_best(evaluations(*values), section(goal))
    assert found is not None
    assert found.version == version


@pytest.mark.parametrize(
    ("values", "rule", "ends"),
    [
        ((), {"patience": 1}, False),
        ((0.1, 0.1, 0.1), {}, False),
        ((0.1, 0.2, 0.22), {"patience": 2, "least": 0.05}, False),
        ((0.1, 0.12, 0.2, 0.21), {"patience": 2, "least": 0.05}, False),  # 0.2 began anew
        ((0.25, 0.5), {"patience": 1, "least": 0.25}, True),
        ((0.25, 0.5625), {"patience": 1, "least": 0.25}, False),
        ((0.25, 0.25), {"patience": 1, "least": 0.0}, True),
        ((0.1, 0.14, 0.18, 0.22), {"patience": 3, "least": 0.05}, False),  # small steps together
        ((0.5, 0.4, 0.3), {"goal": "min", "patience": 1}, False),
        ((0.5, 0.6), {"goal": "min", "patience": 1}, True),
    ],
)
def test_patience_counts_evaluations_without_improvement_in_a_row(
    values: tuple[float, ...], rule: dict[str, Any], ends: bool
) -> None:
    assert bool(why_stop(evaluations(*values), section(**rule))) is ends


def test_the_end_says_what_did_not_improve() -> None:
    reason = why_stop(evaluations(0.1, 0.2, 0.22, 0.25), section(patience=2, least=0.05))
    assert reason == (
        "2 evaluations in a row did not improve m by more than 0.05 on version 4's 0.2000"
    )
    assert find_best((), section()) is None


@pytest.mark.parametrize(("goal", "before", "after"), [("max", 0.7, 0.8), ("min", 0.9, 0.8)])
def test_a_target_ends_the_run_when_it_is_reached(goal: str, before: float, after: float) -> None:
    rule = section(goal, target=0.8)
    assert why_stop(evaluations(before), rule) is None
    reason = why_stop(evaluations(before, after), rule)
    assert reason == "version 4 reached the target: m 0.8000, 0.8 was asked for"
