"""A one-time key among a committee of key holders: any t of n give weighted sums of keys.

Pseudo-random secret sharing (Cramer, Damgard and Ishai, "Share conversion, pseudorandom
secret-sharing and applications to secure computation", TCC 2005) over the integers modulo
P = 2^31 - 1. Holder k has the point x_k = k + 1. For every set A of t - 1 holders there is
a seed, known to everybody outside A, and r_A = PRG(seed_A), a vector of the key's length N:

    correction = s - sum_A r_A                                            (public)
    share_k    = sum_{A without k} r_A f_A(x_k),  f_A(x) = prod_{i in A} (x_i - x) / x_i

f_A has degree t - 1, f_A(0) = 1 and f_A(x_i) = 0 for i in A: the shares are Shamir's ("How to
share a secret", CACM 1979) of sum_A r_A, so any t of them interpolate to it at 0, and so do
weighted sums of shares. Any t - 1 holders lack the seed of one A, their own set: to them
r_A is uniform and the key is anything, as far as ChaCha20's key stream looks random.

    client   share           seeds for each holder, commitments to them, the correction
    holder   HolderShare     checks its seeds, derives its share; weighted_sum answers for a cohort
    shard    key_sum         S = sum_i w_i s_i from t answers; judge, from more, names who lied

What is secret goes through + - * & >> and min alone, and through the comparison by which the
PRG leaves out words that are P: these are independent of the words that stay.

What must not live here: envelopes (`crypto.envelope`), who may ask a holder for what (the
holder's machine), and the ring that keys belong to.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from secureps.crypto.field import P, Vector, basis, combination, lagrange, reduced
from secureps.crypto.sampling import SEED_BYTES, Stream
from secureps.crypto.secret import Secret
from secureps.errors import InternalError, Malformed, Oversized, PlanRefused
from secureps.messages.encoding import digest

KEY_BOUND: Final = 41
"""Greatest |coefficient| of a one-time key."""
MOST_WEIGHT: Final = P // 2 // KEY_BOUND
"""Greatest total weight of a cohort whose sum of keys cannot wrap: 26 million."""
MOST_HOLDERS: Final = 64
MOST_SUBSETS: Final = 1000
"""Seeds of one key: 32 KB of envelopes to a holder, and as many PRG runs at the client."""

Subset = tuple[int, ...]
"""Indices of holders, ascending."""


@dataclass(frozen=True, slots=True)
class Committee:
    """The key holders of a run, in order, and how many must agree.

    Args:
        holders: names, sorted, each once.
        threshold: t; any t open a sum, and any t - 1 learn nothing.

    Raises:
        PlanRefused: names that are not sorted or not unique; t below 1 or above n; 2t <= n, by
            which two disjoint quorums could open overlapping cohorts; more than 64 holders or
            more than 1000 subsets.
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
        if math.comb(n, t - 1) > MOST_SUBSETS:
            raise PlanRefused(
                f"{t} of {n} holders need {math.comb(n, t - 1)} seeds a key, and at most "
                f"{MOST_SUBSETS} are allowed: take fewer holders or another threshold"
            )

    @property
    def subsets(self) -> tuple[Subset, ...]:
        """Every set of t - 1 holders, in lexicographic order: one seed each."""
        return _subsets(len(self.holders), self.threshold - 1)

    def held_by(self, holder: int) -> tuple[int, ...]:
        """Positions in `subsets` of the sets without this holder: whose seeds it gets."""
        self.check_holder(holder)
        return tuple(i for i, subset in enumerate(self.subsets) if holder not in subset)

    @property
    def seed_bytes(self) -> int:
        """Length of what one holder gets from one client, before it is sealed."""
        return SEED_BYTES * math.comb(len(self.holders) - 1, self.threshold - 1)

    def check_holder(self, holder: int) -> None:
        """InternalError unless there is a holder of this index."""
        if not 0 <= holder < len(self.holders):
            raise InternalError(f"no holder {holder} among {len(self.holders)}")

    def names(self, holders: Iterable[int]) -> str:
        """For messages: the names, or "nobody"."""
        return ", ".join(self.holders[k] for k in sorted(holders)) or "nobody"


@functools.cache
def _subsets(n: int, size: int) -> tuple[Subset, ...]:
    return tuple(itertools.combinations(range(n), size))


# --- client -----------------------------------------------------------------------


def _pseudorandom(id: bytes, subset: Subset, seed: bytes, length: int) -> Vector:
    """PRG(id, A, seed): the key stream's words without their top bit, those that are P left out."""
    stream = Stream(digest("secureps-key-share", id, bytes(subset), seed))
    values = np.empty(0, np.uint32)
    while values.size < length:
        words = stream.words(length - values.size) & np.uint32(P)
        values = np.concatenate([values, words[words != P]])
    return values


def _commitment(id: bytes, subset: Subset, seed: bytes) -> bytes:
    """32 bytes that bind to a seed and hide it, a seed being uniform."""
    return digest("secureps-key-seed", id, bytes(subset), seed)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SharedKey(Secret):
    """What a client makes of one key: seeds for the holders, and what its receipt says openly.

    commitments: one of 32 bytes for each of the committee's subsets, in their order.
    correction: uint32 (N,), s - sum_A PRG(seed_A) modulo P.
    """

    _committee: Committee
    _seeds: tuple[bytes, ...]
    commitments: tuple[bytes, ...]
    correction: Vector

    def seeds_of(self, holder: int) -> bytes:
        """`committee.seed_bytes` secret bytes, for this holder's envelope and nobody else."""
        return b"".join(self._seeds[i] for i in self._committee.held_by(holder))


