"""Which incarnations a journal knows of."""

from __future__ import annotations

import pytest

from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import LINE, REIGN, Incarnated, starts
from secureps.messages.run import GroupPlacement, Placement
from secureps.roles.coordinator.reigns import MISSED, Reigns, blank


def fold(*records: Incarnated | StandbyFollows) -> Reigns:
    reigns = Reigns()
    for record in records:
        reigns.apply(record)
    return reigns


def test_a_coordinator_without_a_standby_shares_with_nobody() -> None:
    reigns = fold(Incarnated(1), Incarnated(2))
    assert (reigns.incarnation, reigns.shared, reigns.follower) == (2, False, b"")


def test_a_standby_takes_over_with_a_number_that_no_start_comes_to() -> None:
    reigns = fold(Incarnated(3), StandbyFollows(b"one"))
    assert (reigns.follower, reigns.shared, reigns.ruler) == (b"one", True, b"")
    assert reigns.next_reign(b"one") == REIGN
    reigns = fold(Incarnated(3), StandbyFollows(b"one"), Incarnated(REIGN, b"one"))
    assert (reigns.ruler, reigns.heir) == (b"one", True)
    reigns.apply(Incarnated(REIGN + 1))
    assert (reigns.incarnation, reigns.ruler) == (REIGN + 1, b"one")
    reigns.apply(StandbyFollows(b"two"))
    assert (reigns.heir, reigns.next_reign(b"two")) == (False, 2 * REIGN)
    reigns.apply(StandbyFollows(b""))
    assert (reigns.heir, reigns.last) == (False, b"two"), "that one may have taken over from it"


def test_two_standbys_of_one_coordinator_never_have_the_same_number() -> None:
    first = fold(Incarnated(1), StandbyFollows(b"one"))
    second = fold(Incarnated(1), StandbyFollows(b"one"), Incarnated(2), StandbyFollows(b"two"))
    assert (first.next_reign(b"one"), second.next_reign(b"two")) == (REIGN, REIGN + LINE)
    assert second.next_reign(b"one") == REIGN
    for one, two in ((REIGN, REIGN + LINE), (REIGN + LINE, REIGN)):
        reigns = fold(Incarnated(1), Incarnated(one, b"."), Incarnated(one + 1))
        assert reigns.foreign(two + 1)
        assert not reigns.foreign(one + 9)


def test_who_left_is_noted_until_a_standby_has_it() -> None:
    owners = (GroupPlacement("all", ("shard-0",)),)
    both, left = (Placement(1, shards, owners) for shards in (("shard-0", "shard-1"), ("shard-0",)))
    alone = fold(Incarnated(1))
    alone.placed(both, left)
    assert alone.unshared == []
    reigns = fold(Incarnated(1), StandbyFollows(b"one"))
    reigns.placed(both, left)
    assert reigns.unshared == ["shard-1"]
    reigns.apply(StandbyFollows(b""))
    assert reigns.unshared == ["shard-1"]
    reigns.apply(StandbyFollows(b"one"))
    assert reigns.unshared == []


@pytest.mark.parametrize(
    ("seen", "foreign"),
    [
        (0, False),
        (3, False),
        (4, True),  # the coordinator went on without the standby
        (REIGN + 2, False),  # of its own reign
        (REIGN + 9, False),
        (2 * REIGN, True),  # another took over from it
        ((2 + MISSED) * REIGN, False),  # nobody believes that
        (-1, False),
    ],
)
def test_what_another_coordinator_was_obeyed_under(seen: int, foreign: bool) -> None:
    reigns = fold(Incarnated(3), StandbyFollows(b"one"), Incarnated(REIGN, b"one"))
    reigns.apply(Incarnated(REIGN + 2))
    assert reigns.foreign(seen) is foreign


def test_starts_in_words() -> None:
    assert starts(1) == ""
    assert starts(4) == "started 4 times"
    assert starts(REIGN + 1) == "taken over once"
    assert starts(2 * REIGN + 3) == "taken over 2 times, started 3 times"
    assert starts(REIGN + LINE + 1) == "taken over once"


SHARDS = ("shard-0", "shard-1")


@pytest.mark.parametrize(
    ("seen", "first", "found"),
    [
        ({"shard-0": 0}, {"shard-0": 0}, {"shard-0"}),  # the other one may come with a disk
        ({"shard-0": 0, "shard-1": 4}, {"shard-0": 0, "shard-1": 4}, {"shard-0"}),
        ({"shard-0": 0, "shard-1": 0}, {"shard-0": 0, "shard-1": 0}, set()),
        ({"shard-0": 5, "shard-1": 0}, {"shard-0": 0, "shard-1": 0}, set()),  # it obeys by now
        ({"shard-0": 0, "left": 0}, {"shard-0": 0, "left": 0}, {"shard-0", "left"}),
    ],
)
def test_whose_disks_are_empty_by_what_each_said_first(
    seen: dict[str, int], first: dict[str, int], found: set[str]
) -> None:
    assert blank((*SHARDS, "left"), seen, SHARDS, first) == found
