"""The mean of a few measurements, or of ratios of them, and how far it may be from that of many."""

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


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, one by one, and the ends of its 95 % interval."""
    mean, half = mean_interval([math.log(a / b) for a, b in zip(above, below, strict=True)])
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
