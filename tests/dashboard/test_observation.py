"""What is remembered of a run from one look to the next."""

from __future__ import annotations

from dataclasses import replace

from secureps.dashboard.observation import KEPT, Change, Observation
from secureps.messages.requests import Figure, Telemetry
from tests.kits.dashboards import STATUS, without


def test_who_goes_and_comes_back_is_told_with_how_long() -> None:
    looks = Observation()
    assert looks.take(STATUS, 100.0).changes == ()
    gone = looks.take(without(STATUS, "shard-1"), 101.0)
    assert gone.changes == (Change(101.0, "shard-1", "shard", "away", "here", 1.0),)
    assert gone.since["shard-1"] == 101.0
    assert gone.since["shard-0"] == 100.0
    back = looks.take(STATUS, 103.5)
    assert back.changes[0] == Change(103.5, "shard-1", "shard", "here", "away", 2.5)
    assert len(back.changes) == 2


def test_a_client_that_trains_is_no_other_than_one_that_waits() -> None:
    looks = Observation()
    looks.take(STATUS, 1.0)
    trains = replace(STATUS, members=tuple(replace(m, state="trains") for m in STATUS.members))
    assert looks.take(trains, 2.0).changes == ()
    gone = looks.take(without(STATUS, "client-00"), 3.0).changes
    assert [(each.party, each.state) for each in gone] == [("client-00", "gone")]


def test_a_silent_coordinator_is_one_change_and_keeps_what_was_known() -> None:
    looks = Observation()
    looks.take(STATUS, 10.0)
    looks.miss("no connection", 11.0)
    seen = looks.miss("still none", 12.0)
    assert (seen.silent, seen.silent_since, seen.status) == ("still none", 11.0, STATUS)
    assert [(each.party, each.state) for each in seen.changes] == [("coordinator", "silent")]
    again = looks.take(STATUS, 14.0)
    assert (again.silent, again.silent_since) == ("", None)
    assert again.changes[0] == Change(14.0, "coordinator", "coordinator", "here", "silent", 3.0)


def test_before_a_first_answer_silence_is_no_change() -> None:
    seen = Observation().miss("is being started", 5.0)
    assert (seen.status, seen.silent, seen.silent_since, seen.changes) == (
        *(None, "is being started", 5.0, ()),
    )


def test_costs_are_those_of_all_statuses_and_of_none_twice() -> None:
    looks = Observation()
    looks.take(STATUS, 1.0)
    seen = looks.take(STATUS, 2.0)
    cost = seen.costs[-1]
    assert (cost.group, cost.version, cost.up, cost.epsilon) == ("all", 3, 1000.0, 1.25)
    assert cost.seconds["adding"] == 0.25
    assert seen.up == 1000.0
    later = (Telemetry("client-01", "all", 3, (Figure("bytes_up", 24.0),)),)
    assert looks.take(replace(STATUS, telemetry=later), 3.0).up == 1024.0


def test_what_is_kept_is_bounded() -> None:
    looks = Observation()
    for at in range(3 * KEPT):
        seen = looks.take(without(STATUS, "shard-1") if at % 2 else STATUS, float(at))
    assert len(seen.changes) == KEPT
    (group,) = STATUS.groups
    far = replace(STATUS, groups=(replace(group, version=10_000),))
    assert looks.take(far, 0.0).costs == (), "of versions that nobody reported of it is not known"
    reports = (Telemetry("c", "all", v, (Figure("bytes_up", 1.0),)) for v in range(9900, 10_001))
    known = looks.take(replace(far, telemetry=tuple(reports)), 0.0).costs
    assert [cost.version for cost in known] == list(range(9961, 10_001))
