"""Client-level differential privacy of one group's update, calibrated from public numbers alone.

    clipped update -> grid steps -> rounded until short enough -> noise (integers) -> clamp -> u

Theory of operation. The plan makes a `ClientMechanism` from clip, bits and multiplier, and every
party computes the same one. What happens to one update: `clip_l2` (`privacy.mechanism`) or
`AdaptiveClip.clip_with_indicator` bounds it, `round_update` makes integers of it, and `add_noise`
draws from `privacy.skellam` and clamps. `release` is what it costs: a `Release` in the ledger
(`privacy.ledger`), of which `privacy.accountant` makes epsilon. `_finest` chooses the grid.

Adjacency replaces one client's update by zero. All members of a cohort count as 1, and the mean is
over their public number, so that only the sum depends on an update. The placements of noise:

    local        every client adds noise of variance sigma^2
    distributed  every client adds noise of variance sigma^2 / (honest - 1). At least `honest`
                 members of a cohort follow the protocol; each of them knows its own noise, so
                 that of the honest - 1 others must suffice
    aggregator   the shards add noise of variance sigma^2 to the encrypted sum (`draw_noise`), like
                 one more member; it protects against everybody except the shards' operator

sigma is the noise multiplier times the L2 sensitivity of the *rounded* update.

**Rounding** to integers is unbiased. It adds up to 1/4 to the mean of every squared value, and in
the worst case lengthens the norm by sqrt(d). So an update is rounded again until

    ||z||^2 <= C^2 + d / 4 + C + sqrt(d) / 2

The right side is then the squared sensitivity. Each try succeeds with probability at least
1 - e^(-1/2) (Kairouz, Liu and Steinke 2021, Proposition 22 with beta = e^(-1/2)), at the cost of a
little bias. The bound is rounded down to an integer, and the norm is computed in integers, so the
result never exceeds it, whatever the input was. The number of tries depends on the update, so an
observer of this machine's timing may learn about it.

Nothing has to survive a kill: a client's random words derive from its seed, so an update that is
made again has the same noise. Under fresh noise an observer could average the two.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secureps.errors import InternalError, Malformed, NotFinite, PlanRefused
from secureps.messages.charge import Release
from secureps.privacy.mechanism import Words, clip_l2
from secureps.privacy.skellam import LEAST_VARIANCE, MOST_VARIANCE, Skellam, tail

MOST_TRIES = 200
"""All tries fail with probability below 2^-144, so then the random words are broken."""

_PIECE = 1 << 14
"""Values that are processed at a time: their squares, up to 2^48 each, add up within int64."""


def norm_limit(bound: Fraction, dimension: int) -> int:
    """Computes the largest accepted ||z||^2: C^2 + d/4 + C + sqrt(d)/2, rounded down.

    The bound C is in grid steps, 0 to 2^24.
    """
    # The square root is the only irrational part: round it down to a multiple of 2^-64.
    half_root = Fraction(math.isqrt(dimension << 126), 1 << 64)
    return math.floor(bound * bound + Fraction(dimension, 4) + bound + half_root)


def round_to_norm(
    x: NDArray[np.float64], bound: Fraction, limit: int, words: Words
) -> NDArray[np.int64]:
    """Rounds to z = floor(x) + [word < frac(x) 2^32], again until ||z||^2 <= limit; int64 (d,).

    Every try reads x.size words. |z - x| < 1 for every value; whole numbers do not change.

    Args:
        x: float64 (d,), in grid steps, of L2 norm at most `bound`.
    Raises:
        NotFinite: x has a NaN or an infinity.
        Malformed: x is clearly longer than the bound.
        InternalError: the words are not random.
    """
    if not np.isfinite(x).all():
        raise NotFinite("an update has a value that is not finite")
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(x))
    if norm > float(bound) * (1 + 2.0**-30):
        raise Malformed(f"an update was not clipped to {float(bound):.6g} grid steps")
    z = np.empty(x.size, dtype=np.int64)
    for _ in range(MOST_TRIES):
        squares = 0
        for start in range(0, x.size, _PIECE):
            piece = x[start : start + _PIECE]
            floor = np.floor(piece)
            rounded = z[start : start + _PIECE]
            rounded[:] = floor
            rounded += words(piece.size) < (piece - floor) * 2.0**32
            squares += int(np.dot(rounded, rounded))
        if squares <= limit:
            return z
    raise InternalError(f"{MOST_TRIES} roundings were too long: the words are not random")


Placement: TypeAlias = Literal["local", "distributed", "aggregator"]

MOST_BITS = 24
"""The most bits of one value on the grid, as in `codec.grid`."""

MOST_INFLATION = 2
"""The most by which rounding may multiply an update's norm, because noise grows with it."""
MOST_CLAMPING = Fraction(1, 1 << 64)
"""The largest probability that one release is clamped: a million releases lose 2^-44 of delta."""
MOST_SHARED_CLAMPING = Fraction(1, 1 << 128)
"""The same under `distributed`, where clamping counts e^epsilon times (`client_epsilon`)."""

