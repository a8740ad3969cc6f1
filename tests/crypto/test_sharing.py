"""Secrecy: t - 1 shares tell nothing of a key, and a false share is named."""

import dataclasses
import itertools
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.crypto import sharing
from secureps.crypto.sharing import (
    KEY_BOUND,
    MOST_WEIGHT,
    Committee,
    HolderShare,
    P,
    SharedKey,
    Vector,
    answer,
    interpolate,
    judge,
    key_sum,
    share,
    weighted_sum,
)
from secureps.errors import InternalError, Malformed, Oversized, PlanRefused
from tests.kits import sharing_kit as slow

SIZES = [(1, 1), (2, 2), (2, 3), (3, 3), (3, 4), (3, 5), (4, 4), (5, 7), (7, 12), (64, 64)]
"""(t, n)."""
ID = b"run/hospital-1/all/7"


def committee(t: int, n: int) -> Committee:
    return Committee(tuple(f"holder-{k:02}" for k in range(n)), t)


def some_key(length: int, seed: int = 1) -> npt.NDArray[np.int32]:
    rng = np.random.default_rng(seed)
    return rng.integers(-KEY_BOUND, KEY_BOUND + 1, length).astype(np.int32)


def holders_of(shared: SharedKey, of: Committee, id: bytes = ID) -> list[HolderShare]:
    return [HolderShare(of, k, id, shared.seeds_of(k)) for k in range(len(of.holders))]


def all_seeds(shared: SharedKey, of: Committee) -> dict[tuple[int, ...], bytes]:
    """Every seed by its subset, from what the holders have together."""
    found = {}
    for k in range(len(of.holders)):
        seeds = shared.seeds_of(k)
        for j, i in enumerate(of.held_by(k)):
            found[of.subsets[i]] = seeds[32 * j : 32 * j + 32]
    return found


sizes = pytest.mark.parametrize(("t", "n"), SIZES)


# --- committee --------------------------------------------------------------------


@sizes
def test_who_holds_which_seed(t: int, n: int) -> None:
    us = committee(t, n)
    zeros = math.comb(n, t - 2) if t < n else 0
    assert len(us.key_subsets) == math.comb(n, t - 1)
    assert len(us.zero_subsets) == zeros
    assert us.subsets == us.key_subsets + us.zero_subsets
    if len(us.subsets) < 100 and n < 10:
        assert list(us.key_subsets) == slow.subsets(n, t - 1)
        assert list(us.zero_subsets) == (slow.subsets(n, t - 2) if zeros else [])
    for k in range(n):
        held = {us.subsets[i] for i in us.held_by(k)}
        assert held == {subset for subset in us.subsets if k not in subset}
        assert us.seed_bytes == 32 * len(held)


@pytest.mark.parametrize(
    ("holders", "threshold", "reason"),
    [
        (("a", "b", "c", "d"), 2, "take at least 3"),
        (("a", "b"), 1, "take at least 2"),
        (("a", "b"), 3, "take one from 1 to 2"),
        (("a",), 0, "take one from 1 to 1"),
        ((), 0, "among 0 holders"),
        (("b", "a", "c"), 2, "sorted"),
        (("a", "a", "b"), 2, "each of them once"),
        (tuple(f"h{k:03}" for k in range(65)), 65, "at most 64"),
        (tuple(f"h{k:03}" for k in range(13)), 7, "need 3003 seeds a key"),
    ],
)
def test_unsound_committees_are_refused(
    holders: tuple[str, ...], threshold: int, reason: str
) -> None:
    with pytest.raises(PlanRefused, match=reason):
        Committee(holders, threshold)


# --- shares -----------------------------------------------------------------------


