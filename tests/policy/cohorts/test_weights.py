"""Weights of stale updates, how they are evened out, and the sizes that clients declare."""

import itertools

import pytest

from secureps.messages.submission import SubmissionId
from secureps.policy.cohorts.suspicion import uneven
from secureps.policy.rules.registry import LARGEST, declare, drop_older, even_out, fade
from secureps.policy.rules.rule import Arrival


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((4, 4, 4, 4), (1, 1, 1, 1)),
        ((1, 1, 1, 1), (1, 1, 1, 1)),
        ((1, 4, 4, 4), (1, 1, 1, 1)),
        ((1, 2, 2, 4, 4, 4), (1, 1, 1, 2, 2, 2)),
        ((1, 1, 2, 2, 4, 4), (1, 1, 2, 2, 4, 4)),
        ((1, 1, 1, 4), (1, 1, 1, 1)),
    ],
)
def test_the_few_that_are_light_are_made_as_heavy(
    given: tuple[int, ...], made: tuple[int, ...]
) -> None:
    assert even_out(given, 2) == made


@pytest.mark.parametrize("least", [2, 3])
def test_what_is_made_is_opened_and_keeps_its_order(least: int) -> None:
    for given in itertools.combinations_with_replacement((1, 2, 4), 6):
        made = even_out(given, least)
        assert not uneven(made, least)
        assert list(made) == sorted(made)
        if not uneven(given, least):
            assert len(set(made)) == len(set(given)), "what holders open stays as it is"


def test_an_older_update_counts_for_no_more() -> None:
    assert [fade(staleness, 0.5) for staleness in range(12)] == [4] + [2] * 6 + [1] * 5
    assert {fade(staleness, 0.0) for staleness in range(9)} == {4}
    assert fade(10**6, 3.0) == 1


def test_what_is_declared_is_within_its_bounds() -> None:
    """An update that rounding makes longer than the clip declares no more than the clip."""
    assert [declare(2.0**-k, 1.0) for k in range(9)] == [15, 13, 11, 9, 7, 5, 3, 1, 0]
    assert declare(1.0 + 1e-7, 1.0) == declare(9.0, 1.0) == LARGEST
    assert declare(0.0, 1.0) == declare(1.0, 0.0) == 0


def test_the_newest_update_of_a_client_is_the_one_that_is_chosen_from() -> None:
    ids = [SubmissionId(client, "all", n) for n, client in enumerate(("a", "b", "a", "c", "a"))]
    drop = drop_older(tuple(Arrival(id, 0, float(n)) for n, id in enumerate(ids)))
    assert drop is not None
    assert drop.ids == (ids[0], ids[2])
    assert drop_older(tuple(Arrival(id, 0) for id in (ids[1], ids[3], ids[4]))) is None
