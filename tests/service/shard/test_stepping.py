"""Blocks stepped piece by piece equal the same formulas over whole blocks."""

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.errors import NotFinite, Refused
from secureps.messages.submission import Cohort
from secureps.model.layout import SCALE, GroupLayout
from secureps.model.optimizer import EXACT, OPTIMIZERS, OptimizerState
from secureps.policy.block_deltas import block_delta
from secureps.policy.plan import Plan
from secureps.service.shard.states import GroupValues, lay_out
from secureps.service.shard.worker import PIECE, Stepping
from tests.kits.privacy_kit import adaptive_plan
from tests.kits.roles_kit import make_cohort, make_plan

EXAMPLES = (5, 9, 32)
SHARES = Fraction(sum(EXAMPLES), 32)
"""Of three members that count by so many examples of at most 32."""

SIZES = (1, 1000, PIECE - 1, PIECE, 2 * PIECE + 7)
"""Values of a block, cut in pieces or not."""


def plan_of(optimizer: str, **changes: Any) -> Plan:
    group = {"rule": {"quorum": 3, "minimum": 2, "most": 4, "deadline": 10.0, "extensions": 1}}
    own = {"most_examples": 32, "optimizer": {"name": optimizer}, **changes}
    return make_plan(group=[group | own])


def before(plan: Plan, size: int) -> GroupValues:
    rng = np.random.default_rng(7)
    values = {b: rng.normal(size=size).astype(np.float32) for b in (0, 2)}
    first = {b: plan.optimizer("all").init(v) for b, v in values.items()}
    states = {
        b: OptimizerState(3, {n: rng.random(size).astype(np.float32) for n in sorted(state.slots)})
        for b, state in first.items()
    }
    return GroupValues(4, values, states)


def sums_of(plan: Plan, size: int, seed: int) -> NDArray[np.int64]:
    """Sums that three members of weight 1 may have sent."""
    levels = plan.grid("all", size).levels
    return np.random.default_rng(seed).integers(0, 3 * levels, size, np.int64, endpoint=True)


def counted() -> Cohort:
    """Three members weighted by their examples."""
    members = zip(make_cohort().members, EXAMPLES, strict=True)
    unlike = tuple(dataclasses.replace(member, examples=n) for member, n in members)
    return dataclasses.replace(make_cohort(), members=unlike)


def cut(sums: NDArray[np.int64], lengths: list[int]) -> Iterator[NDArray[np.int64]]:
    """Yields pieces that reuse one buffer, as an opener does."""
    room, at = np.empty(sums.size, np.int64), 0
    for length in [*lengths, sums.size]:
        piece = room[: min(length, sums.size - at)]
        piece[:] = sums[at : at + piece.size]
        at += piece.size
        if piece.size:
            yield piece


def test_vectors_lie_one_after_another() -> None:
    asked: list[int] = []

    def vector(count: int) -> NDArray[np.float32]:
        asked.append(count)
        return np.zeros(count, np.float32)

    made = lay_out({3: 2, 7: 5}, vector)
    made[3][:], made[7][:] = 1, 2
    assert asked == [7]
    whole = made[7].base
    assert whole is not None
    assert whole.tolist() == [1, 1, 2, 2, 2, 2, 2]
    assert lay_out({}) == {}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"replace"}))
@pytest.mark.parametrize("size", SIZES)
def test_pieces_make_what_a_whole_block_makes(name: str, size: int) -> None:
    plan, cohort = plan_of(name), counted()
    layout = GroupLayout("all", (), 3 * size, size)
    known, sums = before(plan, size), sums_of(plan, size, size)
    mean = plan.grid("all", layout.size).weighted_mean(sums, SHARES, cohort.weight)
    values, state = plan.optimizer("all").apply(mean, known.values[2], known.optimizer[2])
    stepping = Stepping(plan, layout, cohort, known)
    for lengths in ([], [8192] * 10, [1, 5, PIECE + 3]):
        made = stepping.step(2, partial(cut, sums, lengths))
        assert made.values[2].tobytes() == values.tobytes()
        assert (made.optimizer, made.codes) == ({2: state}, {})
        assert made.values[2].dtype == np.float32