_MANTISSA = 10
"""Steps have 11 significant bits, so that step * Z and step * Z / Z are exact in float64. The
finest step is missed by less than 1 in 1000."""
_SMALLEST, _LARGEST = 2.0**-100, 2.0**100
"""Clips between these keep every product far from float64's limits."""


@dataclass(frozen=True)
class Calibration:
    """The numbers that follow from one step of the grid; all others are in units of the step.

    Args:
        step: the grid's step, in the units of the update.
        bound: C / step, exactly.
        limit: the largest squared norm of a rounded update.
        variance: of one draw of noise.
        clamping: an upper bound of the probability that any draw of a release is clamped; 0 under
            `local`, where clamping is post-processing.
    """

    step: float
    bound: Fraction
    limit: int
    variance: float
    clamping: Fraction


@dataclass(frozen=True)
class ClientMechanism:
    """The mechanism for one group; every party computes the same one.

    Args:
        clip: C, the L2 norm to which updates are clipped, 2^-100 to 2^100.
        dimension: d, the number of values.
        bits: of one value on the grid, 2 to 24; Z = 2^(bits-1) - 1.
        noise_multiplier: zeta > 0; sigma = zeta * the L2 sensitivity.
        honest: under `distributed`, how many members of any summed cohort are trusted to follow the
            protocol, at least 2; 1 elsewhere.
    Raises:
        PlanRefused: the clip is out of range, too few members are trusted, or the grid of so few
            bits is so coarse that rounding more than doubles the norm.
    """

    clip: float
    dimension: int
    bits: int
    noise_multiplier: float
    placement: Placement
    honest: int = 1

    def __post_init__(self) -> None:
        if not _SMALLEST <= self.clip <= _LARGEST:
            raise PlanRefused(f"a clip of {self.clip}: 2^-100 to 2^100 can be put on a grid")
        if self.placement == "distributed" and self.honest < 2:
            raise PlanRefused(
                f"distributed noise with {self.honest} assumed honest clients: it takes 2, for "
                f"one knows its own share"
            )
        _ = self.calibration

    # --- the numbers --------------------------------------------------------------

    @property
    def shares(self) -> int:
        """Number of parties that add the noise that makes up sigma^2."""
        return max(1, self.honest - 1)

    @cached_property
    def calibration(self) -> Calibration:
        """The finest grid of `bits` bits that fits update and noise; PlanRefused if none does."""
        best = self._finest(self.bits)
        flaw = self._flaw(best)
        if best is None or flaw:
            raise PlanRefused(
                f"{self.bits} bits for {self.dimension} values with {self.placement} noise of "
                f"multiplier {self.noise_multiplier}: {flaw}; {self._advice()}"
            )
        return best

    @property
    def most(self) -> int:
        return (1 << (self.bits - 1)) - 1

    @property
    def range(self) -> float:
        """step * Z, exactly: the range of the `codec.grid.Grid` that decodes the sums.

        A cohort's mean is its decoded sum, divided by the number of members. The total weight is
        that number, plus one for the aggregator's noise.
        """
        return self.calibration.step * self.most

    @property
    def l2_sensitivity(self) -> float:
        return root_above(Fraction(self.calibration.limit))

    @property
    def l1_sensitivity(self) -> float:
        """min(sqrt(d) L2, L2^2), because values are integers; in grid steps, rounded up."""
        squared = self.calibration.limit
        return root_above(Fraction(min(self.dimension * squared, squared * squared)))

    @property
    def stddev(self) -> float:
        """sigma in grid steps, rounded down."""
        return _root_below(self.shares * Fraction(self.calibration.variance))

    def release(self, party: str, group: str, version: int) -> Release:
        norms = (self.l2_sensitivity, self.l1_sensitivity, self.stddev)
        clamping = _above(self.calibration.clamping)
        return Release(party, group, version, *norms, self.honest, clamping)

    # --- the mechanism ------------------------------------------------------------

    def round_update(self, update: NDArray[np.float32], words: Words) -> NDArray[np.int64]:
        """Rounds an update to whole grid steps, before any noise; raises as `round_to_norm`.

        Args:
            update: float32 (d,), after `clip_l2` to C.
            words: a stream that is used for nothing else.
        Returns:
            z, int64 (d,), of a norm of at most `l2_sensitivity`.
        """
        # The ledger charges for noise and rounding of exactly this many values.
        if update.shape != (self.dimension,):
            raise InternalError(f"an update of {update.size} values, noise for {self.dimension}")
        made = self.calibration
        # The factor 1 - 2^-50 outweighs three roundings of float64, 1 + 2^-53 each: no value is
        # larger than in exact arithmetic, and so the norm is not either.
        steps = update.astype(np.float64) * (1.0 / made.step * (1.0 - 2.0**-50))
        return round_to_norm(steps, made.bound, made.limit, words)

    def add_noise(self, z: NDArray[np.int64], words: Words) -> NDArray[np.int64]:
        """Makes the integers that a client seals, int64 (d,) in [0, 2 Z], of rounded ones.

        It adds the client's noise, unless shards add it, and clamps. It overwrites `z`. `words`
        must be a stream that is used for nothing else, and for no other z.
        """
        if self.placement != "aggregator":
            z += self.sampler.sample(z.size, words)
        return self._on_grid(z)

    def draw_noise(self, count: int, words: Words) -> NDArray[np.int64]:
        """Makes the aggregator's noise for `count` values: u = noise + Z in [0, 2 Z]."""
        return self._on_grid(self.sampler.sample(count, words))

    @cached_property
    def sampler(self) -> Skellam:
        return Skellam(self.calibration.variance)

    def _on_grid(self, z: NDArray[np.int64]) -> NDArray[np.int64]:
        np.clip(z, -self.most, self.most, out=z)
        z += self.most
        return z

    # --- the step -----------------------------------------------------------------

    def _finest(self, bits: int) -> Calibration | None:
        """Finds the finest step whose grid fits update and noise; None if there is none.

        Both need more steps on a finer grid, so bisection finds it between C / Z, where the update
        alone fills the grid, and 2 C, where rounding doubles any norm.
        """
        most = (1 << (bits - 1)) - 1
        places = range(_place(self.clip / most), _place(2 * self.clip) + 1)

        def holds(place: int) -> bool:
            return self._calibrate(_step(place), most) is not None

        found = bisect_left(places, True, key=holds)
        return self._calibrate(_step(places[found]), most) if found < len(places) else None

    def _calibrate(self, step: float, most: int) -> Calibration | None:
        """Computes the calibration of a step; None if the step is too fine."""
        bound = Fraction(self.clip) / Fraction(step)
        limit = norm_limit(bound, self.dimension)
        largest = min(math.ceil(bound), math.isqrt(limit))
        least = Fraction(self.noise_multiplier) ** 2 * limit / self.shares
        if largest > most or least > MOST_VARIANCE:
            return None
        variance = _above(least)
        # Noise of at most `room` is never clamped. The update's own length is left for the
        # aggregator's noise too: where the update is zero, it has to be larger for the same sum.
        room = most - largest
        clamping = self.dimension * self.shares * tail(max(variance, LEAST_VARIANCE), room)
        shared = self.placement == "distributed"
        if clamping > (MOST_SHARED_CLAMPING if shared else MOST_CLAMPING):
            return None
        free = self.placement == "local"
        return Calibration(step, bound, limit, variance, Fraction(0) if free else clamping)

    def _flaw(self, made: Calibration | None) -> str:
        """Says why a calibration cannot be used; empty if it can."""
        if made is None:
            norm = math.sqrt(self.dimension) / 2
            noise = self.noise_multiplier * norm / math.sqrt(self.shares)
            return (
                f"rounding alone makes an update up to {norm:.3g} grid steps long and calls for "
                f"noise of standard deviation {noise:.3g}, which with its tail does not fit"
            )
        if made.variance < LEAST_VARIANCE:
            return f"noise of variance {made.variance:.3g} is less than can be drawn, 2^-20"
        if made.limit > MOST_INFLATION**2 * made.bound**2:
            longer = math.sqrt(made.limit / (made.bound * made.bound))
            return (
                f"a clip of {float(made.bound):.3g} grid steps is the finest that leaves room for "
                f"noise of standard deviation {math.sqrt(made.variance):.3g}, and rounding would "
                f"make the norm {longer:.2f} times as long, not {MOST_INFLATION} at most"
            )
        return ""

    def _advice(self) -> str:
        for bits in range(self.bits + 1, MOST_BITS + 1):
            if not self._flaw(self._finest(bits)):
                return f"{bits} bits would do"
        return (
            f"no number of bits up to {MOST_BITS} would: take another multiplier or smaller groups"
        )


