"""Derives the random numbers of a scenario's data from the seed in its file."""

from __future__ import annotations

import numpy as np

from secureps.errors import ConfigError


def seeded(seed: int, *key: int) -> np.random.Generator:
    """Makes a PCG64 generator from a seed and the purpose of its numbers.

    Raises:
        ConfigError: the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"the seed of a data set must be at least 0, got {seed}")
    return np.random.Generator(np.random.PCG64([seed, *key]))