@sizes
def test_shares_are_the_slow_references(t: int, n: int) -> None:
    """Each holder's share, and the correction, from the seeds by Python's integers alone."""
    us, length = committee(t, n), 5
    key = some_key(length)
    shared = share(ID, key, us)
    seeds = all_seeds(shared, us)
    pieces = {a: slow.pseudorandom(ID, a, seeds[a], length) for a in us.key_subsets}
    expected = slow.shares(n, t, pieces)
    made = [holder.share(length) for holder in holders_of(shared, us)]
    assert [vector.tolist() for vector in made] == expected
    assert all(vector.dtype == np.uint32 for vector in (*made, shared.correction))
    sums = [sum(piece[i] for piece in pieces.values()) % P for i in range(length)]
    assert shared.correction.tolist() == [(s - r) % P for s, r in zip(key.tolist(), sums)]
    for i in range(length):
        points = {k + 1: made[k].tolist()[i] for k in range(t)}
        assert slow.through(points, 0) == sums[i]
        for k in range(t, n):
            assert slow.through(points, k + 1) == made[k].tolist()[i]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_heaviest_cohort_of_extreme_keys_does_not_wrap(sign: int) -> None:
    assert KEY_BOUND * 4096 < P / 2
    assert KEY_BOUND * MOST_WEIGHT < P / 2 < KEY_BOUND * (MOST_WEIGHT + 1)
    us, length = committee(3, 4), 2048
    shared = share(ID, np.full(length, sign * KEY_BOUND, np.int32), us)
    held = holders_of(shared, us)
    for weights in ([4] * 1024, [MOST_WEIGHT]):
        answers = {
            k: weighted_sum([held[k].share(length)] * len(weights), weights) for k in (0, 2, 3)
        }
        opened = key_sum(us, answers, [shared.correction] * len(weights), weights)
        assert opened.tolist() == [sign * KEY_BOUND * sum(weights)] * length


def test_a_quorum_less_one_opens_nothing() -> None:
    us, length = committee(3, 4), 8
    shared = share(ID, some_key(length), us)
    shares = [h.share(length) for h in holders_of(shared, us)]
    for wrong in ((0, 1), (0, 1, 2, 3), ()):
        with pytest.raises(InternalError, match=f"{len(wrong)} answers, not 3"):
            interpolate(us, {k: shares[k] for k in wrong})
    with pytest.raises(InternalError, match="no holder 4"):
        interpolate(us, {0: shares[0], 1: shares[1], 4: shares[2]})
    with pytest.raises(InternalError, match="of one length"):
        interpolate(us, {0: shares[0], 1: shares[1], 2: shares[2][:7]})
    with pytest.raises(InternalError, match="of one length"):
        interpolate(us, {0: shares[0], 1: shares[1], 2: shares[2].astype(np.int64)})


@pytest.mark.parametrize(("t", "n"), [(2, 2), (2, 3), (3, 4), (3, 5), (5, 7)])
def test_fewer_holders_than_the_threshold_know_nothing(t: int, n: int) -> None:
    """Another key would fit what t - 1 holders see, by another stream of the seed that they lack.

    They have a commitment to that seed, and cannot tell its stream from uniform words. We compute
    the stream by which the key would have been the other one: the public correction and the
    coalition's own shares stay the same, and all n shares interpolate to the other key.
    """
    us, length = committee(t, n), 6
    key, other = some_key(length, 1), some_key(length, 2)
    shared = share(ID, key, us)
    seeds = all_seeds(shared, us)
    pieces = {a: slow.pseudorandom(ID, a, seeds[a], length) for a in us.key_subsets}
    made = [h.share(length).tolist() for h in holders_of(shared, us)]
    for coalition in itertools.combinations(range(n), t - 1):
        lacking = [a for a in us.key_subsets if all(k in a for k in coalition)]
        assert lacking == [coalition]
        for k in coalition:
            assert seeds[coalition] not in shared.seeds_of(k)
        completing = [
            (r + theirs - ours) % P
            for r, theirs, ours in zip(pieces[coalition], other.tolist(), key.tolist())
        ]
        otherwise = pieces | {coalition: completing}
        sums = [sum(column) % P for column in zip(*otherwise.values())]
        assert [(s - r) % P for s, r in zip(other.tolist(), sums)] == shared.correction.tolist()
        theirs = slow.shares(n, t, otherwise)
        assert [theirs[k] for k in coalition] == [made[k] for k in coalition]
        for i in range(length):
            value = slow.through({k + 1: theirs[k][i] for k in range(n)}, 0)
            assert (value + int(shared.correction[i])) % P == other[i] % P


# --- answers ----------------------------------------------------------------------


ABOUT = b"d" * 32
SMALL = [(1, 1), (2, 2), (2, 3), (3, 4), (3, 5), (4, 5), (4, 7)]
small = pytest.mark.parametrize(("t", "n"), SMALL)


