from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.errors import ConfigError
from secureps.scenario.clicks import CONTEXTS, HEAD, SEGMENTS, TASTES, Clicks, Records, auc

MARKET = Clicks()
FIRST_ITEM = SEGMENTS + CONTEXTS
FIRST_SHELF = FIRST_ITEM + HEAD


@pytest.fixture(scope="module")
def shares() -> list[Records]:
    return [MARKET.share(party) for party in range(MARKET.parties)]


def same(one: Records, other: Records) -> bool:
    return all(np.array_equal(getattr(one, k), getattr(other, k)) for k in ("x", "y", "p"))


def test_records_are_a_function_of_the_seed_alone(shares: list[Records]) -> None:
    again = Clicks()
    assert same(again.judged(), MARKET.judged())
    assert same(again.share(7), shares[7])
    assert same(again.pooled(), Records.joined(shares))
    assert not same(shares[6], shares[7])
    other = replace(MARKET, seed=8)
    assert not same(other.share(7), shares[7])
    assert not np.array_equal(other.chance(shares[7].x), shares[7].p)


def test_held_out_records_are_as_many_of_every_party() -> None:
    """In the order of parties, so that a party's shelves tell where its records lie."""
    market = Clicks(parties=3, held_out=1000)
    judged = market.judged()
    for party, (first, last) in enumerate([(0, 333), (333, 666), (666, 1000)]):
        assert shelves_of(judged.x[first:last]) <= shelves_of(market.share(party).x)
        assert not np.array_equal(judged.x[first:last], market.share(party).x[: last - first])


def shelves_of(x: NDArray[np.int64]) -> set[int]:
    items = x[:, 2][x[:, 2] >= FIRST_SHELF]
    return set((np.searchsorted(MARKET.shelves, items, side="right") - 1).tolist())


def test_a_party_touches_little_beside_what_all_touch(shares: list[Records]) -> None:
    touched = [set(np.unique(each.x).tolist()) for each in shares]
    assert all(0.05 < len(rows) / MARKET.rows < 0.15 for rows in touched)
    common = set.intersection(*touched)
    assert len(common) > 30
    assert max(common) < FIRST_SHELF
    assert all(len(shelves_of(each.x)) == TASTES for each in shares)
    unlike = [len(touched[0] & rows) / len(touched[0]) for rows in touched[1:]]
    assert min(unlike) < 0.7


def test_popularity_is_zipf(shares: list[Records]) -> None:
    """Half of all records are about the head, where rank r comes in proportion to r^-1.1."""
    items = Records.joined(shares).x[:, 2]
    head = np.bincount(items[items < FIRST_SHELF] - FIRST_ITEM, minlength=HEAD)
    assert head.sum() / len(items) == pytest.approx(0.5, abs=0.02)
    expected = np.arange(1, HEAD + 1) ** -1.1
    expected *= head.sum() / expected.sum()
    # chi-squared over its degrees of freedom, 1 in the mean, sqrt(2 / 127) = 0.13 around it
    assert ((head - expected) ** 2 / expected).sum() / (HEAD - 1) < 1.5


def test_clicks_follow_the_true_chances() -> None:
    judged = replace(MARKET, held_out=40_000).judged()
    assert 0.15 < judged.y.mean() < 0.35
    order = np.argsort(judged.p)
    for part in np.array_split(order, 10):
        deviation = np.sqrt((judged.p[part] * (1 - judged.p[part])).sum())
        assert abs((judged.y[part] - judged.p[part]).sum()) < 4 * deviation


def test_the_truth_is_a_factorization_machine() -> None:
    x = MARKET.share(0).x[:20]
    weights, vectors = MARKET._truth
    for record, p in zip(x, MARKET.chance(x), strict=True):
        one, two, three = vectors[record]
        logit = -1.2 + weights[record].sum() + one @ two + two @ three + three @ one
        assert p == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-12)


def test_the_best_possible_auc() -> None:
    judged = MARKET.judged()
    best = auc(judged.p, judged.y)
    assert best == pytest.approx(0.8142, abs=0.00005)  # the mark for whatever learns
    noise = np.random.default_rng(1).normal(scale=0.05, size=5000)
    assert auc(judged.p + noise, judged.y) < best


@pytest.mark.parametrize("rows", [300, 4001, 100_000])
def test_a_table_of_any_size_is_shelved_to_its_last_row(rows: int) -> None:
    market = Clicks(rows=rows, parties=2)
    assert (market.shelves[0], market.shelves[-1]) == (FIRST_SHELF, rows)
    assert np.diff(market.shelves).min() >= 1
    assert market.pooled().x.max() < rows


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"rows": 285}, "at least 286 rows, got 285"),
        ({"parties": 0}, "must be at least 1"),
        ({"records": 0}, "must be at least 1"),
        ({"held_out": 0}, "must be at least 1"),
    ],
)
def test_bad_sizes_are_refused(sizes: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Clicks(**sizes)


def counted(scores: list[int], labels: list[int]) -> float:
    """The AUC by its definition: all pairs."""
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, positive in zip(scores, labels, strict=True)
        if positive
        for b, other in zip(scores, labels, strict=True)
        if not other
    ]
    return sum(pairs) / len(pairs)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=40))
def test_auc_is_the_share_of_ordered_pairs(records: list[tuple[int, int]]) -> None:
    scores, labels = map(list, zip(*records, strict=True))
    if len(set(labels)) < 2:
        with pytest.raises(ConfigError, match="both classes"):
            auc(np.array(scores), np.array(labels))
        return
    assert auc(np.array(scores), np.array(labels)) == counted(scores, labels)
