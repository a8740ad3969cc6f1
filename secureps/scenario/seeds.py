"""Random numbers of a scenario's data, from a seed that a person wrote."""

from __future__ import annotations

import numpy as np

from secureps.errors import ConfigError


def seeded(seed: int, *key: int) -> np.random.Generator:
    """PCG64 of a seed, and of what its numbers are for.

    Raises:
        ConfigError: the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"the seed of a data set must be at least 0, got {seed}")
    return np.random.Generator(np.random.PCG64([seed, *key]))
