"""A plan's text, and how two of them differ."""

from __future__ import annotations

from secureps.policy.plan import different_keys
from tests.kits.federations import small_plan


def test_two_plans_differ_in_the_keys_that_are_told() -> None:
    plan, longer = small_plan(), small_plan(versions=5, training={"lr": 0.5})
    assert different_keys(plan.text, plan.text) == ()
    assert different_keys(plan.text, longer.text) == ("training.lr", "versions")
    assert different_keys(longer.text, plan.text) == ("training.lr", "versions")
    rule = {**plan.section.model_dump(mode="json")["group"][0], "clip": 2.0}
    assert different_keys(plan.text, small_plan(group=[rule]).text) == ("group.0.clip",)