def _step(place: int) -> float:
    """The step of a place in the order of all steps; each power of two begins 1024 of them."""
    return math.ldexp((1 << _MANTISSA) + place % (1 << _MANTISSA), place >> _MANTISSA)


def _place(step: float) -> int:
    """The place of the smallest step that is not below `step`."""
    mantissa, exponent = math.frexp(step)
    above = math.ceil(math.ldexp(mantissa, _MANTISSA + 1))
    return ((exponent - _MANTISSA - 1) << _MANTISSA) + above - (1 << _MANTISSA)


def _above(x: Fraction) -> float:
    nearest = float(x)
    return nearest if Fraction(nearest) >= x else math.nextafter(nearest, math.inf)


def root_above(x: Fraction) -> float:
    root = math.sqrt(float(x))
    while Fraction(root) ** 2 < x:
        root = math.nextafter(root, math.inf)
    return root


def _root_below(x: Fraction) -> float:
    root = math.sqrt(float(x))
    while Fraction(root) ** 2 > x:
        root = math.nextafter(root, 0.0)
    return root


# --- adaptive ----------------------------------------------------------------------

FIRST = 1.0
"""The scale of version 0."""

RATE = 0.2
"""How fast the clip follows; the paper takes it for all its models. While all updates are cut and
half should be, the clip doubles in seven versions."""

