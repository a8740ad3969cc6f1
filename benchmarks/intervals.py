"""The mean of a few measurements, and how far it may be from that of many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.stats import t


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval by Student's t; infinite for one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    error = statistics.stdev(values) / math.sqrt(len(values))
    return mean, float(t.ppf(0.975, len(values) - 1)) * error
