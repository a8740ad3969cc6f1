"""Small real data sets for demonstrations, tests and benchmarks, and splits of them over parties.

The data comes with scikit-learn, so nothing is downloaded. Features are scaled by statistics of
the pooled training part, which a real federation could not see. All functions are pure.

Examples:
    >>> data = ps.datasets.digits(seed=7)
    >>> data.x.shape[1], data.classes
    (64, 10)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secureps.arguments import check_types
from secureps.errors import ConfigError
from secureps.extras import from_extras

HELD_OUT_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, split in two parts that share no record.

    Args:
        x: [n, features] float32, to train on.
        y: [n] int64 classes in [0, classes).
        held_out_x: like `x`, to score on; about 20 % of every class.
        held_out_y: like `y`.
        classes: the number of classes.
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

    With two records or more, a positive share gives the second part at least one.

    Args:
        labels: [n] classes.
        share: in [0, 1).
        seed: of the permutation (PCG64); any non-negative integer.

    Returns:
        (rest, part): sorted indices; every index is in one of them.

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


# --- splits the records of one data set over the parties of a simulation -----------


def seeded(seed: int, *key: int) -> np.random.Generator:
    """Makes a PCG64 generator from a seed and its purpose; ConfigError if the seed is negative."""
    if seed < 0:
        raise ConfigError(f"the seed of a data set must be at least 0, got {seed}")
    return np.random.Generator(np.random.PCG64([seed, *key]))


REDRAWS = 1000
"""Draws after which `dirichlet` gives up if each left a party below the minimum."""

Indices = NDArray[np.int64]


@check_types
def dirichlet(
    labels: NDArray[np.int64], parties: int, alpha: float, seed: int, minimum: int = 1
) -> tuple[Indices, ...]:
    """Splits records non-IID: those of each class go to parties in Dirichlet(alpha) shares.

    A small `alpha` gives each party few classes and unequal sizes; a large one approaches IID. The
    sizes are free, as in Yurochkin et al. 2019; Hsu, Qi and Brown 2019 fix the sizes and draw the
    classes of each party instead. Draws that leave a party below `minimum` are rejected.

    Args:
        labels: [n] classes.
        parties: at least 1.
        alpha: concentration, above 0.
        seed: non-negative integer (PCG64).
        minimum: records that every party must have.

    Returns:
        One sorted index array per party; every index of [0, n) is in one of them.

    Raises:
        ConfigError: an argument out of range, or no draw gave everyone the minimum.

    Examples:
        >>> mine, theirs = ps.dirichlet(np.zeros(10, np.int64), 2, alpha=5.0, seed=1)
        >>> len(mine) + len(theirs)
        10
    """
    if parties < 1:
        raise ConfigError(f"a split needs at least one party, got {parties}")
    if minimum < 0 or len(labels) < parties * minimum:
        raise ConfigError(
            f"{len(labels)} records cannot give each of {parties} parties at least {minimum}"
        )
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"alpha must be a finite number above 0, got {alpha!r}")
    rng = seeded(seed)
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(REDRAWS):
        parts: list[list[Indices]] = [[] for _ in range(parties)]
        for members in by_class:
            shares = rng.dirichlet(np.full(parties, alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            for part, piece in zip(parts, np.split(rng.permutation(members), cuts), strict=True):
                part.append(piece)
        split = tuple(np.sort(np.concatenate(part)).astype(np.int64) for part in parts)
        if min(map(len, split)) >= minimum:
            return split
    raise ConfigError(
        f"no Dirichlet({alpha}) split of {len(labels)} records over {parties} parties gave "
        f"everyone {minimum} in {REDRAWS} draws; raise alpha or lower the minimum"
    )
