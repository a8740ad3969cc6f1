"""How long a version is, and which memory is too little for a shard."""

from typing import Any

import pytest

from secureps.policy.memory import version_bytes, why_little_memory
from secureps.policy.plan import Plan
from tests.kits.roles_kit import make_plan

RULE = {"quorum": 3, "minimum": 2, "most": 4}


def plan_of(**group: Any) -> Plan:
    return make_plan(group=[{"rule": RULE} | group])


def why_little(memory: int, threads: int, own: tuple[int, ...] = (0, 2)) -> str:
    plan = plan_of()
    groups = plan.lay_out_sizes({"all": 60})
    return why_little_memory(plan, groups, {"all": own}, memory, threads)


@pytest.mark.parametrize(
    ("name", "slots"), [("sgd", 0), ("momentum", 1), ("nesterov", 1), ("adam", 2)]
)
def test_a_version_is_values_and_optimizer_state(name: str, slots: int) -> None:
    plan = plan_of(optimizer={"name": name})
    (group,) = plan.lay_out_sizes({"all": 50})
    assert version_bytes(plan, group, (0,)) == 4 * 16 * (1 + slots)
    assert version_bytes(plan, group, range(group.blocks)) == 4 * 50 * (1 + slots)


def test_differences_and_what_they_leave_over_are_counted() -> None:
    plan = plan_of(pull_bits=4)
    (group,) = plan.lay_out_sizes({"all": 60})
    assert version_bytes(plan, group, (0,)) == 2 * 4 * 16 + 1 + 8


@pytest.mark.parametrize(("threads", "least"), [(1, 64), (3, 192)])
def test_too_little_is_refused_with_the_least_that_works(threads: int, least: int) -> None:
    assert why_little(least, threads) == ""
    text = why_little(least - 1, threads)
    assert "is too little for" in text
    assert 'it works with "1 KiB" or more' in text


def test_a_shard_without_blocks_needs_nothing() -> None:
    assert why_little(0, 1, own=()) == ""
