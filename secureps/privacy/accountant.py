"""Computes epsilon from a ledger. The only importer of dp_accounting, which is slow to import.

`epsilon` is for charges, whose unit is a record that is added or removed; `client_epsilon` is for
releases, whose unit is a client whose updates are replaced by zeros. The two cannot be added up.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec, module_from_spec

import numpy as np
from numpy.typing import NDArray

from secureps.errors import ConfigError, PlanRefused
from secureps.messages.charge import Charge, Release
from secureps.privacy.ledger import demand_sound


@contextmanager
def _without_init(name: str) -> Iterator[None]:
    """Has imports inside this context load modules of a package, but not the package itself."""
    spec = None if name in sys.modules else find_spec(name)
    if spec is not None:
        sys.modules[name] = module_from_spec(spec)
    try:
        yield
    finally:
        if spec is not None:
            del sys.modules[name]


try:
    # The package imports its pld accountant, and with it scipy.stats, which takes a second.
    with _without_init("dp_accounting"):
        from dp_accounting import dp_event, privacy_accountant, rdp
except ModuleNotFoundError as error:  # a small installation, for plans without privacy
    raise ConfigError(
        f"{error.name} is not installed, and epsilon is counted with it: pip install dp-accounting"
    ) from None

_RELATION = privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE

WHOLE = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Renyi orders for high sampling rates. Any choice gives a bound; whole orders have a closed form
(Mironov et al. 2019, section 3.3)."""

FRACTIONAL = (*(1 + k / 20 for k in range(1, 20)), *(2 + k / 10 for k in range(1, 90) if k % 10))
"""Further orders, for which `fractional_rdp` integrates, because a large epsilon needs orders near
1. The series of dp_accounting does not converge for them at high rates."""

LEAST_INTEGRATED = 0.05
"""Below this noise multiplier fractional orders are not computed: one step with so little noise has
an epsilon of hundreds anyway."""

HIGH_RATE = 0.1

SKELLAM_ORDERS = (*range(2, 129), *(round(128 * 1.05**n) for n in range(1, 250)))
"""Renyi orders for Skellam noise, up to 2.5e7, because a small epsilon needs large orders. Any
choice of whole orders gives a bound; the theorem does not cover others."""


def epsilon(charges: Iterable[Charge], delta: float) -> float:
    """Computes the epsilon at `delta` of all charges together, for one record added or removed.

    Each charge is `steps` Poisson-sampled Gaussian mechanisms, composed adaptively. The charges
    must be about the same records, as one party's are (`Ledger.tally`); charges of several parties
    give a bound for a record that all of them hold.

    Returns an upper bound on epsilon; infinity if any step was taken without noise. Raises
    Malformed for a charge whose numbers are out of range. Reference: Mironov, Talwar and Zhang
    2019.
    """
    mechanisms: Counter[tuple[float, float]] = Counter()
    for charge, times in Counter(charges).items():
        demand_sound(charge)
        if charge.sample_rate > 0 and charge.steps > 0:
            mechanisms[charge.noise_multiplier, charge.sample_rate] += times * charge.steps
    if not mechanisms:
        return 0.0
    if any(noise == 0 for noise, _ in mechanisms):
        return math.inf
    return _compose(tuple(sorted(mechanisms.items())), delta)


@lru_cache(maxsize=1024)
def _compose(mechanisms: tuple[tuple[tuple[float, float], int], ...], delta: float) -> float:
    whole = max(rate for (_, rate), _ in mechanisms) >= HIGH_RATE
    parts = [(steps, *_sampled_gaussian(*each, whole)) for each, steps in mechanisms]
    orders, total = parts[0][1], np.zeros_like(parts[0][2])
    for steps, _, divergence in parts:
        total += steps * divergence
    return float(rdp.compute_epsilon(orders, total, delta)[0])


