"""Tables of TOML files: every number of every section is finite, wherever it stands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from secureps.config import PlanSection, ScenarioSection, ServeSection, StudySection
from secureps.errors import ConfigError
from secureps.scenario.delays import Delays
from secureps.sections import Section, parse

RULE = {"name": "ssp", "slack": 0}
PLAN = {"name": "demo", "versions": 1, "group": [{"rule": RULE}]}
SERVE = {"name": "shard-0", "kit": "kit", "state": "state"}
STUDY = {
    "target": 0.5,
    "every": 1.0,
    "seconds": 9.0,
    "seeds": [1],
    "baseline": "one",
    "variant": [{"name": "one"}],
}
SCENARIO = {"name": "demo", "plan": "plan.toml", "script": "script.py", "clients": 3}


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    ("kind", "of", "key"),
    [
        (PlanSection, lambda x: PLAN | {"lease": x}, "lease"),
        (PlanSection, lambda x: PLAN | {"training": {"rate": x}}, "training.rate"),
        (
            PlanSection,
            lambda x: PLAN | {"group": [{"rule": RULE | {"deadline": x}}]},
            "group 1.rule.deadline",
        ),
        (
            PlanSection,
            lambda x: PLAN | {"group": [{"rule": RULE, "optimizer": {"betas": [x, 0.9]}}]},
            "group 1.optimizer.betas 1",
        ),
        (
            PlanSection,
            lambda x: PLAN | {"evaluation": {"every": 1, "metrics": {"loss": x}}},
            "evaluation.metrics.loss",
        ),
        (
            PlanSection,
            lambda x: (
                PLAN | {"evaluation": {"every": 1, "metrics": {"a": 1}, "stop": {"target": x}}}
            ),
            "evaluation.stop.target",
        ),
        (ServeSection, lambda x: SERVE | {"weight": x}, "weight"),
        (ScenarioSection, lambda x: SCENARIO | {"downtime": x}, "downtime"),
        (ScenarioSection, lambda x: SCENARIO | {"settings": {"alpha": x}}, "settings.alpha"),
        (StudySection, lambda x: STUDY | {"seconds": x}, "seconds"),
        (
            StudySection,
            lambda x: STUDY | {"variant": [{"name": "one", "deadlines": [x]}]},
            "variant 1.deadlines 1",
        ),
    ],
)
def test_no_number_is_infinite_or_none(
    kind: type[Section], of: Callable[[float], dict[str, Any]], key: str, number: float
) -> None:
    assert parse(kind, of(0.5), "demo.toml")
    with pytest.raises(ConfigError) as caught:
        parse(kind, of(number), "demo.toml")
    (complaint,) = str(caught.value).split("; ")
    assert complaint.startswith(f"demo.toml: {key}: must be a finite number")


@pytest.mark.parametrize("number", [math.inf, math.nan, 10**400])
def test_neither_are_those_of_delays(number: float) -> None:
    with pytest.raises(
        ConfigError, match=r"^delays\.train must be finite and from 0 to 1e\+15, got"
    ):
        Delays.of({"train": number})
