"""Sharing of a one-time key among key holders: any t of n open weighted sums of keys.

    client       share          draws seeds, commits to them, and publishes the correction
    holder       HolderShare    `check` compares its seeds with the commitments; `share` derives its
                                share; `answer` makes the answer for one cohort
    coordinator  key_sum        S = sum_i w_i s_i from t answers; `judge`, given more, names liars

Everything is modulo P = 2^31 - 1. Holder k has the point x_k = k + 1. Both parts are from Cramer,
Damgard and Ishai, "Share conversion, pseudorandom secret-sharing and applications to secure
computation" (TCC 2005).

**The key** (pseudorandom secret sharing). For every set A of t - 1 holders the client draws a seed
that all holders outside A get. r_A = PRG(seed_A) is a vector of the key's length N:

    correction = s - sum_A r_A                                            (public)
    p(x_k)     = sum_{A without k} r_A f_A(x_k),  f_A(x) = prod_{j in A} (x_j - x) / x_j

f_A has degree t - 1, f_A(0) = 1, and f_A(x_j) = 0 for j in A. So the p(x_k) are Shamir's shares
("How to share a secret", CACM 1979) of sum_A r_A, and weighted sums of shares are shares of the
sum. Any t - 1 holders lack the seed of one A, their own set, and the key may be anything to them.

**The answer** (pseudorandom zero sharing). Shares are linear: plain answers for different cohorts
could be combined to a share of one client's key. So each cohort's answer is a *fresh* sharing of
its sum. For every set B of t - 2 holders the client draws a seed as above. For a cohort with the
digest D, and seeds_B of all its members:

    a_k(D) = sum_i w_i p_i(x_k) + z_D(x_k)
    z_D(x) = sum_B PRG(H(D, B, seeds_B)) g_B(x),                 g_B(x) = x f_B(x)

z_D has degree t - 1 and z_D(0) = 0, so any t answers for one D still interpolate to its sum of
keys. To f corrupt holders z_D is a random polynomial with these two properties and their own known
values, drawn anew for every D with an honest member: fewer than t - f honest answers tell nothing,
more tell the sum alone. docs/threat-model.md has the argument. With t = n every holder has to
answer, so no two cohorts have answers to mix, and no such seeds are dealt.

**Guards.** `HolderShare.check` stops a client whose shares do not fit together: its whole cohort
could not be opened. `Committee` refuses 2t <= n: two groups of holders could open overlapping
cohorts behind each other's back. Secrets only go through + - * & >> and min, and through the
comparison by which the PRG leaves out words equal to P, which are independent of the words that
stay. The callers are `client.sealing`, `service.holder` and `roles.coordinator.opening`.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from secureps.crypto.cipher import check_length
from secureps.crypto.sampling import SEED_BYTES, Stream
from secureps.crypto.secret import Secret
from secureps.errors import InternalError, Malformed, PlanRefused
from secureps.messages.encoding import digest

P: Final = (1 << 31) - 1
"""The prime field of shares, corrections and answers.

P is a Mersenne prime, so x = (x & P) + (x >> 31) modulo P: vectors, which may be secret, are never
divided (`tests/crypto/test_secret_arithmetic.py` checks this). Factors and points are public."""

Vector = npt.NDArray[np.uint32]
"""Integers modulo P, each below it, (N,)."""

_P = np.uint64(P)
_BITS = np.uint64(31)
_WORD = np.dtype("<u4")


@functools.lru_cache(1 << 12)
def basis(node: int, others: tuple[int, ...], at: int) -> int:
    """Evaluates Lagrange's basis polynomial: 1 at `node`, 0 at `others`, modulo P; all public."""
    above = math.prod(at - other for other in others)
    below = math.prod(node - other for other in others)
    return above * pow(below, -1, P) % P


