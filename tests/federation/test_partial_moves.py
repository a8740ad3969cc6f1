"""Blocks of some groups move: all groups wait, and no more is copied than is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secureps.messages.acts import ShardDeed
from secureps.messages.requests import Missing, PutBlock
from secureps.messages.submission import SubmissionId
from secureps.policy.plan import Plan
from secureps.roles.coordinator import checkpointing
from secureps.run.simulate.simulation import Conditions
from tests.federation.test_resharding import (
    NEW,
    placement,
    say,
    sharded,
)
from tests.kits.evaluations import evaluated_plan, examined, metrics_of
from tests.kits.federations import ends, later, small_federation
from tests.kits.shoppers import SYNC, cohorts, shopping, sparse_plan


def test_what_versions_were_made_of_is_not_copied(tmp_path: Path) -> None:
    """It is kept for a checkpoint that is far away, and whoever has the version needs it not."""
    passed = list[tuple[int, SubmissionId]]()

    def delay(sender: str, to: str, message: Any) -> float:
        if to == NEW and isinstance(message, PutBlock) and sender.startswith("shard"):
            passed.append((play.versions()["all"], message.header.id))
        return 1.0 if sender == "client-00" else 0.0

    conditions = Conditions(spares=1, delay=delay)
    play = small_federation(sharded(clients=6, checkpoint_every=100), tmp_path, conditions)
    play.start(NEW)
    play.run(lambda: play.coordinator.federation.pinned is not None)
    group = play.coordinator.federation.groups["all"]
    play.run(lambda: group.version == 2 and len(group.receipts) > 1)
    say(play, ShardDeed.ADD, NEW)
    ends(play)
    assert passed, "what waits for the next version is"
    for version, id in passed:
        made = [c.members for c in cohorts(play, "all") if c.version <= version]
        assert id not in {member.id for members in made for member in members}


def slow_copies(sender: str, to: str, message: Any) -> float:
    return 40.0 if isinstance(message, Missing) and message.epoch else 0.5


def test_versions_that_are_in_no_checkpoint_are_few_where_a_shard_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups without blocks there go on for a while."""
    monkeypatch.setattr(checkpointing, "LEAST_AHEAD", 2)
    plan = sparse_plan("plain", SYNC | {"quorum": 3}, SYNC | {"quorum": 3}, lease=1e5)
    groups = [group.model_copy(update={"versions": 6}) for group in plan.section.group]
    plan = Plan(plan.section.model_copy(update={"group": tuple(groups)}))
    play, _ = shopping(plan, tmp_path, None, [[0, 1, 2, 3], [0], [0]] + [[1, 2, 3]] * 2)
    known = play.coordinator.federation
    play.run(lambda: min(play.versions().values()) >= 1)
    away = placement(play).held["table.1"][0][0]
    play.kill(away)
    later(play, 500.0)
    kept = [each for each in known.checkpoints if each.complete][-1]
    ahead = {name: at - kept.version_of(name) for name, at in play.versions().items()}
    assert max(ahead.values()) == 2
    play.start(away)
    ends(play)


def test_all_that_is_evaluated_together_waits_together(tmp_path: Path) -> None:
    """Or no version would be evaluated, while one group is ahead of the other."""
    common = {"clip": 3.0, "range": 1.0, "most_examples": 32, "optimizer": {"name": "adam"}}
    head = {"name": "head", "pattern": "head.bias", "rule": {"quorum": 6, "deadline": 10.0}}
    rest = {"name": "rest", "rule": {"quorum": 5, "deadline": 10.0}}
    group = [head | common, rest | common]  # a drain of the third shard moves the second alone
    plan = evaluated_plan("plain", every=1, versions=6, group=group, shards=3)
    play = examined(plan, tmp_path, Conditions(delay=slow_copies))
    play.run(lambda: min(play.versions().values()) >= 2)
    say(play, ShardDeed.DRAIN, "shard-2")
    ends(play)
    assert "shard-2" not in placement(play).shards
    assert sorted(metrics_of(play)) == [1, 2, 3, 4, 5, 6]
