"""Privacy: a plan with something that no noise covers is refused."""

import math
from typing import Any

import pytest

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.errors import PlanRefused
from secureps.messages.charge import Charge
from secureps.policy.checks.sections import LEAST_NOISE, weak_privacy
from secureps.policy.plan import Plan
from tests.kits.privacy_kit import PRIVACY as CLIENT
from tests.kits.roles_kit import PRIVACY as RECORD
from tests.kits.skellam_kit import tight_epsilon

FEDBUFF = {"name": "buffered", "buffer": 8}
ROUNDS = {"name": "sync", "quorum": 5}
ROWS = {"rows": 100, "block": 50}
MOVING = {"quantile": 0.5}
WEIGHED = {"name": "pack.module:Rule", "most_weight": 4, "most": 8}
LARGEST = {"name": "priority", "buffer": 5, "power": 0.0, "score": "magnitude"}


def plan(rule: dict[str, Any], privacy: dict[str, Any] | None = None, **group: Any) -> Plan:
    whole = privacy is not None and privacy.get("unit") == "client"
    counted = {"weighting": "uniform"} if whole else {"most_examples": 32}
    sections = [{"rule": rule} | counted | group]
    body = {"name": "demo", "versions": 3, "group": sections}
    body["cipher"] = {"name": "rlwe", "capacity": 40}
    if privacy is not None:
        body |= {"privacy": privacy, "training": {"local_steps": 5}}
    return Plan(parse(PlanSection, body, "demo.toml"))


def client(placement: str) -> dict[str, Any]:
    return CLIENT | {"placement": placement}


@pytest.mark.parametrize("placement", ["distributed", "aggregator"])
@pytest.mark.parametrize(
    ("rule", "do"), [(FEDBUFF, "set power = 0"), (WEIGHED, "set most_weight = 1")]
)
def test_noise_of_a_sum_is_for_members_that_all_weigh_1(
    placement: str, rule: dict[str, Any], do: str
) -> None:
    with pytest.raises(PlanRefused, match=f"rule: {placement} noise .* weigh 1.*{do}"):
        plan(rule, client(placement))
    plan(FEDBUFF | {"power": 0.0}, client(placement))
    plan(FEDBUFF | {"max_staleness": 0}, client(placement))
    plan(FEDBUFF, client("local"))


def test_a_declared_magnitude_is_covered_by_no_noise() -> None:
    with pytest.raises(PlanRefused, match=r"rule\.score: .* take \"freshness\""):
        plan(LARGEST, client("local"))
    plan(LARGEST)
    plan(LARGEST | {"score": "freshness"}, client("local"))


@pytest.mark.parametrize("rule", [FEDBUFF | {"power": 0.0}, {"name": "ssp", "slack": 1}])
def test_a_clip_that_moves_is_one_for_a_round(rule: dict[str, Any]) -> None:
    with pytest.raises(PlanRefused, match=r'adaptive: .* take rule "sync" without sparse'):
        plan(rule, client("distributed"), adaptive=MOVING)
    plan(ROUNDS, client("distributed"), adaptive=MOVING)


@pytest.mark.parametrize(
    ("privacy", "whose"), [(RECORD, "a record"), (client("local"), "a client")]
)
def test_row_blocks_tell_what_no_noise_hides(privacy: dict[str, Any], whose: str) -> None:
    reason = f"sparse: which row-blocks are sent tells which rows {whose} touches"
    with pytest.raises(PlanRefused, match=reason):
        plan(ROUNDS, privacy, sparse=ROWS)
    plan(ROUNDS, privacy)
    plan(ROUNDS, sparse=ROWS)


@pytest.mark.parametrize("evaluator", [None, "eve"])
def test_nobody_judges_a_model_of_which_everybody_has_some_rows(evaluator: str | None) -> None:
    evaluation = {"every": 1, "metrics": {"loss": 1.0}, "evaluator": evaluator}
    group = {"rule": ROUNDS, "sparse": ROWS, "name": "table"}
    body = {"name": "demo", "versions": 3, "group": [group], "evaluation": evaluation}
    with pytest.raises(PlanRefused, match=r"of group table .* nor has every client all of them"):
        Plan(parse(PlanSection, body, "demo.toml"))


@pytest.mark.parametrize("versions", [2, 4])
def test_nobody_judges_groups_that_are_never_at_one_version(versions: int) -> None:
    evaluation = {"every": 1, "metrics": {"loss": 1.0}}
    body = {"name": "demo", "versions": 3, "group": [{"rule": ROUNDS}], "evaluation": evaluation}
    assert Plan(parse(PlanSection, body, "demo.toml")).schedule.count(3) == 3
    body["group"] = [{"rule": ROUNDS, "versions": versions}]
    with pytest.raises(PlanRefused, match=f"group all makes {versions} of 3"):
        Plan(parse(PlanSection, body, "demo.toml"))


@pytest.mark.parametrize("unit", [RECORD, client("local")])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"delta": 1e-6, "noise_multiplier": LEAST_NOISE}, []),
        ({"delta": 2e-5}, ["delta is 2e-05, above 1e-05"]),
        ({"noise_multiplier": 0.49}, ["noise_multiplier is 0.49, below 0.5"]),
        ({"delta": 0.5, "noise_multiplier": 1e-9}, ["delta is 0.5", "noise_multiplier is 1e-09"]),
    ],
)
def test_of_a_plan_that_protects_next_to_nothing_there_is_a_warning(
    unit: dict[str, Any], change: dict[str, Any], said: list[str]
) -> None:
    made = plan(ROUNDS, unit | change)
    for warning, part in zip(weak_privacy(made.section.privacy), said, strict=True):
        assert warning.startswith("WARNING: the plan's ")
        assert part in warning
        assert "join with --budget EPSILON" in warning


def test_the_least_noise_is_that_of_an_epsilon_of_ten_a_step() -> None:
    def alone(noise: float) -> float:
        return tight_epsilon([Charge("me", "all", 0, noise, 1.0, 1)], 1e-5)

    assert math.isclose(alone(LEAST_NOISE), 10.0, abs_tol=0.01)