@functools.lru_cache(1 << 12)
def lagrange(points: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Returns the factors by which values at `points` give their polynomial's value at `at`."""
    return tuple(basis(x, tuple(o for o in points if o != x), at) for x in points)


def _fold(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the same values modulo P, below 2^34; below 2^32 if they were below 2^62."""
    low: npt.NDArray[np.uint64] = values & _P
    return low + (values >> _BITS)


def reduce(values: npt.NDArray[np.uint64]) -> Vector:
    """Returns the same values modulo P, below P, for any uint64."""
    small = _fold(_fold(values))
    below: npt.NDArray[np.uint64] = np.minimum(small, small - _P)
    return below.astype(np.uint32)


def combination(factors: Iterable[int], vectors: Iterable[Vector]) -> Vector:
    """Returns sum_i factor_i vector_i modulo P, for 1 to 2^32 factors in [0, P)."""
    total = np.zeros(1, np.uint64)
    for factor, vector in zip(factors, vectors, strict=True):
        total = total + _fold(vector * np.uint64(factor))
    return reduce(total)


def vector_bytes(vector: Vector) -> bytes:
    return vector.astype(_WORD, copy=False).tobytes()


def parse_vector(data: bytes | memoryview, length: int) -> Vector:
    """Parses the bytes of `vector_bytes`; Oversized or Malformed if they are none."""
    check_length(f"a vector of {length} values", data, 4 * length)
    values = np.frombuffer(data, _WORD).astype(np.uint32)
    if bool((values >= P).any()):  # each value has one form, because digests cover the bytes
        raise Malformed("a vector has a value that is not below 2^31 - 1")
    return values


KEY_BOUND: Final = 41
"""Greatest |coefficient| of a one-time key."""
MOST_WEIGHT: Final = P // 2 // KEY_BOUND
"""Greatest total weight of a cohort whose sum of keys cannot wrap: 26 million."""
MOST_HOLDERS: Final = 64
MOST_SEEDS: Final = 2048
"""Most seeds of one key, C(n + 1, t - 1) where t < n: 64 KB of envelopes to a holder."""

Subset = tuple[int, ...]
"""Indices of holders, ascending."""


@dataclass(frozen=True)
class Committee:
    """The key holders of a run, in order, and how many must agree.

    Args:
        holders: names, sorted and unique.
        threshold: t; any t open a sum, and any t - 1 learn nothing.

    Raises:
        PlanRefused: names are not sorted or unique; t is below 1 or above n; 2t <= n, so that two
            disjoint quorums could open overlapping cohorts; more than 64 holders, or more than
            MOST_SEEDS seeds for a key.
    """

    holders: tuple[str, ...]
    threshold: int

    def __post_init__(self) -> None:
        n, t = len(self.holders), self.threshold
        if self.holders != tuple(sorted(set(self.holders))):
            raise PlanRefused("a committee lists its holders sorted, and each of them once")
        if n > MOST_HOLDERS:
            raise PlanRefused(f"a committee of {n} holders; at most {MOST_HOLDERS}")
        if not 1 <= t <= n:
            raise PlanRefused(f"a threshold of {t} among {n} holders: take one from 1 to {n}")
        if 2 * t <= n:
            raise PlanRefused(
                f"a threshold of {t} among {n} holders lets two groups that share nobody open "
                f"sums behind each other's back: take at least {n // 2 + 1}"
            )
        seeds = math.comb(n, t - 1) + (math.comb(n, t - 2) if 1 < t < n else 0)
        if seeds > MOST_SEEDS:
            raise PlanRefused(
                f"{t} of {n} holders need {seeds} seeds a key, and at most "
                f"{MOST_SEEDS} are allowed: take fewer holders, as not every data holder's site "
                "needs one, or another threshold"
            )

    @cached_property
    def key_subsets(self) -> tuple[Subset, ...]:
        """Every set A of t - 1 holders, in lexicographic order, each with a seed of the key."""
        return tuple(itertools.combinations(range(len(self.holders)), self.threshold - 1))

    @cached_property
    def zero_subsets(self) -> tuple[Subset, ...]:
        """Every set B of t - 2 holders, in lexicographic order; none where all must answer."""
        n, t = len(self.holders), self.threshold
        return tuple(itertools.combinations(range(n), t - 2)) if 1 < t < n else ()

    @cached_property
    def subsets(self) -> tuple[Subset, ...]:
        """All sets with a seed: those of the key, then those of shares of zero."""
        return self.key_subsets + self.zero_subsets

    def held_by(self, holder: int) -> tuple[int, ...]:
        """Returns the positions in `subsets` of the sets without this holder: its seeds."""
        self.check_holder(holder)
        return tuple(i for i, subset in enumerate(self.subsets) if holder not in subset)

    @cached_property
    def seed_bytes(self) -> int:
        """Length of the seeds that one holder gets from one client, before they are sealed."""
        return SEED_BYTES * len(self.held_by(0))

    def check_holder(self, holder: int) -> None:
        if not 0 <= holder < len(self.holders):
            raise InternalError(f"no holder {holder} among {len(self.holders)}")

    def names(self, holders: Iterable[int]) -> str:
        """Returns the names for a message, or "nobody"."""
        return ", ".join(self.holders[k] for k in sorted(holders)) or "nobody"


# --- client -----------------------------------------------------------------------


def _pseudorandom(id: bytes, subset: Subset, seed: bytes, length: int) -> Vector:
    """Computes PRG(id, A, seed): the key stream's words without their top bit, leaving out P."""
    stream = Stream(digest("secureps-key-share", id, bytes(subset), seed))
    values = np.empty(0, np.uint32)
    while values.size < length:
        words = stream.words(length - values.size) & np.uint32(P)
        values = np.concatenate([values, words[words != P]])
    return values


def _commitment(id: bytes, subset: Subset, seed: bytes) -> bytes:
    """Commits to a uniform seed: 32 bytes that bind to it and hide it."""
    return digest("secureps-key-seed", id, bytes(subset), seed)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SharedKey(Secret):
    """A shared key: secret seeds for the holders, and the public part for the receipt.

    Args:
        commitments: 32 bytes for each of the committee's subsets, in their order.
        correction: uint32 (N,), s - sum_A PRG(seed_A) modulo P over the key's subsets.
    """

    _committee: Committee
    _seeds: tuple[bytes, ...]
    commitments: tuple[bytes, ...]
    correction: Vector

    def seeds_of(self, holder: int) -> bytes:
        """Returns `committee.seed_bytes` secret bytes for this holder's envelope alone."""
        return b"".join(self._seeds[i] for i in self._committee.held_by(holder))


def share(id: bytes, key: npt.NDArray[np.int32], committee: Committee) -> SharedKey:
    """Shares a key under fresh seeds of the operating system.

    Args:
        id: unique name of the submission over all runs; it includes the run's id.
        key: s, int32 (N,), |s| <= KEY_BOUND.

    Raises:
        InternalError: not such a key.
    """
    if key.dtype != np.int32 or key.ndim != 1 or not key.size:
        raise InternalError("a key to share is an int32 vector")
    if max(-int(key.min()), int(key.max())) > KEY_BOUND:
        raise InternalError(f"a key to share has a coefficient above {KEY_BOUND} in size")
    seeds = tuple(os.urandom(SEED_BYTES) for _ in committee.subsets)
    correction = (key.astype(np.int64) + P).astype(np.uint64)
    for subset, seed in zip(committee.key_subsets, seeds):
        correction += np.uint64(P) - _pseudorandom(id, subset, seed, key.size)
    commitments = tuple(_commitment(id, a, seed) for a, seed in zip(committee.subsets, seeds))
    return SharedKey(committee, seeds, commitments, reduce(correction))


# --- holder -----------------------------------------------------------------------


class HolderShare(Secret):
    """One holder's share of one key.

    Args:
        holder: its index in the committee.
        id: as the client gave it to `share`.
        seeds: content of the envelope, `committee.seed_bytes` bytes; otherwise Malformed or
            Oversized.
    """

    __slots__ = ("_committee", "_holder", "_id", "_seeds")

    def __init__(self, committee: Committee, holder: int, id: bytes, seeds: bytes) -> None:
        held = [committee.subsets[i] for i in committee.held_by(holder)]
        check_length("what was in an envelope", seeds, committee.seed_bytes)
        self._committee = committee
        self._holder = holder
        self._id = id
        self._seeds = {
            subset: seeds[j * SEED_BYTES : (j + 1) * SEED_BYTES] for j, subset in enumerate(held)
        }

    def check(self, commitments: Sequence[bytes]) -> None:
        """Raises Malformed, naming the subset, unless the client committed to every seed."""
        subsets = self._committee.subsets
        if len(commitments) != len(subsets):
            raise Malformed(f"{len(commitments)} commitments to {len(subsets)} seeds")
        for subset, commitment in zip(subsets, commitments):
            seed = self._seeds.get(subset)
            # a client could otherwise give holders shares that do not fit together
            if seed is not None and _commitment(self._id, subset, seed) != commitment:
                raise Malformed(
                    f"the seed kept from {self._committee.names(subset)} is not, at "
                    f"{self._committee.names([self._holder])}, the one that was committed to"
                )

    def share(self, length: int) -> Vector:
        """Derives this holder's secret Shamir share, (length,), of the key less its correction."""
        at = self._holder + 1
        held = [subset for subset in self._committee.key_subsets if subset in self._seeds]
        factors = (basis(0, _points(subset), at) for subset in held)
        pieces = (_pseudorandom(self._id, each, self._seeds[each], length) for each in held)
        return combination(factors, pieces)


def answer(
    shares: Sequence[HolderShare], weights: Sequence[int], about: bytes, length: int
) -> Vector:
    """Derives a holder's answer for one cohort, a_k(D) in the module's docstring: (length,).

    It is the same each time for the same cohort, and does not combine with answers for another.

    Args:
        shares: of the cohort's members, all of one holder and one committee.
        weights: of the members, in the same order.
        about: D, a digest that fixes the run, the committee, the members with weights and bases,
            and their receipts.

    Raises:
        InternalError: see `weighted_sum`.
    """
    own, at = shares[0], shares[0]._holder + 1
    factors, pieces = [1], [weighted_sum((share.share(length) for share in shares), weights)]
    for subset in own._committee.zero_subsets:
        if subset in own._seeds:
            seeds = (share._seeds[subset] for share in shares)
            key = digest("secureps-zero-share", about, bytes(subset), *seeds)
            factors.append(at * basis(0, _points(subset), at) % P)
            pieces.append(_pseudorandom(about, subset, key, length))
    return combination(factors, pieces)


def _points(subset: Subset) -> tuple[int, ...]:
    return tuple(holder + 1 for holder in subset)


def weighted_sum(vectors: Iterable[Vector], weights: Sequence[int]) -> Vector:
    """Returns sum_i weight_i vector_i modulo P: of shares of a cohort's keys, or of corrections.

    Raises:
        InternalError: no member, a weight below 1, a total weight above MOST_WEIGHT, or a wrong
            number of vectors.
    """
    if not weights or min(weights) < 1 or sum(weights) > MOST_WEIGHT:
        raise InternalError(f"weights are at least 1, and at most {MOST_WEIGHT} in total")
    try:
        return combination(weights, vectors)
    except ValueError:
        raise InternalError(f"the vectors of {len(weights)} members do not match") from None


# --- coordinator ------------------------------------------------------------------


def _check_answers(committee: Committee, answers: Mapping[int, Vector]) -> None:
    for holder, answer in answers.items():
        committee.check_holder(holder)
        if answer.dtype != np.uint32 or answer.shape != next(iter(answers.values())).shape:
            raise InternalError("answers are uint32 vectors of one length")


def interpolate(committee: Committee, answers: Mapping[int, Vector]) -> Vector:
    """Interpolates at 0, (N,), from the answers of exactly t holders by index (InternalError)."""
    _check_answers(committee, answers)
    if len(answers) != committee.threshold:
        raise InternalError(f"{len(answers)} answers, not {committee.threshold}")
    points = tuple(holder + 1 for holder in answers)
    return combination(lagrange(points, 0), answers.values())


def key_sum(
    committee: Committee,
    answers: Mapping[int, Vector],
    corrections: Iterable[Vector],
    weights: Sequence[int],
) -> npt.NDArray[np.int64]:
    """Computes S = sum_i w_i s_i, int64 (N,); |S| <= KEY_BOUND sum w if all parties were honest.

    Args:
        answers: of t holders for one cohort, by holder.
        corrections, weights: of the cohort's members, in the same order.
    """
    parts = [interpolate(committee, answers), weighted_sum(corrections, weights)]
    total = combination((1, 1), parts).astype(np.int64)
    return np.where(total > P // 2, total - P, total)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which holders' answers for a cohort were right.

    Args:
        consistent: holders with answers on one polynomial of degree t - 1; empty if undecidable.
        liars: holders whose answers are off it.
        reason: both, in words.
    """

    consistent: frozenset[int]
    liars: frozenset[int]
    reason: str


def judge(
    committee: Committee, answers: Mapping[int, Vector], verified: Vector | None = None
) -> Verdict:
    """Finds the answers that fit together, and the liars.

    Liars are named only if a single largest set of at least t + 1 values lies on a polynomial of
    degree t - 1. Two such polynomials share at most t - 1 points. So no honest holder is named
    while at least t + 1 answers are honest, however the others conspire (with fewer, two that
    conspire can frame one), and a single liar is always found.

    Args:
        answers: of at least t holders, by index.
        verified: `interpolate` of t answers whose opening was proved right by its residual: one
            more certain value, at 0, with which t honest answers are enough.

    Raises:
        InternalError: fewer than t answers, or no such holder.
    """
    _check_answers(committee, answers)
    t = committee.threshold
    if len(answers) < t:
        raise InternalError(f"{len(answers)} answers, and {t} are needed")
    values = {holder + 1: answer for holder, answer in sorted(answers.items())}
    certain: tuple[int, ...] = ()
    if verified is not None:
        values[0], certain = verified, (0,)
    everybody = frozenset(answers)
    if len(values) == t:
        return Verdict(everybody, frozenset(), f"{t} answers of {t} leave nothing to compare")
    agreeing = _find_agreeing(values, certain, t)
    if len(agreeing) != 1:
        many = "no" if not agreeing else "more than one set of"
        reason = f"{many} {t + 1} values fit together: somebody lies, and nothing shows who"
        return Verdict(frozenset(), frozenset(), reason)
    consistent = frozenset(x - 1 for x in agreeing[0] if x)
    liars = everybody - consistent
    reason = f"{len(consistent)} answers fit together"
    if liars:
        reason += f", but not those of {committee.names(liars)}"
    return Verdict(consistent, liars, reason)


def _find_agreeing(
    values: Mapping[int, Vector], certain: tuple[int, ...], t: int
) -> list[frozenset[int]]:
    """Finds every largest set of over t points on one polynomial below degree t.

    It tries at most C(n, t) <= C(n, t - 1) <= MOST_SEEDS polynomials, since 2t > n.

    Args:
        certain: points that are in every set.
    """
    found: list[frozenset[int]] = []
    doubtful = [x for x in values if x not in certain]
    for chosen in itertools.combinations(doubtful, t - len(certain)):
        points = certain + chosen
        if any(known.issuperset(points) for known in found):
            continue
        through = [values[x] for x in points]
        fitting = frozenset(points).union(
            x
            for x in doubtful
            if x not in points
            and np.array_equal(combination(lagrange(points, x), through), values[x])
        )
        if len(fitting) > t:
            found.append(fitting)
    return found