WEIGHT = 0.5
"""The distance between the indicator's values, in clips. It makes the noise on updates 3 % larger,
and the count of short updates has twice the plan's noise multiplier."""

LEAST_SCALE, MOST_SCALE = 2.0**-10, 2.0**10
"""Bounds of the scale: a thousandth of the first clip to a thousand times it, which outlasts a bad
first guess and keeps all that is computed within float32, which has both exactly."""


@dataclass(frozen=True)
class AdaptiveClip:
    """The moving clip of one group, which follows a quantile of the updates' norms.

    In a version of scale s a client clips to C = C_0 s, divides its update by s, and adds an
    indicator at the end: +h if the update was within the clip, -h if it was cut.

        (update / s clipped to C_0, +-h)     of norm at most sqrt(C_0^2 + h^2), h = WEIGHT C_0 / 2

    One mechanism, whose clip is that norm, protects both, in one release of the ledger. Centring
    the indicator halves what it can change. This is the paper's split of the noise between two
    queries (Theorem 1: z_update = (z^-2 - (2 sigma_b)^-2)^(-1/2)), with sigma_b =
    z sqrt(1 + WEIGHT^2/4) / WEIGHT: the update gets sqrt(1 + WEIGHT^2/4) times the noise of a fixed
    clip. The mean of the indicators is public and as noisy as the rest of the mean. It makes

        s' = s exp(-RATE (share of updates within the clip - quantile))

    Every shard that has the indicator computes the scale, rounds it to float32, keeps it within its
    bounds, and reports it.
    Reference: Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially Private Learning with
    Adaptive Clipping", section 2 and Algorithm 1.

    Args:
        clip: C_0, the clip of version 0.
        quantile: gamma in (0, 1), the share of updates that should be within the clip.
    Raises:
        PlanRefused: the clip may leave the range of 2^-100 to 2^100.
    """

    clip: float
    quantile: float

    def __post_init__(self) -> None:
        if not (self.clip * LEAST_SCALE >= _SMALLEST and self.clip * MOST_SCALE <= _LARGEST):
            raise PlanRefused(
                f"a clip of {self.clip * LEAST_SCALE:g} to {self.clip * MOST_SCALE:g}: it must "
                "stay within 2^-100 to 2^100"
            )

    @cached_property
    def indicator(self) -> float:
        """h, a float32: WEIGHT C_0 / 2, rounded towards zero."""
        exact = Fraction(WEIGHT) * Fraction(self.clip) / 2
        nearest = np.float32(float(exact))
        if Fraction(float(nearest)) > exact:
            nearest = np.nextafter(nearest, np.float32(0))
        return float(nearest)

    @cached_property
    def norm(self) -> float:
        """sqrt(C_0^2 + h^2), rounded up: the clip that `ClientMechanism` is built with."""
        return root_above(Fraction(self.clip) ** 2 + Fraction(self.indicator) ** 2)

    @property
    def cost(self) -> float:
        """The noise on an update divided by that of a fixed clip C_0, apart from rounding."""
        return self.norm / self.clip

    def clip_with_indicator(self, update: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
        """Divides an update by the scale, clips it, and adds its indicator.

        Args:
            update: float32 (d + 1,); its last value, in the indicator's place, is 0.
            scale: the base version's.
        Returns:
            float32 (d + 1,) of an L2 norm of at most `norm`, for every scale.
        Raises:
            NotFinite: a value is not finite, or too large for float32 in units of the scale.
            Malformed: the scale is out of bounds.
        """
        self.check(scale)
        joint, norm = clip_l2(update.astype(np.float64) / scale, self.clip)
        joint[-1] = self.indicator if norm <= self.clip else -self.indicator
        return joint

    def estimate_share(self, mean: float) -> float:
        """Estimates the share of updates within the clip; noise can make it any number.

        `mean` is the mean of the cohort's indicators.
        """
        return mean / (2 * self.indicator) + 0.5

    def next_scale(self, scale: float, mean: float) -> float:
        """Computes the next scale, a float32, from the mean of the cohort's indicators."""
        moved = math.log(scale) - RATE * (self.estimate_share(mean) - self.quantile)
        kept = min(max(moved, math.log(LEAST_SCALE)), math.log(MOST_SCALE))
        rounded = float(np.float32(math.exp(kept)))  # rounding may have passed the bounds
        return min(max(rounded, LEAST_SCALE), MOST_SCALE)

    def check(self, scale: float | None) -> float:
        """Returns a scale that another party computed; Malformed if it is out of bounds."""
        if scale is None or not LEAST_SCALE <= scale <= MOST_SCALE:  # NaN is within no bounds
            raise Malformed(
                f"a clip's scale of {scale}: the plan keeps it between {LEAST_SCALE:g} and "
                f"{MOST_SCALE:g}"
            )
        return scale
