"""No cohort mixes two supports, and the rest of an older one is dropped."""

import pytest

from secureps.errors import Malformed
from secureps.messages.submission import Cohort, Member, SubmissionId
from secureps.policy.rules.rule import (
    Arrival,
    Close,
    Drop,
    Wait,
    common_version,
    end_hopeless_wait,
    select_alike,
)


def fours(version: int) -> int:
    return version // 4


def arrivals(*versions: int) -> tuple[Arrival, ...]:
    ids = (SubmissionId(f"client-{k}", "all", k) for k in range(len(versions)))
    return tuple(Arrival(id, version) for id, version in zip(ids, versions, strict=True))


def bases(*seen: Arrival) -> dict[SubmissionId, int]:
    return {arrival.id: arrival.version for arrival in seen}


def test_all_are_alike_where_nothing_is_left_out() -> None:
    seen = arrivals(3, 4, 9)
    assert select_alike(None, seen, bases(*seen), 9, 2) == seen
    assert end_hopeless_wait(None, Wait(None, "few"), seen, bases(*seen), 9) == Wait(None, "few")
    assert select_alike(fours, (), {}, 9, 2) == ()


def test_the_older_cohort_closes_first_if_it_has_the_minimum() -> None:
    seen = arrivals(6, 8, 7, 9)
    assert select_alike(fours, seen, bases(*seen), 9, 2) == (seen[0], seen[2])
    dropped = select_alike(fours, seen, bases(*seen), 9, 3)
    assert isinstance(dropped, Drop)
    assert dropped.ids == (seen[0].id, seen[2].id)
    assert "pull and train again" in dropped.reason


def test_two_updates_of_one_client_are_no_two_members() -> None:
    seen = (*arrivals(6), Arrival(SubmissionId("client-0", "all", 1), 7))
    assert isinstance(select_alike(fours, seen, bases(*seen), 9, 2), Drop)


def test_those_of_the_newest_support_are_never_dropped() -> None:
    seen = arrivals(8, 9)
    assert select_alike(fours, seen, bases(*seen), 9, 5) == seen
    waits = Wait(None, "2 of 5")
    assert end_hopeless_wait(fours, waits, seen, bases(*seen), 9) == waits


def test_what_holders_still_look_into_counts() -> None:
    seen, later = arrivals(6, 9), Arrival(SubmissionId("client-9", "all", 0), 7)
    pending = bases(*seen, later)
    assert select_alike(fours, seen, pending, 9, 2) == seen[:1]
    waits = Wait(None, "1 of 2")
    assert end_hopeless_wait(fours, waits, seen[:1], pending, 9) == waits
    assert isinstance(end_hopeless_wait(fours, waits, seen[:1], bases(*seen), 9), Drop)


def test_a_rule_that_waits_until_a_time_or_closes_is_not_overruled() -> None:
    seen = arrivals(6, 7)
    for decision in (Wait(5.0, "deadline"), Close((), "2 are here")):
        assert end_hopeless_wait(fours, decision, seen, bases(*seen), 9) == decision


def test_a_cohort_of_two_supports_is_not_decoded() -> None:
    def cohort(*versions: int) -> Cohort:
        members = (Member(each.id, 1, each.version) for each in arrivals(*versions))
        return Cohort("all", 1, 10, 0, tuple(members))

    assert common_version(None, cohort(4, 9)) == 9
    assert common_version(4, cohort(4, 7)) == 4
    with pytest.raises(Malformed, match="several supports"):
        common_version(4, cohort(7, 8))