def share(id: bytes, key: npt.NDArray[np.int32], committee: Committee) -> SharedKey:
    """Shares a key under fresh seeds of the operating system.

    Args:
        id: names the submission over all runs, the run's id being part of it.
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
    for subset, seed in zip(committee.subsets, seeds):
        correction += np.uint64(P) - _pseudorandom(id, subset, seed, key.size)
    commitments = tuple(_commitment(id, a, seed) for a, seed in zip(committee.subsets, seeds))
    return SharedKey(committee, seeds, commitments, reduced(correction))


# --- holder -----------------------------------------------------------------------


class HolderShare(Secret):
    """What one holder has of one key.

    Args:
        holder: its index in the committee.
        id: as the client gave it to `share`.
        seeds: what was in the envelope, `committee.seed_bytes` bytes.

    Raises:
        Malformed: too few seeds. Oversized: too many.
    """

    __slots__ = ("_committee", "_holder", "_id", "_seeds")

    def __init__(self, committee: Committee, holder: int, id: bytes, seeds: bytes) -> None:
        held, due = committee.held_by(holder), committee.seed_bytes
        if len(seeds) != due:
            kind = Oversized if len(seeds) > due else Malformed
            raise kind(f"a holder's seeds have {due} bytes, not {len(seeds)}")
        self._committee = committee
        self._holder = holder
        self._id = id
        self._seeds = {i: seeds[j * SEED_BYTES : (j + 1) * SEED_BYTES] for j, i in enumerate(held)}

    def check(self, commitments: Sequence[bytes]) -> None:
        """Malformed, with the subset, unless every seed is the one that the client committed to."""
        subsets = self._committee.subsets
        if len(commitments) != len(subsets):
            raise Malformed(f"{len(commitments)} commitments to {len(subsets)} seeds")
        for i, seed in self._seeds.items():  # else a client gives holders shares that do not fit
            if _commitment(self._id, subsets[i], seed) != commitments[i]:
                raise Malformed(
                    f"the seed kept from {self._committee.names(subsets[i])} is not, at "
                    f"{self._committee.names([self._holder])}, the one that was committed to"
                )

    def share(self, length: int) -> Vector:
        """This holder's Shamir share of the key less its correction, (length,): secret."""
        subsets = [self._committee.subsets[i] for i in self._seeds]
        at = self._holder + 1
        factors = (basis(0, tuple(i + 1 for i in subset), at) for subset in subsets)
        pieces = (
            _pseudorandom(self._id, subset, seed, length)
            for subset, seed in zip(subsets, self._seeds.values())
        )
        return combination(factors, pieces)


def weighted_sum(vectors: Iterable[Vector], weights: Sequence[int]) -> Vector:
    """sum_i weight_i vector_i modulo P: a holder's answer for a cohort, or its correction.

    Raises:
        InternalError: no member, a weight below 1, weights above MOST_WEIGHT in total, or
            another number of vectors.
    """
    if not weights or min(weights) < 1 or sum(weights) > MOST_WEIGHT:
        raise InternalError(f"weights are at least 1, and at most {MOST_WEIGHT} in total")
    try:
        return combination(weights, vectors)
    except ValueError:
        raise InternalError(f"the vectors of {len(weights)} members do not match") from None


# --- whoever opens ----------------------------------------------------------------


def _check_answers(committee: Committee, answers: Mapping[int, Vector]) -> None:
    for holder, answer in answers.items():
        committee.check_holder(holder)
        if answer.dtype != np.uint32 or answer.shape != next(iter(answers.values())).shape:
            raise InternalError("answers are uint32 vectors of one length")


def interpolate(committee: Committee, answers: Mapping[int, Vector]) -> Vector:
    """The polynomial's value at 0, (N,), from the answers of exactly t holders by index.

    Raises:
        InternalError: more or fewer answers, or no such holder.
    """
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
    """S = sum_i w_i s_i, int64 (N,), |S| <= KEY_BOUND sum w if all were honest.

    Args:
        answers: `weighted_sum` of t holders' shares, by holder.
        corrections, weights: of the cohort's members, in one order.
    """
    parts = [interpolate(committee, answers), weighted_sum(corrections, weights)]
    total = combination((1, 1), parts).astype(np.int64)
    return np.where(total > P // 2, total - P, total)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who of those that answered for a cohort told the truth.

    Args:
        consistent: holders whose answers lie on one polynomial of degree t - 1; empty if it
            cannot be said which ones do.
        liars: holders whose answers are off it.
        reason: both, in words.
    """

    consistent: frozenset[int]
    liars: frozenset[int]
    reason: str


def judge(
    committee: Committee, answers: Mapping[int, Vector], verified: Vector | None = None
) -> Verdict:
    """Which answers fit together, and who lied.

    Liars are named only if one single largest set of at least t + 1 values lies on a polynomial
    of degree t - 1. Two such polynomials share t - 1 points at most. So no honest holder is
    ever named while at least t + 1 answers are honest, however the others conspire (with
    fewer, two that conspire can frame one); a liar who lies alone is then always found.

    Args:
        answers: of at least t holders, by index.
        verified: what `interpolate` gave for t answers whose opening was proved right by its
            residual: one more value, at 0, beyond doubt. Then t honest answers are enough.

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
    agreeing = _agreeing(values, certain, t)
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


def _agreeing(
    values: Mapping[int, Vector], certain: tuple[int, ...], t: int
) -> list[frozenset[int]]:
    """Every largest set of over t points, `certain` among them, on one polynomial below degree t.

    At most C(n, t) <= C(n, t - 1) <= 1000 polynomials are tried, since 2t > n.
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