@pytest.mark.parametrize("codec", [(), ("rotate",), ({"name": "support", "one_in": 3}, "rotate")])
@pytest.mark.parametrize("name", ["sgd", "fedyogi"])
def test_what_is_published_follows_what_the_optimizer_makes(
    codec: tuple[Any, ...], name: str
) -> None:
    """The optimizer steps from its own unrounded values."""
    group = {"rule": {"quorum": 3, "minimum": 2}, "optimizer": {"name": name}, "codec": codec}
    plan, exact = (
        make_plan(group=[group | {"most_examples": 32, "clip": 4.0, "range": 1.0} | more])
        for more in ({"pull_bits": 4}, {})
    )
    cohort, size = make_cohort(), PIECE + 9
    one_in = plan.group("all").one_in
    layout = GroupLayout("all", (), 3 * size, size, None, one_in)
    delta = block_delta(plan, layout, 2)
    assert delta is not None
    values = np.random.default_rng(7).normal(size=size).astype(np.float32)
    known = GroupValues(4, {2: values}, {2: plan.optimizer("all").init(values)})
    sums = sums_of(plan, -(-size // (one_in or 1)), 5)
    stepped = Stepping(plan, layout, cohort, known).step(2, partial(cut, sums, [4096] * 3))
    made, after, codes = stepped.values[2], stepped.optimizer[2], stepped.codes[2]
    assert delta.follow(values, codes.data, cohort.version).tobytes() == made.tobytes()
    start = GroupValues(4, {2: values}, {2: exact.optimizer("all").init(values)})
    right = Stepping(exact, layout, cohort, start).step(2, lambda: iter([sums])).values[2]
    assert after.slots[EXACT].tobytes() == right.tobytes()
    assert 0 < np.abs(made - right).max() <= np.abs(right - values).max() / 7
    again = Stepping(plan, layout, cohort, known).step(2, lambda: iter([sums]))
    assert again.values[2].tobytes() == made.tobytes()


def test_a_block_that_lies_in_a_file_is_stepped_without_writing_to_it() -> None:
    plan, size = plan_of("sgd", pull_bits=4), 500
    layout, known = GroupLayout("all", (), 3 * size, size), before(plan, size)
    known.values[2].flags.writeable = False
    Stepping(plan, layout, make_cohort(), known).step(2, lambda: iter([sums_of(plan, size, 1)]))


@pytest.mark.parametrize("size", [PIECE, PIECE + 1])
def test_the_last_value_is_the_scale_of_the_clip_and_not_stepped(size: int) -> None:
    plan = adaptive_plan("distributed")
    layout = GroupLayout("all", (SCALE,), size, size)
    known = before(plan, size)
    known.values[0][-1] = 0.5
    cohort = dataclasses.replace(make_cohort(), scale=0.5)
    sums = sums_of(plan, size, 1)
    grid, clip = plan.grid("all", size), plan.adaptive("all")
    assert clip is not None
    mean = grid.weighted_mean(sums, Fraction(3), cohort.weight)
    measured = float(mean[-1])
    mean *= np.float32(0.5)
    mean[-1] = 0
    values, state = plan.optimizer("all").apply(mean, known.values[0], known.optimizer[0])
    values[-1] = clip.next_scale(0.5, measured)
    made = Stepping(plan, layout, cohort, known).step(0, partial(cut, sums, [4096] * 3))
    assert made.values[0].tobytes() == values.tobytes()
    assert made.optimizer[0] == state


def test_that_sums_do_not_open_is_told_before_what_is_wrong_with_their_numbers() -> None:
    """Another set of key shares may open the sums, so no member is blamed yet."""
    plan, cohort, size = plan_of("sgd", range=1e38), make_cohort(), 5000
    layout = GroupLayout("all", (), 3 * size, size)
    sums, opened = np.zeros(size, np.int64), []
    stepping = Stepping(plan, layout, cohort, before(plan, size))

    def opening(error: Exception | None) -> Iterator[NDArray[np.int64]]:
        for piece in cut(sums, [1000] * 4):
            opened.append(piece.size)
            yield piece
        if error is not None:
            raise error

    with pytest.raises(Refused, match="does not open"):
        stepping.step(0, partial(opening, Refused("does not open")))
    with pytest.raises(NotFinite, match="does not fit into float32"):
        stepping.step(0, partial(opening, None))
    assert sum(opened) == 2 * sums.size
