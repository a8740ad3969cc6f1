"""When a policy decides, with which deadline and words; whole runs are in `tests.federation`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from secureps.messages.scaling import BlockAssigned
from secureps.policy.plan import Plan
from secureps.roles.coordinator import scaling
from tests.kits.federations import small_plan
from tests.kits.loads import decided
from tests.kits.shoppers import SYNC, sparse_plan
from tests.roles.coordinator.test_shard_memory import Desk


@pytest.mark.parametrize("versions", [scaling.LEAST_VERSIONS - 1, scaling.LEAST_VERSIONS])
@pytest.mark.parametrize("moves", [False, True])
def test_a_policy_waits_for_more_versions_than_row_blocks_do(
    versions: int, moves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    block = next(b for b, at in enumerate(desk.held["all"]) if at == ("shard-1",))
    found = (BlockAssigned("all", block, "shard-1", "shard-0"),), "uneven"
    monkeypatch.setattr(scaling, "balance", lambda *_: found if moves else None)
    load, tx = desk.at.play.coordinator._load, desk.tx
    monkeypatch.setattr(load, "has_news", lambda tx: True)
    load.begin(tx.now - 3.0)
    load.versions = versions
    scaling.advance(tx, load)
    known = versions == scaling.LEAST_VERSIONS
    moved = [bool(record.blocks) for _, record in tx.federation.scaled.decided]
    assert moved == ([moves] if known or moves else [])
    assert (load.versions == 0) is (known or moves), "measured anew after a decision"


def test_what_a_decision_does_is_told_in_a_few_words() -> None:
    moved = [BlockAssigned("all", block, "shard-0", "shard-1") for block in range(2)]
    assert scaling.describe(decided(blocks=tuple(moved[:1]))) == "balance 1 block"
    assert scaling.describe(decided(blocks=tuple(moved))) == "balance 2 blocks"
    assert scaling.describe(decided(what="add-shard", shard="shard-2")) == "add-shard shard-2"
    assert scaling.describe(decided()) == "as planned"


@pytest.mark.parametrize(
    ("plan", "group"),
    [(small_plan(scaling={}), ""), (sparse_plan("plain", SYNC, scaling={}), "table")],
)
def test_limits_name_their_group_where_there_are_several(plan: Plan, group: str) -> None:
    tx: Any = SimpleNamespace(plan=plan)
    assert plan.section.scaling is not None
    assert scaling._limits(tx, plan.section.scaling).group == group
