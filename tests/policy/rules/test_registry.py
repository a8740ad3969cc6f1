"""Rules whose deadline and buffer follow the load, within the plan's bounds."""

from typing import Any

import pytest

from secureps.config.plan import BufferedSection, OwnRuleSection, PlanSection, SyncSection
from secureps.config.sections import parse
from secureps.policy.plan import Plan
from secureps.policy.rules.registry import apply_factors, build_rule, staleness_power
from tests.kits.streams import BUFFERED, PRIORITY, stream_plan

SYNC = SyncSection(quorum=6, deadline=10.0)


def test_a_rule_has_a_power_of_staleness_or_none() -> None:
    assert staleness_power(BufferedSection(name="buffered", buffer=20, power=0.7)) == 0.7
    assert staleness_power(SYNC) == 0.0


def test_a_deadline_is_the_plan_s_times_a_factor() -> None:
    changed = apply_factors(SYNC, 0.5, 0.25)
    assert changed == SYNC.model_copy(update={"deadline": 5.0})


@pytest.mark.parametrize(("factor", "buffer"), [(0.75, 15), (0.1, 5), (1.0, 20), (7.0, 20)])
def test_a_buffer_is_neither_below_the_minimum_nor_above_the_plan_s(
    factor: float, buffer: int
) -> None:
    section = BufferedSection(name="buffered", buffer=20)
    changed = apply_factors(section, 1.0, factor)
    assert isinstance(changed, BufferedSection)
    assert changed.buffer == buffer


def test_a_rule_of_the_user_s_own_stays() -> None:
    own = OwnRuleSection(name="package.module:Class")
    assert apply_factors(own, 0.5, 0.5) is own


@pytest.mark.parametrize("rule", [BUFFERED | {"minimum": 2}, PRIORITY | {"minimum": 2}])
def test_a_cohort_of_the_rule_in_force_is_one_that_the_plan_allows(rule: dict[str, Any]) -> None:
    plan = stream_plan("plain", rule)
    bounds: Any = build_rule(apply_factors(plan.group("all").rule, 1.0, 0.5), plan.room)
    assert bounds.bounds.most == 2
    assert plan.bounds("all").minimum <= bounds.bounds.most <= plan.bounds("all").most


def test_a_plan_that_scales_is_another_plan_and_one_that_does_not_is_as_it_was() -> None:
    data: dict[str, Any] = {"name": "small", "versions": 1, "group": [{"rule": {"quorum": 6}}]}
    plain = Plan(parse(PlanSection, data, "test"))
    scaled = Plan(parse(PlanSection, data | {"scaling": {}}, "test"))
    assert "scaling" not in plain.text
    assert plain.digest != scaled.digest
