"""Which holders are named liars, and which never are."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.crypto.sharing import Committee, P, Vector, interpolate, judge
from secureps.errors import InternalError


def committee(t: int, n: int) -> Committee:
    return Committee(tuple(f"holder-{k:02}" for k in range(n)), t)


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
