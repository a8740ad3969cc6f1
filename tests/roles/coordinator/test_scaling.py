"""What a decision about the load is told as, and whose deadline it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from secureps.messages.scaling_records import BlockAssigned
from secureps.policy.plan import Plan
from secureps.roles.coordinator.scaling import _limits, told
from tests.kits.federations import small_plan
from tests.kits.loads import decided
from tests.kits.shoppers import SYNC, sparse_plan


def test_what_a_decision_does_is_told_in_a_few_words() -> None:
    moved = [BlockAssigned("all", block, "shard-0", "shard-1") for block in range(2)]
    assert told(decided(blocks=tuple(moved[:1]))) == "balance 1 block"
    assert told(decided(blocks=tuple(moved))) == "balance 2 blocks"
    assert told(decided(what="add-shard", shard="shard-2")) == "add-shard shard-2"
    assert told(decided()) == "as planned"


@pytest.mark.parametrize(
    ("plan", "group"),
    [(small_plan(scaling={}), ""), (sparse_plan("plain", SYNC, scaling={}), "table")],
)
def test_limits_name_their_group_where_there_are_several(plan: Plan, group: str) -> None:
    tx: Any = SimpleNamespace(plan=plan)
    assert plan.section.scaling is not None
    assert _limits(tx, plan.section.scaling).group == group
