import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.errors import ConfigError
from secureps.scenario.datasets import dirichlet

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
