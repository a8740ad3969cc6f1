"""Splits the records of one data set over the parties of a simulation.

Pure functions of their arguments; `seeded` derives the random numbers of all scenario data.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from secureps.errors import ConfigError


def seeded(seed: int, *key: int) -> np.random.Generator:
    """Makes a PCG64 generator from a seed and the purpose of its numbers.

    Raises:
        ConfigError: the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"the seed of a data set must be at least 0, got {seed}")
    return np.random.Generator(np.random.PCG64([seed, *key]))


REDRAWS = 1000
"""The most draws of `dirichlet` that leave a party below the minimum, before it gives up."""

Indices = NDArray[np.int64]


def dirichlet(
    labels: NDArray[np.int64], parties: int, alpha: float, seed: int, minimum: int = 1
) -> tuple[Indices, ...]:
    """Splits records non-IID: those of each class go to parties in Dirichlet(alpha) shares.

    Small `alpha` gives each party few classes and unequal sizes, a large one approaches IID. This
    is the form with free sizes (Yurochkin et al. 2019) of the Dirichlet split of Hsu, Qi and Brown
    2019, who fix the sizes and draw the classes of each party instead. A draw that leaves a party
    below `minimum` is drawn again: the shares are Dirichlet, given the minimum.

    Args:
        labels: [n] classes.
        parties: at least 1.
        alpha: concentration, above 0.
        seed: non-negative integer (PCG64).
        minimum: records that every party must have.

    Returns:
        One sorted index array per party; together every index of [0, n) once.

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