@lru_cache(maxsize=256)
def _sampled_gaussian(
    noise: float, rate: float, whole: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Computes Renyi orders, and the divergence of one step at each.

    This takes milliseconds and is cached, because every version of a run asks for the same step.
    """
    spent = rdp.RdpAccountant(WHOLE if whole else None, _RELATION)
    gaussian = dp_event.GaussianDpEvent(noise)
    spent.compose(dp_event.PoissonSampledDpEvent(rate, gaussian))
    if not whole:
        return spent.orders, spent.rdp
    between = np.array(FRACTIONAL)
    orders = np.concatenate([between, spent.orders])
    return orders, np.concatenate([fractional_rdp(noise, rate, between), spent.rdp])


def fractional_rdp(noise: float, rate: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bounds the Renyi divergence of one step of the sampled Gaussian, at orders in (1, 11).

    The integral of N(z; 0, s^2) (1 - q + q exp((2 z - 1) / (2 s^2)))^a over z, for order a, noise s
    and rate q, by the trapezoidal rule, whose error falls exponentially with the number of points.
    An upper bound of rounding errors, 1e-9 of the divergence and 1e-12 of the integral, is added.
    The bound is infinity below `LEAST_INTEGRATED`. Reference: Mironov, Talwar and Zhang 2019 (arXiv
    1908.10530), equation 1 and theorem 5.
    """
    if noise < LEAST_INTEGRATED:
        return np.full(len(orders), np.inf)
    width = noise / 32
    z = np.arange(-40 * noise, 11 + 40 * noise, width)
    density = -((z / noise) ** 2) / 2 + math.log(width / (noise * math.sqrt(2 * math.pi)))
    unsampled = math.log1p(-rate) if rate < 1 else -math.inf
    ratio = np.logaddexp(unsampled, math.log(rate) + (2 * z - 1) / (2 * noise * noise))
    found = [
        np.logaddexp.reduce(density + order * ratio) / (order - 1) for order in orders.tolist()
    ]
    return np.array(found) * (1 + 1e-9) + 1e-12 / (orders - 1)


def client_epsilon(releases: Iterable[Release], delta: float) -> float:
    """Computes the epsilon at `delta` of all releases of one client together.

    Renyi divergences add up over groups and versions, chosen adaptively or not (Mironov 2017,
    Proposition 1), and are converted by the tight formula of Canonne, Kamath and Steinke 2020,
    Proposition 12. Real noise is clamped to the grid, and has laws P and Q with and without the
    client. The divergences are those of P' and Q', where noise is not clamped.

    - Noise of one party: outside an event of probability b1 (`clamping`) P is at most P', and Q is
      at least Q' where P is positive. So P[A] <= e^eps Q[A] + delta' + b1.
    - Noise of several parties: P and P', and Q and Q', differ by at most b2. So
      P[A] <= e^eps (Q[A] + b2) + delta' + b2.

    In all, delta' = delta - b1 - (1 + e^eps) b2 is left for the conversion.

    Returns:
        an upper bound on epsilon; infinity if there is none, because something was released
        without noise or because epsilon is so large that e^eps b2 exceeds delta.
    Raises:
        PlanRefused: clamping alone uses up delta, whatever epsilon is.
        Malformed: a release's numbers are out of range.
    """
    made: Counter[tuple[float, float, float]] = Counter()
    clamped: Counter[tuple[bool, float]] = Counter()
    for release, times in Counter(releases).items():
        demand_sound(release)
        made[release.l2, release.l1, release.stddev] += times
        clamped[release.sources == 1, release.clamping] += times
    # Add up in a fixed order, so that all parties get the same bits of an epsilon.
    once, twice = (
        math.fsum(times * each for (one, each), times in sorted(clamped.items()) if one is alone)
        for alone in (True, False)
    )
    if not made:
        return 0.0
    if once + 2 * twice >= delta:
        raise PlanRefused(
            f"noise is cut off with probability {once + twice:.3g} in all, which uses up delta "
            f"{delta}: fewer versions, more bits or a larger delta would do"
        )
    if any(stddev == 0 and l2 > 0 for l2, _, stddev in made):
        return math.inf
    return _convert(tuple(sorted(made.items())), delta - once, twice)


def skellam_rdp(
    l2: float, l1: float, stddev: float, orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Bounds the Renyi divergence between Skellam noise and the same noise, moved by a vector.

        a l2^2 / (2 s^2) + min(((2 a - 1) l2^2 + 6 l1) / (4 s^4), 3 l1 / (2 s^2))

    for order a and variance s^2; the first term is the Gaussian's. The noise of every value is
    drawn independently. The vector has integers, and the norms l2 and l1. The theorem covers whole
    orders above 1 alone: Agarwal, Kairouz and Liu 2021 (arXiv 2110.04995), Corollary 3.6.
    """
    variance = stddev * stddev
    gaussian = orders * l2 * l2 / (2 * variance)
    near = ((2 * orders - 1) * l2 * l2 + 6 * l1) / (4 * variance * variance)
    bound: NDArray[np.float64] = gaussian + np.minimum(near, 3 * l1 / (2 * variance))
    return bound


@lru_cache(maxsize=1024)
def _convert(
    made: tuple[tuple[tuple[float, float, float], int], ...], delta: float, clamping: float
) -> float:
    orders = np.array(SKELLAM_ORDERS, dtype=np.float64)
    total = np.zeros_like(orders)
    for (l2, l1, stddev), times in made:
        if l2 > 0:
            total += times * skellam_rdp(l2, l1, stddev, orders)
    spent = 0.0
    # Find the least eps with epsilon(delta - (1 + e^eps) b) <= eps. The left side grows with
    # eps, so start below it and climb; the result is too large by 2^-24 of itself at most.
    while (left := delta - (1 + math.exp(min(spent, 700.0))) * clamping) > 0:
        needed = float(rdp.compute_epsilon(orders, total, left)[0])
        if needed <= spent or clamping == 0:
            return max(needed, spent)
        spent = needed * (1 + 2.0**-24)
    return math.inf
