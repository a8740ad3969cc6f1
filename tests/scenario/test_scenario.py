"""Scenarios: records and who has them, how long links and training take."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.config.scenario import DelaysSection, LawSection
from secureps.config.sections import parse
from secureps.errors import ConfigError
from secureps.messages.requests import GetBlock, Payload, Submit
from secureps.messages.submission import Receipt
from secureps.scenario.clicks import CONTEXTS, HEAD, SEGMENTS, TASTES, Clicks, Records, auc
from secureps.scenario.datasets import Dataset, breast_cancer, digits, dirichlet, stratified
from secureps.scenario.delays import Delays, Links, draw, generator
from tests.kits.unset import unset


@pytest.mark.parametrize(
    ("load", "count", "features", "classes"), [(digits, 1797, 64, 10), (breast_cancer, 569, 30, 2)]
)
def test_a_data_set_is_split_in_two(
    load: Callable[[int], Dataset], count: int, features: int, classes: int
) -> None:
    data = load(3)
    assert data.x.dtype == data.held_out_x.dtype == np.float32
    assert data.y.dtype == data.held_out_y.dtype == np.int64
    assert data.x.shape[1:] == data.held_out_x.shape[1:] == (features,)
    assert len(data.x) == len(data.y)
    assert len(data.held_out_x) == len(data.held_out_y)
    assert len(data.y) + len(data.held_out_y) == count
    assert data.classes == classes
    for label in range(classes):
        held = int((data.held_out_y == label).sum())
        assert held == round(0.2 * (held + int((data.y == label).sum())))


def test_a_split_is_a_function_of_its_seed() -> None:
    first, again, other = digits(3), digits(3), digits(4)
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.held_out_x, again.held_out_x)
    assert not np.array_equal(first.held_out_x, other.held_out_x)


def test_breast_cancer_is_standardised_by_the_training_part_alone() -> None:
    data = breast_cancer(1)
    np.testing.assert_allclose(data.x.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(data.x.std(axis=0), 1, atol=1e-4)
    assert np.abs(data.held_out_x.mean(axis=0)).max() > 1e-3


def test_stratified_gives_every_index_once() -> None:
    labels = np.repeat(np.arange(3), (10, 20, 5))
    rest, part = stratified(labels, 0.4, 9)
    assert sorted([*rest, *part]) == list(range(35))
    assert np.bincount(labels[part]).tolist() == [4, 8, 2]
    assert list(part) == sorted(part)
    assert list(part) != [0, 1, 2, 3, *range(10, 18), 30, 31]


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        stratified(np.zeros(4, np.int64), share, 1)


def test_a_negative_seed_is_refused() -> None:
    for make in (digits, lambda seed: dirichlet(np.zeros(9, np.int64), 3, 1.0, seed)):
        with pytest.raises(ConfigError, match="the seed of a data set must be at least 0, got -1"):
            make(-1)
    with pytest.raises(ConfigError, match="must be at least 0, got -2"):
        Clicks(seed=-2).share(0)


LABELS = np.repeat(np.arange(10), 100)


def skew(split: tuple[NDArray[np.int64], ...]) -> float:
    """Mean share of the commonest class."""
    return float(np.mean([np.bincount(LABELS[part]).max() / len(part) for part in split]))


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=80),
    parties=st.integers(1, 4),
    alpha=st.floats(0.3, 100),
    seed=st.integers(0, 2**63),
    minimum=st.integers(0, 2),
)
def test_dirichlet_gives_every_index_once(
    labels: list[int], parties: int, alpha: float, seed: int, minimum: int
) -> None:
    array = np.array(labels, dtype=np.int64)
    split = dirichlet(array, parties, alpha, seed, minimum)
    assert len(split) == parties
    assert np.concatenate(split).dtype == np.int64
    assert sorted(np.concatenate(split)) == list(range(len(labels)))
    assert all(len(part) >= minimum and np.all(np.diff(part) > 0) for part in split)


def test_dirichlet_is_a_function_of_its_seed() -> None:
    first = dirichlet(LABELS, 6, 0.5, 7, 50)
    again = dirichlet(LABELS, 6, 0.5, 7, 50)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    other = dirichlet(LABELS, 6, 0.5, 8, 50)
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_alpha_is_the_evenness() -> None:
    means = [np.mean([skew(dirichlet(LABELS, 5, a, s)) for s in range(20)]) for a in (0.1, 1, 100)]
    assert means[0] > 0.4 > means[1] > 0.2 > means[2]


def test_class_shares_are_dirichlet() -> None:
    # of 4 parties with alpha 1: mean 1/4, variance 3/80
    shares = np.array(
        [
            np.bincount(LABELS[part], minlength=10) / 100
            for seed in range(60)
            for part in dirichlet(LABELS, 4, 1.0, seed)
        ]
    )
    assert shares.mean() == pytest.approx(0.25)
    assert shares.var() == pytest.approx(3 / 80, rel=0.1)


def test_the_minimum_is_given() -> None:
    assert min(map(len, dirichlet(LABELS, 5, 0.5, 1, 150))) >= 150


@pytest.mark.parametrize(
    ("parties", "alpha", "minimum", "reason"),
    [
        (10, 0.1, 100, "raise alpha or lower the minimum"),
        (3, 1.0, 400, "cannot give each of 3 parties at least 400"),
        (0, 1.0, 1, "needs at least one party, got 0"),
        *((3, alpha, 1, "alpha must be") for alpha in (0.0, -1.0, float("nan"), float("inf"))),
    ],
)
def test_impossible_splits_are_refused(
    parties: int, alpha: float, minimum: int, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        dirichlet(LABELS, parties, alpha, 1, minimum)


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


# --- links, on which messages take time -------------------------------------------


LATENCY = 0.5
SMALL = GetBlock(b"run", "all", 0, 0)


def links(bytes_per_second: float | None = 100.0) -> Links:
    law = None if bytes_per_second is None else LawSection(kind="constant", value=bytes_per_second)
    return Links(Delays(network=LawSection(kind="constant", value=LATENCY), bandwidth=law), seed=1)


def block(size: int) -> Payload:
    return Payload(b"", bytes(size))


def test_messages_wait_for_one_another() -> None:
    own = links()
    assert own.seconds("client-0", True, block(200), 10.0) == 2.0 + LATENCY
    assert own.seconds("client-0", True, block(100), 11.0) == 2.0 + LATENCY, "free at 12"
    assert own.seconds("client-0", True, block(100), 20.0) == 1.0 + LATENCY, "free again"


def test_up_and_down_and_other_clients_are_links_of_their_own() -> None:
    own = links()
    own.seconds("client-0", True, block(10_000), 0.0)
    assert own.seconds("client-0", False, block(100), 0.0) == 1.0 + LATENCY
    assert own.seconds("client-1", True, block(100), 0.0) == 1.0 + LATENCY


def test_what_is_small_overtakes() -> None:
    own = links()
    own.seconds("client-0", True, block(10_000), 0.0)
    assert own.seconds("client-0", True, SMALL, 0.0) == LATENCY


def test_a_link_that_was_cut_is_free() -> None:
    own = links()
    for up in (True, False):
        own.seconds("client-0", up, block(10_000), 0.0)
    own.cut("client-0")
    assert [own.seconds("client-0", up, block(100), 1.0) for up in (True, False)] == [1.5, 1.5]


def test_a_receipt_takes_the_time_of_what_it_carries() -> None:
    blocks, envelopes, commitments = (bytes(32),) * 3, (bytes(40),) * 2, (bytes(16),) * 2
    carried = {"blocks": blocks, "envelopes": envelopes, "commitments": commitments}
    receipt = unset(Receipt, **carried, correction=bytes(400))
    seconds = links().seconds("client-0", True, Submit(receipt), 0.0)
    assert seconds == pytest.approx((3 * 32 + 2 * 40 + 2 * 16 + 400) / 100 + LATENCY)


def test_a_link_is_as_slow_every_time_and_others_are_not() -> None:
    delays = Delays(bandwidth=LawSection(kind="lognormal", median=100.0, sigma=0.5))
    speeds = [delays.bytes_per_second(3, name) for name in ("client-0", "client-0", "client-1")]
    assert speeds[0] == speeds[1] != speeds[2]
    alone = Links(delays, 3).seconds("client-1", True, block(100), 0.0)
    assert alone == pytest.approx(100 / speeds[2])


# --- training, and how long it takes ----------------------------------------------


DELAYS = Delays(
    train=LawSection(kind="lognormal", median=2.0, sigma=0.5),
    network=LawSection(kind="exponential", mean=0.1),
    dropout=0.3,
)


def test_a_number_is_a_constant() -> None:
    told = Delays.model_validate({"train": 3})
    assert told.train == LawSection(kind="constant", value=3.0)


def draws(law: LawSection) -> list[float]:
    return [draw(law, generator(1, "a", v, "train")) for v in range(4000)]


def test_samples_follow_their_law() -> None:
    assert set(draws(LawSection(kind="constant", value=2.0))) == {2.0}
    uniform = draws(LawSection(kind="uniform", low=1.0, high=3.0))
    assert (min(uniform) >= 1.0, max(uniform) < 3.0) == (True, True)
    assert np.mean(uniform) == pytest.approx(2.0, abs=0.05)
    assert np.var(uniform) == pytest.approx(1 / 3, rel=0.1)
    lognormal = np.log(draws(LawSection(kind="lognormal", median=2.0, sigma=0.5)))
    assert lognormal.mean() == pytest.approx(math.log(2.0), abs=0.03)
    assert lognormal.std() == pytest.approx(0.5, rel=0.05)
    exponential = draws(LawSection(kind="exponential", mean=2.0))
    assert np.mean(exponential) == pytest.approx(2.0, rel=0.06)
    assert np.std(exponential) == pytest.approx(2.0, rel=0.1)


def test_a_slow_device_is_slow_every_time() -> None:
    delays = Delays(
        train=LawSection(kind="lognormal", median=2.0, sigma=0.5),
        device=LawSection(kind="lognormal", median=1.0, sigma=0.9),
    )
    speeds = [
        {delays.train_seconds(9, c, v) / DELAYS.train_seconds(9, c, v) for v in range(3)}
        for c in ("a", "b")
    ]
    (a,), (b,) = ({round(factor, 9) for factor in each} for each in speeds)
    assert a != b


def test_a_delay_does_not_depend_on_the_order_of_calls() -> None:
    events = [(client, version) for client in ("a", "b") for version in range(5)]
    forward = {event: DELAYS.train_seconds(9, *event) for event in events}
    backward = {event: DELAYS.train_seconds(9, *event) for event in reversed(events)}
    assert forward == backward
    assert len(set(forward.values())) == len(events)


def test_every_part_of_an_event_matters() -> None:
    base = (1, "a", 12, "push")
    others = [
        (2, "a", 12, "push"),
        (1, "b", 12, "push"),
        (1, "a", 1, "2push"),
        (1, "a1", 2, "push"),
    ]
    values = {generator(*event).random() for event in [base, *others]}
    assert len(values) == 5
    assert DELAYS.network_seconds(1, "a", 1, "push") != DELAYS.network_seconds(1, "a", 1, "pull")


def test_dropout_is_a_probability() -> None:
    dropped = [DELAYS.drops(4, "a", version) for version in range(3000)]
    assert np.mean(dropped) == pytest.approx(0.3, abs=0.03)
    assert not any(Delays().drops(4, "a", version) for version in range(100))
    assert all(Delays(dropout=1.0).drops(4, "a", version) for version in range(100))


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"train": {"kind": "pareto"}}, "train.kind: unknown value .pareto.; known are constant"),
        ({"train": {"value": 1}}, "train.kind: is missing"),
        ({"train": {"kind": "uniform", "low": 1}}, "train: uniform takes low, high, not low"),
        ({"train": {"kind": "constant", "value": 1, "mean": 2}}, "takes value, not value, "),
        ({"train": {"kind": "uniform", "low": 2, "high": 1}}, "train: high, 1, is below low, 2"),
        ({"train": {"kind": "exponential", "mean": -1}}, "train.mean: must be 0 or more"),
        ({"train": {"kind": "exponential", "mean": True}}, "train.mean: must be a number"),
        ({"train": {"kind": "lognormal", "median": 1, "sigma": 11}}, "sigma: must be 10 or less"),
        ({"train": {"kind": "lognormal", "median": 1e16, "sigma": 1}}, "median: must be 1e.15 or"),
        ({"train": "fast"}, "train.value: must be a number"),
        ({"train": float("inf")}, "must be a finite number"),
        ({"train": float("nan")}, "must be a finite number"),
        ({"train": 10**400}, "train.value: must be a number"),
        ({"drop": 0.1}, r"unknown key; did you mean dropout\? known are train, network, device"),
        ({"dropout": 1.5}, "dropout: must be 1 or less"),
        ({"bandwidth": 0}, "a link has 1 byte a second or more, and not 0"),
        ({"bandwidth": {"kind": "uniform", "low": 5e-324, "high": 9}}, "1 byte a second or more"),
        ({"bandwidth": {"kind": "lognormal", "median": 1e-9, "sigma": 9}}, "not 1e-09"),
        ({"bandwidth": {"kind": "exponential", "mean": 9}}, "take lognormal"),
    ],
)
def test_bad_delays_are_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(DelaysSection, table, "delays")
