from collections.abc import Callable

import numpy as np
import pytest

from secureps.errors import ConfigError
from secureps.scenario.clicks import Clicks
from secureps.scenario.datasets import Dataset, breast_cancer, digits, dirichlet, stratified


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
    for draw in (digits, lambda seed: dirichlet(np.zeros(9, np.int64), 3, 1.0, seed)):
        with pytest.raises(ConfigError, match="the seed of a data set must be at least 0, got -1"):
            draw(-1)
    with pytest.raises(ConfigError, match="must be at least 0, got -2"):
        Clicks(seed=-2).share(0)
