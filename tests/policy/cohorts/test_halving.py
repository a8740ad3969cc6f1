"""Halves of a burnt cohort: whatever sums are subtracted, sums over whole leaves remain."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.policy.cohorts.suspicion import Clients, halves, is_within

RUN = b"r" * 32


def tree(whole: Clients, least: int) -> list[Clients]:
    return [whole] + [s for h in halves(RUN, "all", 3, whole, least) for s in tree(h, least)]


def clients(count: int) -> Clients:
    return frozenset(f"client-{k}" for k in range(count))


@settings(max_examples=60)
@given(count=st.integers(1, 60), least=st.integers(1, 7))
def test_halves_are_a_partition_into_parts_that_are_large_enough(count: int, least: int) -> None:
    whole = clients(count)
    parts = halves(RUN, "all", 3, whole, least)
    assert (len(parts) == 2) == (count >= 2 * least)
    if parts:
        assert parts[0] | parts[1] == whole
        assert not parts[0] & parts[1]
        assert min(map(len, parts)) >= least


@settings(max_examples=40)
@given(count=st.integers(4, 48), least=st.integers(2, 5))
def test_nobody_is_left_among_fewer_than_the_least(count: int, least: int) -> None:
    """Clients that are in the same sets of the tree cannot be told apart, whatever is opened."""
    whole = clients(count)
    sets = tree(whole, least)
    for a, b in itertools.combinations(sets, 2):
        assert not a & b or a < b or b < a
    leaves: dict[tuple[bool, ...], int] = {}
    for client in whole:
        key = tuple(client in s for s in sets)
        leaves[key] = leaves.get(key, 0) + 1
    assert min(leaves.values()) >= min(least, count)


@settings(max_examples=40)
@given(count=st.integers(4, 40), least=st.integers(2, 5))
def test_within_is_membership_of_the_tree(count: int, least: int) -> None:
    whole = clients(count)
    sets = tree(whole, least)
    assert all(is_within(RUN, "all", 3, whole, s, least) for s in sets)
    for s in sets[1:]:
        one = next(iter(s))
        assert not is_within(RUN, "all", 3, whole, s - {one}, least)
        assert not is_within(RUN, "all", 3, s, whole, least)
    assert not is_within(RUN, "all", 3, whole, whole | {"stranger"}, least)


def test_another_run_group_or_version_cuts_otherwise() -> None:
    whole = clients(40)
    cuts = {
        halves(RUN, "all", 3, whole, 5),
        halves(b"s" * 32, "all", 3, whole, 5),
        halves(RUN, "head", 3, whole, 5),
        halves(RUN, "all", 4, whole, 5),
    }
    assert len(cuts) == 4
