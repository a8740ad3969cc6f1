"""How long a version is, and which memory is too little for a shard."""

from typing import Any

import pytest

from secureps.errors import ConfigError
from secureps.policy.memory import refuse_little_memory, version_bytes
from secureps.policy.plan import Plan
from tests.kits.roles_kit import make_plan

RULE = {"quorum": 3, "minimum": 2, "most": 4}


def plan_of(**group: Any) -> Plan:
    return make_plan(group=[{"rule": RULE} | group])


def refuse(memory: int, threads: int, own: tuple[int, ...] = (0, 2)) -> None:
    plan = plan_of()
    refuse_little_memory(plan, plan.lay_out_sizes({"all": 60}), {"all": own}, memory, threads)


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
    refuse(least, threads)
    with pytest.raises(ConfigError, match=r'is too little for .*it works with "1 KiB" or more'):
        refuse(least - 1, threads)


def test_a_shard_without_blocks_needs_nothing() -> None:
    refuse(0, 1, own=())
