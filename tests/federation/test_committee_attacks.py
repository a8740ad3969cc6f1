"""What an aggregator gets from a committee by asking well, with corrupt holders or without."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from secureps.crypto.suite import key_length
from secureps.errors import Malformed, Refused
from secureps.messages import orders, requests
from tests.kits.committee_kit import CLIENTS, Bench, Sent, key_of, made_up_keys, seeds


@cache
def bench(holders: int, threshold: int) -> Bench:
    return Bench(holders, threshold)


@cache
def crowd(holders: int, threshold: int) -> tuple[Sent, ...]:
    return tuple(bench(holders, threshold).send(name) for name in CLIENTS[:6])


def answers(
    holders: int, threshold: int, first: tuple[int, ...], corrupt: tuple[int, ...]
) -> tuple[orders.Open, orders.Open, dict[str, bytes], dict[str, bytes]]:
    """Both of two cohorts that differ in one member are asked of everybody.

    Args:
        first: holders that are asked for the larger cohort first, the others for the smaller.
        corrupt: holders that keep no ledger.
    """
    site, sent = bench(holders, threshold), crowd(holders, threshold)
    larger, smaller = site.opening(sent), site.opening(sent[1:], number=1)
    found: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
    for index in range(holders):
        holder = site.holder(index)
        pair = [(larger, found[0]), (smaller, found[1])]
        for order, shares in pair if index in first else pair[::-1]:
            holder = site.holder(index) if index in corrupt else holder
            for said in holder.order(order):
                if isinstance(said, requests.KeyShare):
                    shares[holder.name] = said.share
    return larger, smaller, *found


def everybody(holders: int) -> list[tuple[int, ...]]:
    sizes = range(holders + 1)
    return [each for size in sizes for each in itertools.combinations(range(holders), size)]


@pytest.mark.parametrize(
    ("holders", "threshold", "corrupt"), [(2, 2, ()), (3, 2, ()), (4, 3, (1,))]
)
def test_two_cohorts_that_differ_in_one_member_never_both_open(
    holders: int, threshold: int, corrupt: tuple[int, ...]
) -> None:
    """However holders are asked: f <= 2t - n - 1 corrupt ones do not suffice."""
    for first in everybody(holders):
        _, _, larger, smaller = answers(holders, threshold, first, corrupt)
        assert len(larger) < threshold or len(smaller) < threshold


@pytest.mark.parametrize(
    ("holders", "threshold", "corrupt"), [(2, 2, (0, 1)), (3, 2, (1,)), (4, 3, (1, 2))]
)
def test_past_the_bound_the_difference_is_one_update(
    holders: int, threshold: int, corrupt: tuple[int, ...]
) -> None:
    """The bound is not too careful: one more corrupt holder, and one update lies open."""
    site, sent = bench(holders, threshold), crowd(holders, threshold)
    taken = []
    for first in everybody(holders):
        larger, smaller, of_larger, of_smaller = answers(holders, threshold, first, corrupt)
        if len(of_larger) >= threshold and len(of_smaller) >= threshold:
            keys = [
                site.key(order, dict(list(shares.items())[:threshold]))
                for order, shares in ((larger, of_larger), (smaller, of_smaller))
            ]
            taken.append(site.opened(sent[:1], [1], keys[0] - keys[1]))
    assert taken
    assert all((values == sent[0].values).all() for values in taken)


def test_fewer_than_t_holders_and_all_that_the_aggregator_saw_open_nothing() -> None:
    """They lack one seed of four holders' six: whatever they put in its place is refused."""
    site, sent = bench(4, 3), crowd(4, 3)
    length = key_length(site.plan.cipher_parameters)
    receipt = sent[0].receipt
    first, second, third = (seeds(site, site.holder(index), receipt) for index in range(3))
    known = first | second
    assert set(site.committee.key_subsets) - set(known) == {(0, 1)}
    for key in made_up_keys(receipt, known, (0, 1), length):
        with pytest.raises((Malformed, Refused), match=r"none of|does not open"):
            site.opened(sent[:1], [1], key)
    key = key_of(receipt, known | third, length)
    assert (site.opened(sent[:1], [1], key) == sent[0].values).all(), "a third one has it"


def test_the_sum_of_a_cohort_opens_no_part_of_it() -> None:
    site, sent = bench(4, 3), crowd(4, 3)
    order = site.opening(sent)
    shares = {h.name: h.share(order) for h in (site.holder(k) for k in range(3))}
    key = site.key(order, shares)
    whole = site.opened(sent, [1] * 6, key)
    assert (whole == np.sum([each.values for each in sent], axis=0)).all()
    for part in (sent[:1], sent[1:], sent[:3]):
        with pytest.raises((Malformed, Refused), match=r"none of|does not open"):
            site.opened(part, [1] * len(part), key)
