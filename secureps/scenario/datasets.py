"""Loads small real data sets that come with scikit-learn, so that nothing is downloaded.

For demonstrations, tests and benchmarks. Statistics for scaling are taken from the pooled
training part, which a real federation could not look at.

Examples:
    >>> data = ps.datasets.digits(seed=7)
    >>> data.x.shape[1], data.classes
    (64, 10)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secureps.errors import ConfigError
from secureps.extras import from_extras
from secureps.scenario.partition import seeded

HELD_OUT_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, split in two parts that share no record.

    Args:
        x: [n, features] float32, to train on.
        y: [n] int64 classes in [0, classes).
        held_out_x: likewise, to judge on; about 20 % of every class.
        held_out_y: their classes.
        classes: how many.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    held_out_x: NDArray[np.float32]
    held_out_y: NDArray[np.int64]
    classes: int


def stratified(
    labels: NDArray[np.int64], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Splits indices: every class gives `share` of its records, rounded, to the second part.

    A positive share of two records or more gives at least one.

    Args:
        labels: [n] classes.
        share: in [0, 1).
        seed: of the permutation (PCG64); any non-negative integer.

    Returns:
        (rest, part): sorted indices, together every index once.

    Raises:
        ConfigError: `share` or `seed` is out of range.
    """
    if not 0 <= share < 1:
        raise ConfigError(f"the held-out share must be in [0, 1), got {share!r}")
    rng = seeded(seed)
    order = rng.permutation(len(labels))
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        chosen[members[: round(share * len(members))]] = True
    if share > 0 and len(labels) > 1 and not chosen.any():
        chosen[order[0]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def digits(seed: int) -> Dataset:
    """1797 handwritten digits of 8 x 8 pixels in [0, 1], 64 features, 10 classes.

    Source: UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak 1998), test part.
    """
    with from_extras():
        from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return _split(np.asarray(x) / 16, np.asarray(y), seed)


def breast_cancer(seed: int) -> Dataset:
    """569 tumours, 30 features with mean 0 and variance 1 in the training part, 2 classes.

    Source: UCI Breast Cancer Wisconsin, Diagnostic (Wolberg et al. 1995); class 1 is benign.
    """
    with from_extras():
        from sklearn.datasets import load_breast_cancer

    x, y = (np.asarray(each) for each in load_breast_cancer(return_X_y=True))
    rest, _ = stratified(y.astype(np.int64), HELD_OUT_SHARE, seed)
    return _split((x - x[rest].mean(axis=0)) / x[rest].std(axis=0), y, seed)


def _split(x: NDArray[np.float64], y: NDArray[np.int64], seed: int) -> Dataset:
    x32, labels = x.astype(np.float32), y.astype(np.int64)
    rest, part = stratified(labels, HELD_OUT_SHARE, seed)
    return Dataset(x32[rest], labels[rest], x32[part], labels[part], int(labels.max()) + 1)