@dataclasses.dataclass
class Members:
    us: Committee
    weights: tuple[int, ...] = (1, 2, 4)
    length: int = 5

    def __post_init__(self) -> None:
        self.ids = [b"run/client-%d" % i for i, _ in enumerate(self.weights)]
        self.keys = [some_key(self.length, seed) for seed, _ in enumerate(self.weights)]
        self.shared = [share(id, key, self.us) for id, key in zip(self.ids, self.keys)]
        self.held = [holders_of(one, self.us, id) for one, id in zip(self.shared, self.ids)]

    def answers(self, about: bytes = ABOUT) -> dict[int, Vector]:
        return {
            k: answer([held[k] for held in self.held], self.weights, about, self.length)
            for k, _ in enumerate(self.us.holders)
        }

    def opened(self, answers: dict[int, Vector]) -> list[int]:
        corrections = [one.correction for one in self.shared]
        return list(key_sum(self.us, answers, corrections, self.weights))

    @property
    def sums(self) -> list[int]:
        columns = zip(*(key.tolist() for key in self.keys))
        return [sum(w * s for w, s in zip(self.weights, column)) for column in columns]


@small
def test_answers_are_the_slow_references(t: int, n: int) -> None:
    """Shares of the sum, and a polynomial that is zero at zero, by Python's integers alone."""
    members = Members(committee(t, n))
    us, length = members.us, members.length
    seeds = [all_seeds(one, us) for one in members.shared]
    bare = [
        slow.shares(n, t, {a: slow.pseudorandom(id, a, own[a], length) for a in us.key_subsets})
        for id, own in zip(members.ids, seeds)
    ]
    for k, found in members.answers().items():
        expected = [0] * length
        for weight, held in zip(members.weights, bare):
            expected = [(e + weight * s) % P for e, s in zip(expected, held[k])]
        for b in us.zero_subsets:
            if k not in b:
                own = (each[b] for each in seeds)
                seed = slow.tagged("secureps-zero-share", ABOUT, bytes(b), *own)
                factor = (k + 1) * slow.over(slow.f(b, k + 1))
                piece = slow.pseudorandom(ABOUT, b, seed, length)
                expected = [(e + factor * r) % P for e, r in zip(expected, piece)]
        assert found.tolist() == expected


@small
def test_any_t_answers_open_the_sum_and_all_lie_on_one_polynomial(t: int, n: int) -> None:
    members = Members(committee(t, n))
    answers = members.answers()
    assert {k: v.tolist() for k, v in answers.items()} == {
        k: v.tolist() for k, v in members.answers().items()
    }, "the same whenever they are asked for"
    for quorum in itertools.combinations(range(n), t):
        assert members.opened({k: answers[k] for k in quorum}) == members.sums
    assert judge(members.us, answers).consistent == frozenset(range(n))


@pytest.mark.parametrize(("t", "n"), [each for each in SMALL if each[0] < each[1]])
def test_answers_to_two_digests_do_not_mix(t: int, n: int) -> None:
    """One answer for another digest spoils the opening; with t = n all must answer anyway."""
    members = Members(committee(t, n))
    one, two = members.answers(), members.answers(b"e" * 32)
    for k in range(n):
        assert (one[k] != two[k]).any()
    for quorum in itertools.combinations(range(n), t):
        for odd in quorum:
            mixed = {k: (two if k == odd else one)[k] for k in quorum}
            assert members.opened(mixed) != members.sums


@pytest.mark.parametrize(("t", "n"), [(2, 3), (3, 4), (3, 5), (4, 5), (4, 7)])
def test_too_few_honest_answers_tell_nothing_of_the_sum(t: int, n: int) -> None:
    """To any f < t holders, t - f - 1 honest answers to one digest fit every sum.

    The streams of the sets that contain all f of them are random to them. The honest answers are a
    matrix of known factors times those streams. For t - f - 1 answers it has full rank in the
    zero-shares alone, so they hide whatever is added to them.
    """
    us = committee(t, n)
    for f in range(t):
        for corrupt in itertools.combinations(range(n), f):
            honest = [k for k in range(n) if k not in corrupt]
            hidden = [b for b in us.zero_subsets if set(corrupt) <= set(b)]
            for few in itertools.combinations(honest, t - f - 1):
                rows = [
                    [0 if k in b else (k + 1) * slow.over(slow.f(b, k + 1)) % P for b in hidden]
                    for k in few
                ]
                assert slow.rank(rows) == len(few)


# --- seeds, commitments, streams --------------------------------------------------


