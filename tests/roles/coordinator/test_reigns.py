"""Which coordinators a journal knows of, and which standby may take over from this one."""

from __future__ import annotations

import pytest

from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import LINE, REIGN, Incarnated, starts
from secureps.roles.coordinator.state import Reigns

ONE, TWO = b"one", b"two"


def fold(*records: Incarnated | StandbyFollows) -> Reigns:
    reigns = Reigns()
    for record in records:
        reigns.apply(record)
    return reigns


def test_one_that_has_taken_over_knows_it_and_may_be_followed_in_its_turn() -> None:
    reigns = fold(Incarnated(3), StandbyFollows(ONE))
    assert reigns.next_reign(ONE) == REIGN
    assert reigns.has_taken_over(REIGN + 4)
    reigns.apply(Incarnated(REIGN, ONE))
    assert (reigns.incarnation, reigns.ruler, reigns.follower) == (REIGN, ONE, ONE)
    assert not reigns.may_take_over(ONE)
    assert not reigns.has_taken_over(2 * REIGN)
    assert reigns.reign == 0, "the coordinator may go on alone yet"
    reigns.apply(StandbyFollows(b""))
    assert reigns.reign == 1
    reigns.apply(StandbyFollows(TWO))
    assert (reigns.may_take_over(TWO), reigns.next_reign(TWO)) == (True, 2 * REIGN)


def test_two_standbys_of_one_coordinator_never_have_the_same_number() -> None:
    second = fold(
        Incarnated(1), StandbyFollows(ONE), Incarnated(2), StandbyFollows(b""), StandbyFollows(TWO)
    )
    assert (second.next_reign(ONE), second.next_reign(TWO)) == (REIGN, REIGN + LINE)
    assert second.has_taken_over(REIGN + LINE + 1)
    assert not second.has_taken_over(REIGN), "the one that does not have everything"
    second.apply(Incarnated(REIGN + LINE, TWO))
    assert second.is_foreign(REIGN)
    assert not second.is_foreign(REIGN + LINE + 9)


@pytest.mark.parametrize(
    ("seen", "foreign"),
    [
        (0, False),
        (3, False),
        (4, True),  # on record, but perhaps the coordinator went on alone with it
        (5, True),
        (REIGN + 2, False),  # of its own line
        (REIGN + 9, False),
        (2 * REIGN, True),  # another took over from it
        (-1, False),
    ],
)
def test_which_incarnations_may_have_acted_on_more(seen: int, foreign: bool) -> None:
    reigns = fold(Incarnated(3), StandbyFollows(ONE), Incarnated(4), Incarnated(REIGN, ONE))
    reigns.apply(Incarnated(REIGN + 2))
    assert reigns.is_foreign(seen) is foreign


def test_starts_in_words() -> None:
    assert starts(1) == ""
    assert starts(4) == "started 4 times"
    assert starts(REIGN + 1) == "taken over once"
    assert starts(2 * REIGN + 3) == "taken over 2 times, started 3 times"
    assert starts(REIGN + LINE + 1) == "taken over once"
