"""What a plan's versions will spend, and at which delta a client's own budget counts."""

import math

import pytest

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.messages.charge import Release
from secureps.messages.evaluation import EVALUATION
from secureps.policy.plan import Plan
from secureps.policy.spending import epsilon_after, plan_epsilon
from secureps.privacy.accountant import client_epsilon
from secureps.privacy.ledger import Ledger
from secureps.roles.member.tasks import Aim
from secureps.roles.member.terms import Budget
from tests.kits.privacy_kit import private_plan
from tests.kits.roles_kit import SCHEMA

VALUES = 217


def test_evaluations_are_planned_for() -> None:
    """Of four versions the second and the last are evaluated."""
    evaluation = {"every": 2, "metrics": {"loss": 4.0, "accuracy": 1.0}}
    plan = private_plan("local", evaluation=evaluation)
    update, metrics = plan.mechanism("all", VALUES), plan.mechanism(EVALUATION, 2)
    assert update is not None
    assert metrics is not None
    updates = [update.release("c", "all", version) for version in range(4)]
    judged = [metrics.release("c", EVALUATION, number) for number in range(2)]
    both = client_epsilon([*updates, *judged], 1e-5)
    assert plan_epsilon(plan, {"all": VALUES}, 4) == both > client_epsilon(updates, 1e-5)
    one = client_epsilon([*updates[:2], judged[0]], 1e-5)
    assert plan_epsilon(plan, {"all": VALUES}, 2) == one
    assert plan_epsilon(plan, {"all": VALUES}, 1) == client_epsilon(updates[:1], 1e-5)
    assert plan_epsilon(private_plan("local"), {"all": VALUES}, 4) == client_epsilon(updates, 1e-5)


def test_what_is_on_record_costs_nothing_more() -> None:
    plan = private_plan("local")
    mechanism = plan.mechanism("all", VALUES)
    assert mechanism is not None
    facts = [mechanism.release("c", "all", version) for version in range(3)]
    both = client_epsilon(facts[:2], 1e-5)
    assert epsilon_after(plan, Ledger(facts[:2]), "c", facts[:2]) == both
    assert (
        epsilon_after(plan, Ledger(facts[:2]), "c", facts[1:]) == client_epsilon(facts, 1e-5) > both
    )
    assert epsilon_after(plan, Ledger(facts[:2]), "another", ()) == 0.0


@pytest.mark.parametrize("versions", [3, 300])
def test_a_version_costs_no_more_to_count_than_the_ones_before(
    versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of ten thousand versions would otherwise recount all facts in each of them."""
    plan, seen = private_plan("local"), list[Release]()
    mechanism = plan.mechanism("all", VALUES)
    assert mechanism is not None
    ledger = Ledger(mechanism.release("c", "all", version) for version in range(versions))
    monkeypatch.setattr("secureps.privacy.accountant.demand_sound", seen.append)
    epsilon_after(plan, ledger, "c", [mechanism.release("c", "all", versions)])
    assert len(seen) == 2


def test_a_further_step_of_a_version_is_a_release_of_its_own() -> None:
    plan = private_plan("local", local=[])
    own, layout = Budget(plan, "c", None), plan.layout(SCHEMA)
    aims = (Aim("all", 3, 7), Aim("all", 3, 8, 1))
    assert [each.step for each in own.planned(layout, aims)] == [0, 1]


@pytest.mark.parametrize("placement", ["local", "aggregator"])
def test_a_budget_of_ones_own_knows_nothing_of_the_aggregators_noise(placement: str) -> None:
    """A party that adds the noise can leave it out, of updates and of metrics."""
    evaluation = {"every": 2, "metrics": {"loss": 4.0, "accuracy": 1.0}}
    plan = private_plan(placement, evaluation=evaluation)
    for budget in (None, 5.0):
        own, told = Budget(plan, "c", budget), budget is not None and placement == "aggregator"
        assert bool(own.objection()) is told
        assert bool(own.evaluation_objection()) is told


def test_a_budget_of_ones_own_is_counted_at_a_delta_of_ones_own() -> None:
    """A plan's large delta would understate what a client spends."""
    section = private_plan("local").section.model_dump()
    section["privacy"] |= {"delta": 0.01}
    plan = Plan(parse(PlanSection, section, "test"))
    mechanism = plan.mechanism("all", VALUES)
    assert mechanism is not None
    first: list[Release] = [mechanism.release("c", "all", 0)]
    lax, strict = (client_epsilon(first, delta) for delta in (0.01, 1e-5))
    assert lax < strict
    between = (lax + strict) / 2
    assert Budget(plan, "c", None).excess(Ledger(), [*first]) == ""
    assert f"the budget is {between:g}" in Budget(plan, "c", between).excess(Ledger(), [*first])
    assert Budget(plan, "c", between).excess(Ledger(first), [*first]) == "", "it is spent"
    assert Budget(plan, "c", math.nextafter(strict, 9e9)).excess(Ledger(), [*first]) == ""
    small = parse(PlanSection, section | {"privacy": section["privacy"] | {"delta": 1e-7}}, "test")
    tight = client_epsilon(first, 1e-7)
    assert "the budget is" in Budget(Plan(small), "c", strict).excess(Ledger(), [*first])
    assert Budget(Plan(small), "c", tight).excess(Ledger(), [*first]) == ""