def test_seeds_are_the_operating_systems_and_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    us, key = committee(3, 4), some_key(8)
    one, two = share(ID, key, us), share(ID, key, us)
    assert not set(all_seeds(one, us).values()) & set(all_seeds(two, us).values())
    assert len(set(all_seeds(one, us).values())) == len(us.subsets)
    asked: list[int] = []

    def urandom(size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr(os, "urandom", urandom)
    share(ID, key, us)
    assert asked == [32] * len(us.subsets)


@sizes
def test_commitments_say_which_seed_is_wrong(t: int, n: int) -> None:
    us = committee(t, n)
    shared = share(ID, some_key(4), us)
    seeds = all_seeds(shared, us)
    expected = [slow.tagged("secureps-key-seed", ID, bytes(a), seeds[a]) for a in us.subsets]
    assert list(shared.commitments) == expected
    for k, holder in enumerate(holders_of(shared, us)):
        holder.check(shared.commitments)
        for i in range(0, len(us.subsets), 1 + len(us.subsets) // 20):
            others = list(shared.commitments)
            at = (7 * i + 5 * k + 31) % 32
            others[i] = others[i][:at] + bytes([others[i][at] ^ 1]) + others[i][at + 1 :]
            if i not in us.held_by(k):
                holder.check(others)  # somebody else's to find
                continue
            names = ", ".join(us.holders[j] for j in us.subsets[i]) or "nobody"
            with pytest.raises(Malformed, match=f"the seed kept from {names} is not, at holder"):
                holder.check(others)
    with pytest.raises(Malformed, match="commitments to"):
        holder.check(shared.commitments[:-1])


def test_seeds_of_another_length_are_refused() -> None:
    us = committee(3, 4)
    with pytest.raises(Malformed, match="191 bytes; it must have exactly 192"):
        HolderShare(us, 0, ID, bytes(191))
    with pytest.raises(Oversized, match="224 bytes; it must have exactly 192"):
        HolderShare(us, 0, ID, bytes(224))
    for nobody in (-1, 4):
        with pytest.raises(InternalError, match="no holder"):
            HolderShare(us, nobody, ID, bytes(192))


def test_words_that_are_p_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rigged:
        def __init__(self, key: bytes) -> None:
            self.left = [P, 5, 0xFFFFFFFF, 0x80000006, P, P, P - 1, 0, 9]

        def words(self, count: int) -> Vector:
            taken, self.left = self.left[:count], self.left[count:]
            return np.array(taken, np.uint32)

    monkeypatch.setattr(sharing, "Stream", Rigged)
    assert sharing._pseudorandom(ID, (), bytes(32), 4).tolist() == [5, 6, P - 1, 0]


def test_what_is_no_key_is_not_shared() -> None:
    us = committee(3, 4)
    share(ID, np.array([41, -41], np.int32), us)
    for wrong in (42, -42, -(2**31), 2**31 - 1):
        with pytest.raises(InternalError, match="above 41"):
            share(ID, np.array([0, wrong], np.int32), us)
    for shape in (np.zeros((2, 2), np.int32), np.zeros(2, np.int64), np.zeros(0, np.int32)):
        with pytest.raises(InternalError, match="int32 vector"):
            share(ID, shape, us)  # type: ignore[arg-type]


def test_weights_out_of_range_are_refused() -> None:
    ones = np.ones(3, np.uint32)
    assert weighted_sum([ones, ones], [1, 4]).tolist() == [5, 5, 5]
    weights: list[int]
    for weights in ([], [1, 0], [1, -1], [MOST_WEIGHT, 1]):
        with pytest.raises(InternalError, match="weights are at least 1"):
            weighted_sum([ones] * len(weights), weights)
    for vectors in ([ones], [ones] * 3, [ones, ones[:2]]):
        with pytest.raises(InternalError, match="vectors of 2 members do not match"):
            weighted_sum(vectors, [1, 1])


# --- who is named a liar, and who never is ----------------------------------------


def on_polynomial(rng: np.random.Generator, n: int, t: int, length: int) -> list[Vector]:
    """Returns the values at 0, 1, ..., n of a random vector polynomial of degree t - 1."""
    rows = rng.integers(0, P, (t, length)).tolist()
    return [
        np.array(
            [sum(c * x**e for e, c in enumerate(column)) % P for column in zip(*rows)], np.uint32
        )
        for x in range(n + 1)
    ]


def conspiring(
    values: Sequence[Vector], victims: Sequence[int], liars: Sequence[int]
) -> dict[int, Vector]:
    """Returns liars' answers on another polynomial of the same degree, true at `victims`' points.

    Args:
        values: the true ones at 0, 1, ...
        victims: points, at most t - 1 of them.
    """
    lies = {}
    for k in liars:
        bump = math.prod(k + 1 - x for x in victims) % P
        lies[k] = ((values[k + 1].astype(np.uint64) + np.uint64(bump)) % np.uint64(P)).astype(
            np.uint32
        )
    return lies


@st.composite
def votes(
    draw: st.DrawFn,
) -> tuple[Committee, list[Vector], dict[int, Vector], frozenset[int], str, int]:
    t, n = draw(st.sampled_from([(2, 3), (3, 4), (3, 5), (4, 6), (5, 7), (5, 9), (6, 8)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = on_polynomial(rng, n, t, 3)
    voting = draw(st.lists(st.integers(0, n - 1), min_size=t, max_size=n, unique=True))
    false = draw(st.integers(0, len(voting) - t))
    answers = {k: values[k + 1] for k in voting}
    liars = voting[:false]
    kind = draw(st.sampled_from(["alone", "alone, in one coordinate", "together"]))
    if kind == "together":
        honest = voting[false:]
        answers |= conspiring(values, [k + 1 for k in honest[: t - 1]], liars)
    for k in liars if kind != "together" else ():
        lie = answers[k].copy()
        where = slice(None) if kind == "alone" else slice(1)
        lie[where] = (lie[where] + rng.integers(1, P, lie[where].size)) % P
        answers[k] = lie
    return (
        Committee(tuple(f"h{k}" for k in range(n)), t),
        values,
        answers,
        frozenset(liars),
        kind,
        t,
    )


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(votes())
def test_no_honest_holder_is_ever_named(
    vote: tuple[Committee, list[Vector], dict[int, Vector], frozenset[int], str, int],
) -> None:
    us, values, answers, liars, kind, t = vote
    honest = frozenset(answers) - liars
    for verified, needed in ((None, t + 1), (values[0], t)):
        if len(honest) < needed:
            continue
        verdict = judge(us, answers, verified)
        assert verdict.liars in (liars, frozenset())
        assert verdict.consistent in (honest, frozenset())
        if kind != "together" or len(liars) < 2:
            assert (verdict.consistent, verdict.liars) == (honest, liars)
        if verdict.liars:
            assert verdict.reason == (
                f"{len(honest)} answers fit together, but not those of {us.names(liars)}"
            )


@pytest.mark.parametrize(("t", "n"), [(3, 4), (3, 5), (5, 7)])
def test_as_many_answers_as_are_needed_show_nothing(t: int, n: int) -> None:
    us, rng = committee(t, n), np.random.default_rng(1)
    for chosen in itertools.combinations(range(n), t):
        noise = {k: rng.integers(0, P, 4).astype(np.uint32) for k in chosen}
        verdict = judge(us, noise)
        assert (verdict.consistent, verdict.liars) == (frozenset(chosen), frozenset())
        assert verdict.reason == f"{t} answers of {t} leave nothing to compare"
    with pytest.raises(InternalError, match="are needed"):
        judge(us, dict(itertools.islice(noise.items(), t - 1)))


def test_three_of_four_find_a_liar_once_an_opening_is_proved_right() -> None:
    us = committee(3, 4)
    values = on_polynomial(np.random.default_rng(3), 4, 3, 8)
    for liar in range(4):
        answers = {k: values[k + 1] for k in range(4)}
        answers[liar] = answers[liar] ^ np.uint32(1)
        open_question = judge(us, answers)
        assert (open_question.consistent, open_question.liars) == (frozenset(), frozenset())
        assert "no 4 values fit together" in open_question.reason
        named = judge(us, answers, values[0])
        assert named.liars == {liar}
        assert named.reason == f"3 answers fit together, but not those of holder-0{liar}"
        quorum = {k: answers[k] for k in named.consistent}
        assert np.array_equal(interpolate(us, quorum), values[0])


def test_two_that_conspire_leave_the_question_open_and_frame_nobody_who_is_verified() -> None:
    """With 3 of 5, two liars on a polynomial of their own: see `judge` about t honest answers."""
    us = committee(3, 5)
    values = on_polynomial(np.random.default_rng(4), 5, 3, 8)
    answers: Mapping[int, Vector] = {k: values[k + 1] for k in range(5)}
    answers = {**answers, **conspiring(values, [1, 2], [3, 4])}
    assert judge(us, answers).liars == {2}  # three are honest, and four would have to be
    assert judge(us, answers, values[0]).liars == {3, 4}
    us = committee(4, 7)
    values = on_polynomial(np.random.default_rng(4), 7, 4, 8)
    answers = {k: values[k + 1] for k in range(7)}
    answers = {**answers, **conspiring(values, [1, 2, 3], [5, 6])}
    verdict = judge(us, answers)
    assert (verdict.consistent, verdict.liars) == (frozenset(), frozenset())
    assert "more than one set of 5 values fit together" in verdict.reason
