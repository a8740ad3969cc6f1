"""When a policy decides, and when row-blocks alone may move; runs are in `tests.federation`."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.messages.scaling_records import BlockAssigned
from secureps.policy.scaling.balance import Balance
from secureps.roles.coordinator import scaling
from tests.roles.coordinator.test_shard_memory import Desk


@pytest.mark.parametrize("versions", [scaling.LEAST_VERSIONS - 1, scaling.LEAST_VERSIONS])
@pytest.mark.parametrize("moves", [False, True])
def test_a_policy_waits_for_more_versions_than_row_blocks_do(
    versions: int, moves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    block = next(b for b, at in enumerate(desk.held["all"]) if at == ("shard-1",))
    found = Balance((BlockAssigned("all", block, "shard-1", "shard-0"),), 2.0, 1.0)
    monkeypatch.setattr(scaling, "balance", lambda *_: found if moves else None)
    load, tx = desk.at.play.coordinator._load, desk.tx
    monkeypatch.setattr(load, "news", lambda tx: True)
    load.begin(tx.now - 3.0)
    load.versions = versions
    scaling.advance(tx, load)
    known = versions == scaling.LEAST_VERSIONS
    moved = [bool(record.blocks) for _, record in tx.federation.scaled.decided]
    assert moved == ([moves] if known or moves else [])
    assert (load.versions == 0) is (known or moves), "measured anew after a decision"
