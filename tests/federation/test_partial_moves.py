"""Blocks of some groups move: all groups wait, and no more is copied than is needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.messages.acts import Deed, ShardDeed
from secureps.messages.coordinator_records import (
    CohortBurnt,
    CohortClosed,
    CohortReopened,
    PlacementMoved,
    VersionCommitted,
)
from secureps.messages.requests import Missing, PutBlock, Submit
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import SubmissionId
from secureps.policy.plan import Plan
from secureps.roles.coordinator import group as group_state
from secureps.run.simulate.simulation import Conditions, Simulation
from tests.federation.test_resharding import (
    NEW,
    acted,
    back,
    placement,
    play_out,
    say,
    sharded,
    shopped,
)
from tests.kits.cheats import journalled
from tests.kits.evaluations import evaluated_plan, examined, metrics_of
from tests.kits.federations import (
    Tensors,
    at_event,
    events_of,
    later,
    same,
    small_federation,
    small_plan,
)
from tests.kits.shoppers import SYNC, cohorts, shopping, sparse_plan


def made_in_moves(play: Simulation) -> list[CohortClosed | VersionCommitted]:
    """Cohorts and versions of any group on record between the two records of a move."""
    found, moves, between = list[CohortClosed | VersionCommitted](), 0, False
    for record in journalled(play, object):
        if isinstance(record, PlacementMoved):
            between = not record.in_force
            moves += between
        elif between and isinstance(record, CohortClosed | VersionCommitted):
            found.append(record)
    assert moves, "blocks have moved"
    return found


@cache
def still() -> tuple[Tensors, int]:
    """The model of a run in which no block moves, and how many events it had."""
    with TemporaryDirectory() as folder:
        play = shopped(Path(folder))
        events = events_of(play)
        return play.model(), events


@pytest.mark.parametrize("party", [COORDINATOR, NEW, "shard-0", "shard-1"])
def test_killed_while_some_row_blocks_move(party: str, tmp_path: Path) -> None:
    """No group makes a version while blocks are on their way, and the model is the same."""
    model, events = still()
    for number, after in enumerate((0, 3, 25)):
        play = shopped(tmp_path / str(after))
        acted(play, ShardDeed.ADD, NEW, events * (2 + number) // 10)
        play.run(lambda: play.coordinator.federation.coming is not None)  # noqa: B023
        play.run(at_event(after))
        play.kill(party)
        play.loop.call_later(4.0, lambda: back(play, party))  # noqa: B023
        play_out(play)
        assert same(play.model(), model), f"{party} killed {after} events after"
        assert NEW in placement(play).shards
        assert not journalled(play, CohortBurnt)
        assert not journalled(play, CohortReopened)
        assert not made_in_moves(play)


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
    play_out(play)
    assert passed, "what waits for the next version is"
    for version, id in passed:
        made = [c.members for c in cohorts(play, "all") if c.version <= version]
        assert id not in {member.id for members in made for member in members}


RULE = {"quorum": 6, "minimum": 3, "deadline": 10.0}
COMMON = {"clip": 3.0, "range": 1.0, "most_examples": 32, "optimizer": {"name": "adam"}}


def two_groups(head: dict[str, Any], rest: dict[str, Any]) -> list[dict[str, Any]]:
    """Of which a drain of the third shard moves the second alone."""
    head = {"name": "head", "pattern": "head.bias", "rule": head, **COMMON}
    return [head, {"name": "rest", "rule": rest, **COMMON}]


def slow_copies(sender: str, to: str, message: Any) -> float:
    return 40.0 if isinstance(message, Missing) and message.epoch else 0.5


def waited(play: Simulation) -> dict[str, int]:
    """Microseconds since the round of each group began, of which a pause and a move take none."""
    now, groups = play.loop.now(), play.coordinator.federation.model_groups
    began = {group.name: group.opened_at for group in groups}
    return {name: round(1e6 * (now - at)) for name, at in began.items() if at is not None}


def test_a_pause_in_mid_move_costs_nobody_its_round(tmp_path: Path) -> None:
    """Neither the group whose blocks move, nor the other one."""
    slow = list[float]()

    def delay(sender: str, to: str, message: Any) -> float:
        late = sender == "client-05" and isinstance(message, Submit)
        return slow[0] if slow and late else slow_copies(sender, to, message)

    plan = small_plan(versions=4, group=two_groups(RULE, RULE), shards=3)
    play = small_federation(plan, tmp_path, Conditions(delay=delay))
    known = play.coordinator.federation
    play.run(lambda: min(play.versions().values()) >= 1)
    slow.append(46.0)
    say(play, ShardDeed.DRAIN, "shard-2")
    play.run(lambda: known.coming is not None)
    before = waited(play)
    say(play, Deed.PAUSE)
    later(play, 10.0)
    say(play, Deed.GO_ON)
    play.run(lambda: known.coming is None)
    assert waited(play) == before, "neither the pause nor the move counts, and none twice"
    slow.clear()
    play_out(play)
    assert {len(each.cohort.members) for each in journalled(play, CohortClosed)} == {6}


def test_versions_that_are_in_no_checkpoint_are_few_where_a_shard_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups without blocks there go on for a while."""
    monkeypatch.setattr(group_state, "LEAST_AHEAD", 2)
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
    play_out(play)


def test_all_that_is_evaluated_together_waits_together(tmp_path: Path) -> None:
    """Or no version would be evaluated, while one group is ahead of the other."""
    group = two_groups({"quorum": 6, "deadline": 10.0}, {"quorum": 5, "deadline": 10.0})
    plan = evaluated_plan("plain", every=1, versions=6, group=group, shards=3)
    play = examined(plan, tmp_path, Conditions(delay=slow_copies))
    play.run(lambda: min(play.versions().values()) >= 2)
    say(play, ShardDeed.DRAIN, "shard-2")
    play_out(play)
    assert "shard-2" not in placement(play).shards
    assert sorted(metrics_of(play)) == [1, 2, 3, 4, 5, 6]
