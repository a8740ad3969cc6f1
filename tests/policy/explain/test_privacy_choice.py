"""For an epsilon the least noise, or the most versions, is chosen."""

import math
from typing import Any

import pytest

from secureps.errors import ConfigError, PlanRefused
from secureps.policy.plan import Plan
from secureps.policy.spending import HUNDREDTHS, choose_noise, plan_epsilon, refuse_epsilon
from tests.kits.privacy_kit import private_plan as client_plan
from tests.kits.roles_kit import make_plan, private_plan

SIZES = {"all": 60}
PLANS = {"records": private_plan, "clients": lambda **own: client_plan("local", "plain", **own)}


def spends(plan: Plan, **privacy: Any) -> float:
    """The epsilon of a plan's run, with other noise."""
    section = plan.section.privacy
    assert section is not None
    own = plan.section.model_copy(update={"privacy": section.model_copy(update=privacy)})
    return plan_epsilon(Plan(own), SIZES, own.versions)


def lasting(plan: Plan, versions: int) -> float:
    own = plan.section.model_copy(update={"versions": versions})
    return plan_epsilon(Plan(own), SIZES, versions)


@pytest.mark.parametrize("unit", PLANS)
@pytest.mark.parametrize("epsilon", [1.0, 3.0, 20.0])
def test_the_least_noise_of_hundredths_is_chosen(unit: str, epsilon: float) -> None:
    plan = PLANS[unit]()
    made, choice = choose_noise(plan, SIZES, epsilon, noise_stated=False)
    assert made.section.privacy is not None
    assert made.section.privacy.budget == epsilon
    assert made.section.privacy.noise_multiplier == choice.noise_multiplier
    assert choice.versions == made.section.versions == plan.section.versions
    assert choice.spends == spends(made) <= epsilon
    less = choice.noise_multiplier - 1 / HUNDREDTHS
    if less > 0:
        assert spends(made, noise_multiplier=less) > epsilon
    told = f"noise_multiplier = {choice.noise_multiplier:g}", f"budget = {epsilon:g}"
    assert choice.lines == ("[privacy]", *told)
    assert choice.otherwise == ""


@pytest.mark.parametrize("unit", PLANS)
def test_where_the_noise_is_stated_the_most_versions_are(unit: str) -> None:
    plan = PLANS[unit]()
    epsilon = 1.5 * lasting(plan, 1)
    made, choice = choose_noise(plan, SIZES, epsilon, noise_stated=True)
    assert choice.versions == made.section.versions >= 1
    assert lasting(plan, choice.versions) <= epsilon < lasting(plan, choice.versions + 1)
    assert choice.lines[0] == f"versions = {choice.versions}"
    if choice.versions < plan.section.versions:
        assert choice.otherwise.endswith(" lasts for all versions of the plan")


def test_what_is_not_enough_for_one_version_is_refused_with_the_noise_that_is() -> None:
    plan = private_plan()
    _, least = choose_noise(plan, SIZES, 0.5, noise_stated=False)
    with pytest.raises(PlanRefused, match=r"one version spends .* of 0\.5, of one record") as said:
        choose_noise(plan, SIZES, 0.5, noise_stated=True)
    assert f"; noise_multiplier = {least.noise_multiplier:g} lasts for all" in str(said.value)


def test_an_epsilon_that_no_noise_gives_is_refused() -> None:
    with pytest.raises(PlanRefused, match="no noise_multiplier up to 1000 spends 1e-09 or less"):
        choose_noise(private_plan(), SIZES, 1e-9, noise_stated=False)


def test_an_evaluation_that_would_come_too_late_is_moved() -> None:
    rounds = {"every": 3, "metrics": {"loss": 1.0}}
    plan = private_plan(versions=9, evaluation=rounds)
    epsilon = lasting(private_plan(versions=9), 2)
    made, choice = choose_noise(plan, SIZES, epsilon, noise_stated=True)
    assert choice.versions == 2
    assert choice.lines[-2:] == ("[evaluation]", "every = 2")
    assert made.section.evaluation is not None
    assert made.section.evaluation.every == 2


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_is_a_number_above_0(epsilon: float) -> None:
    with pytest.raises(ConfigError, match=r"^--epsilon: .* is no number above 0"):
        refuse_epsilon(epsilon, private_plan().section)


def test_a_plan_without_privacy_has_no_epsilon() -> None:
    with pytest.raises(ConfigError, match=r"the plan has no \[privacy\].*add the table"):
        refuse_epsilon(3.0, make_plan("plain").section)
