"""Among whom a member of a sum hides: bounds on weights, and pairs of sums."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.crypto.cipher import WEIGHTS
from secureps.messages.submission import Cohort, Member, SubmissionId
from secureps.policy.cohorts.suspicion import halves, leaves, may_both_open, uneven

RUN = b"r" * 32
LEAST = 3
CLIENTS = tuple(f"c{number:02}" for number in range(13))


def cohort(
    clients: frozenset[str] | tuple[str, ...] = CLIENTS,
    weights: dict[str, int] | None = None,
    bases: dict[str, int] | None = None,
    version: int = 5,
    updates: dict[str, bytes] | None = None,
) -> Cohort:
    members = tuple(
        Member(
            SubmissionId(c, "all", 1),
            (weights or {}).get(c, 1),
            (bases or {}).get(c, 4),
            update=(updates or {}).get(c, b"first"),
        )
        for c in sorted(clients)
    )
    return Cohort("all", 0, version, 1, members)


WEIGHINGS = st.lists(st.sampled_from(WEIGHTS), min_size=1, max_size=24)


@given(weights=WEIGHINGS, least=st.integers(1, 6))
def test_the_three_bounds_are_those_of_their_definition(weights: list[int], least: int) -> None:
    lighter = [sum(1 for w in weights if w < g) for g in (2, 4)]
    effective = sum(weights) ** 2 / sum(w * w for w in weights)
    others = sorted(w * w for w in weights)[:-1]
    wanted = (
        all(count == 0 or count >= least for count in lighter)
        and effective >= least
        and sum(others) >= max(weights) ** 2
    )
    assert bool(uneven(weights, least)) != wanted


@pytest.mark.parametrize("weight", [0, 3, 5, 8, -1])
def test_other_weights_are_refused(weight: int) -> None:
    assert uneven([1, 1, 1, weight], 1).startswith("cohorts of weights (1, 2, 4) are opened")


# --- pairs ------------------------------------------------------------------------


def related(one: Cohort, other: Cohort, least: int = LEAST) -> bool:
    answer = may_both_open(RUN, one, other, least)
    assert may_both_open(RUN, other, one, least) == answer, "in either order"
    return answer


def halved(clients: tuple[str, ...] = CLIENTS) -> tuple[frozenset[str], frozenset[str]]:
    low, high = halves(RUN, "all", 5, frozenset(clients), LEAST)
    return low, high


def test_the_same_or_a_half_or_nothing_in_common() -> None:
    whole, (low, high) = cohort(), halved()
    assert related(whole, whole)
    assert related(whole, cohort(low))
    assert related(whole, cohort(high))
    assert related(cohort(low), cohort(high))
    for quarter in halves(RUN, "all", 5, low, LEAST):
        assert related(whole, cohort(quarter))
        assert related(cohort(low), cohort(quarter))
        assert not related(cohort(low), cohort(quarter | {min(high)}))


def test_a_half_of_a_client_that_stands_there_with_another_weight_or_base() -> None:
    whole, (low, _) = cohort(), halved()
    one = min(low)
    assert not related(whole, cohort(low, weights={one: 2}))
    assert not related(whole, cohort(low, bases={one: 3}))
    assert not related(whole, cohort(weights={one: 2}))
    assert not related(whole, cohort(bases={one: 3}))


def test_updates_of_other_base_versions_are_other_updates() -> None:
    assert related(cohort(), cohort(CLIENTS[:5], bases=dict.fromkeys(CLIENTS, 3)))
    assert related(cohort(CLIENTS[:6]), cohort(CLIENTS[6:]))


@given(anew=st.frozensets(st.sampled_from(CLIENTS)))
def test_who_stands_in_both_has_the_same_update_in_both(anew: frozenset[str]) -> None:
    """Otherwise the difference of the sums would show what few clients have changed."""
    changed, (low, _) = dict.fromkeys(anew, b"second"), halved()
    assert related(cohort(), cohort(updates=changed)) == (not anew)
    assert related(cohort(), cohort(low, updates=changed)) == (not anew & low)


def test_no_update_stands_in_sums_of_two_versions() -> None:
    low, _ = halved()
    assert not related(cohort(), cohort(low, version=6))
    assert not related(cohort(), cohort(version=6))


def test_whoever_asks_for_more_sees_the_top_of_the_same_tree() -> None:
    whole, (low, high) = cohort(), halved()
    quarters = halves(RUN, "all", 5, low, LEAST)
    assert all(related(whole, cohort(part), LEAST) for part in quarters)
    assert all(related(whole, cohort(part), 6) for part in (low, high))
    assert not any(related(whole, cohort(part), 4) for part in quarters)
    assert not any(related(whole, cohort(part), 7) for part in (low, high))


@settings(max_examples=200)
@given(heavy=st.frozensets(st.sampled_from(CLIENTS)))
def test_weights_hide_in_every_leaf_or_no_half_may_follow(heavy: frozenset[str]) -> None:
    """Otherwise a large, even half could leave an uneven one."""
    weights = dict.fromkeys(heavy, 2)
    low, _ = halved()
    parts = leaves(RUN, "all", 5, frozenset(CLIENTS), LEAST)
    assert frozenset().union(*parts) == frozenset(CLIENTS)
    good = not any(uneven([weights.get(c, 1) for c in part], LEAST) for part in parts)
    assert related(cohort(weights=weights), cohort(low, weights=weights)) == good
