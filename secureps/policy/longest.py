"""Bounds the length of a cohort's sum if all its members follow the plan.

Nobody opens a single update, so nobody sees who sends one that is too long. But every client clips
its update to an L2 norm of C, and norms of sums are at most sums of norms. So a sum longer than
`longest_sum` proves that some member did not clip, and no model is made of it. With probability
`ERROR` or less a sum of honest updates is longer, for any model, cohort and updates.

**The updates.** Client i sends s_i delta_i with |delta_i| <= C and its public share s_i, and counts
w_i times: together at most C times the sum of w_i s_i. Codecs make no update longer.

**Rounding**, for d values of step h. A value becomes one of its two neighbours, without bias and by
words of its own. The error of the sum is h f(e) with f(e) = |sum of w_i e_i|. Every error e_ij lies
in an interval of length 1, and its variance is at most 1/4. For W, the sum of w_i^2, E f is at most
sqrt(W d) / 2 (Jensen). f is convex, and changes by at most sqrt(W) times the distance, so

    P(f > E f + t sqrt(W)) <= exp(-t^2 / 2)    (Boucheron, Lugosi, Massart 2013, theorem 6.10)

**Client-level privacy.** There the bound of an update has room for rounding (`l2_sensitivity`). The
noise of a value is the sum of w_i X_i, with X_i Skellam and w_i <= w. Let V be its variance.
As cosh t - 1 <= t^2 / (2 - 2 t / 3), no value is beyond M = sqrt(2 V L) + w L / 3, where
L = log(4 d / ERROR), but for half of ERROR (Bernstein). Squares of values within M have a mean of
at most V, and a variance of at most 3 V^2 + w^2 V. So for the other half, with l = log(2 / ERROR),

    P(|noise|^2 > d V + sqrt(2 d (3 V^2 + w^2 V) l) + M^2 l / 3) <= exp(-l)    (Bernstein)

A draw of noise is clamped to the grid with a probability of 2^-64 or less.

An update is in units of the group's scale, if that moves. Then C is in these units too.

**What is usual.** If C is far longer than updates are, one client can send much and stay within the
bound. By `bound = "3x median"` (N = 3) the mean of k members also has at most a length of

    N * median of length_i * sqrt(max(1, n_i / k)) over the last `MEMORY` versions,

where n_i members had a mean of length_i. Means of independent updates shrink as 1 / sqrt(n), and
aligned ones do not: the root covers both. Noise is taken out of length_i and added to the bound by
its law. A longer sum proves nothing: honest updates may grow (`cohorts.suspicion`). Before version
1 nothing is usual, so every sum is too long, and sets of clients show what is. Otherwise an
attacker that is there from the beginning would make its own length the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from secureps.codec.grid import MovingRange
from secureps.messages.submission import Cohort
from secureps.model.layout import GroupLayout
from secureps.policy.cohorts.suspicion import Length
from secureps.policy.plan import Plan, scale_mover, shares_in

ERROR: Final = 1e-9
"""The probability with which honest updates come to a longer sum."""

SLACK: Final = 1 + 2.0**-16
"""Outweighs all roundings of float32 and float64 on the way from the clip to the sum."""


def longest_sum(
    plan: Plan, layout: GroupLayout, cohort: Cohort, usual: float = math.inf
) -> float | None:
    """Returns the longest L2 norm of a cohort's honest sum; None if the plan does not bound it.

    The norm is in the units of updates, without the last value where that is a scale. `usual`
    bounds the mean in the model's units.
    """
    if not plan.bounds_sums(cohort.group):
        return None
    weights, values = [member.weight for member in cohort.members], layout.sent
    step = plan.grid(cohort.group, values).step
    mechanism = plan.mechanism(cohort.group, values)
    usual /= cohort.scale or 1.0
    if mechanism is not None:
        noisy = [1] if plan.noisy_shards else weights
        noise = _longest_noise(values, mechanism.calibration.variance, noisy)
        longest = min(mechanism.l2_sensitivity, usual / step)
        return SLACK * step * (sum(weights) * longest + noise)
    clip = plan.group(cohort.group).clip
    if isinstance(scale_mover(plan, cohort.group, values), MovingRange):
        assert cohort.scale is not None
        clip /= cohort.scale
    clip = min(clip, usual)
    spread = math.sqrt(sum(weight * weight for weight in weights))
    rounding = spread * (math.sqrt(values) / 2 + math.sqrt(-2 * math.log(ERROR)))
    return SLACK * (float(shares_in(plan.group(cohort.group), cohort)) * clip + step * rounding)


def longest_usual(plan: Plan, cohort: Cohort, lengths: Sequence[Length]) -> float:
    """Returns N times the usual length of such a cohort's mean; inf if the plan has no N."""
    times, members = plan.times_median(cohort.group), _count(cohort)
    if not times:
        return math.inf
    if not lengths:
        return 0.0
    return times * median(each * math.sqrt(max(1.0, n / members)) for each, n in lengths)


def measure(plan: Plan, layout: GroupLayout, cohort: Cohort, norm: float) -> Length:
    """Returns the length of a mean whose sum has this norm, and the number of its members."""
    mechanism, square = plan.mechanism(cohort.group, layout.sent), norm**2
    if mechanism is not None:
        draws = 1 if plan.noisy_shards else sum(member.weight**2 for member in cohort.members)
        step = plan.grid(cohort.group, layout.sent).step
        square -= layout.sent * draws * mechanism.calibration.variance * step**2
    shares = float(shares_in(plan.group(cohort.group), cohort))
    return math.sqrt(max(0.0, square)) * (cohort.scale or 1.0) / shares, _count(cohort)


def _count(cohort: Cohort) -> float:
    """Counts the members; with unlike weights it is (sum w)^2 / sum w^2."""
    counted = [member.weight * member.examples for member in cohort.members]
    return sum(counted) ** 2 / sum(each * each for each in counted)


def _longest_noise(values: int, variance: float, weights: Sequence[int]) -> float:
    """Bounds the norm of summed noise, in grid steps; `variance` is that of a value of one draw."""
    heaviest, total = max(weights), variance * sum(weight * weight for weight in weights)
    beyond, of_squares = math.log(4 * values / ERROR), math.log(2 / ERROR)
    largest = math.sqrt(2 * total * beyond) + heaviest * beyond / 3
    spread = math.sqrt(2 * values * (3 * total**2 + heaviest**2 * total) * of_squares)
    return math.sqrt(values * total + spread + largest**2 * of_squares / 3)
