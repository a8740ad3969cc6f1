"""An update is the difference of two models, and no longer than the clip allows."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.client.update import (
    Update,
    clip_update,
    difference,
    keep,
    load_kept,
    tell_cuts,
)
from secureps.errors import NotFinite, WrongShape
from secureps.messages.run import Schema, TensorSpec
from secureps.model.layout import SCALE, GroupLayout
from secureps.policy.tensor_kinds import Kind
from secureps.privacy.mechanism import PIECE, clip_l2
from secureps.roles.member.tasks import Aim, kept_key
from secureps.store.spool import DiskSpool, MemorySpool
from tests.kits.roles_kit import make_plan
from tests.kits.sealed_blocks import made_of

SIZE = 3 * PIECE + 5
SPECS = (TensorSpec("mean", (PIECE,), "float32"), TensorSpec("weight", (SIZE - PIECE,), "float32"))
VALUES = np.random.default_rng(4).standard_normal(SIZE).astype(np.float32)
MEAN: dict[str, Kind] = {"mean": "statistics"}


def clipped(
    clip: float, kinds: dict[str, Kind], values: NDArray[np.float32] = VALUES, bound: str = "none"
) -> Update:
    group = {"clip": clip, "bound": bound, "rule": {"quorum": 3, "minimum": 2}}
    plan = make_plan(block_size=1 << 16, group=[group])
    layout = plan.layout(Schema(SPECS)).group("all")
    return clip_update(plan, layout, values.copy(), None, kinds)


@pytest.mark.parametrize("clip", [1.0, 1e4])
def test_an_update_has_the_bits_of_the_whole_that_is_clipped(clip: float) -> None:
    whole, norm = clip_l2(VALUES, clip)
    update = clipped(clip, {})
    assert update.norm == min(norm, clip)
    assert np.array_equal(update.values, whole)


def test_statistics_keep_their_values() -> None:
    update = clipped(1.0, MEAN)
    rest, _ = clip_l2(np.concatenate([np.zeros(PIECE, np.float32), VALUES[PIECE:]]), 1.0)
    assert np.array_equal(update.values, [*VALUES[:PIECE], *rest[PIECE:]])
    bounded = clipped(1.0, MEAN, bound="clip")
    assert np.array_equal(bounded.values, clipped(1.0, {}).values), "else the sum may be too long"


@pytest.mark.parametrize("kinds", [{}, MEAN], ids=["all", "statistics"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [3, SIZE - 1])
def test_a_value_that_is_no_number_is_refused(
    wrong: float, at: int, kinds: dict[str, Kind]
) -> None:
    values = VALUES.copy()
    values[at] = wrong
    with pytest.raises(NotFinite):
        clipped(1.0, kinds, values)


# --- feedback: what an update did not carry comes back whole, or not at all -----------

NAME = bytes(range(16))
AIM = Aim("all", 3, 4, carried=NAME)


def test_what_was_kept_comes_back_bit_for_bit(tmp_path: Path) -> None:
    rest = np.array([0.1, -2.0, 1e-45, 3e38], np.float32)
    keep(DiskSpool(tmp_path), "all", NAME, rest)
    kept = load_kept("c0", DiskSpool(tmp_path), AIM, 4)
    assert kept is not None
    assert kept.tobytes() == rest.tobytes()


def test_before_any_update_was_included_there_is_nothing_to_add() -> None:
    assert load_kept("c0", MemorySpool(), Aim("all", 0, 0), 4) is None


@pytest.mark.parametrize("damage", ["gone", "short", "flipped", "longer"])
def test_what_is_damaged_is_left_out_and_said(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="secureps")
    spool = MemorySpool()
    keep(spool, "all", NAME, np.full(5 if damage == "longer" else 4, 0.5, np.float32))
    key = kept_key("all", NAME)
    data = spool.get(key)
    if damage == "gone":
        spool.delete(key)
    elif damage == "short":
        spool.put(key, data[:20])
    elif damage == "flipped":
        spool.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    assert load_kept("c0", spool, AIM, 4) is None
    assert "left out is missing from the state folder" in caplog.text


# --- the difference of two models ------------------------------------------------------

TENSORS = {
    "bias": ((5,), "float32"),
    "count": ((), "int64"),
    "empty": ((0, 3), "float32"),
    "half": ((3, 4), "float16"),
    "mask": ((7,), "bool"),
    "weight": ((6, 5), "float32"),
    "wide": ((4,), "float64"),
}
MIXED = Schema(tuple(TensorSpec(name, *spec) for name, spec in TENSORS.items()))
GROUP = make_plan(block_size=16).layout(MIXED).group("all")


def mixed_model(seed: int) -> dict[str, NDArray[Any]]:
    drawn = np.random.default_rng(seed)
    return {
        name: (9 * drawn.standard_normal(shape)).astype(dtype)
        for name, (shape, dtype) in TENSORS.items()
    }


def published(group: GroupLayout, values: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [values[slice(*group.span(block))] for block in range(group.blocks)]


@pytest.mark.parametrize("block", [1, 7, 16, 1000])
def test_a_difference_is_that_of_the_flattened_models(block: int) -> None:
    """Beside whatever borders of tensors and blocks; neither model changes."""
    group = dataclasses.replace(GROUP, block_values=block)
    before, trained = group.unflatten(group.flatten(mixed_model(1))), mixed_model(2)
    made = difference(group, published(group, group.flatten(before)), trained)
    assert made.dtype == np.float32
    assert np.array_equal(made, group.flatten(mixed_model(2)) - group.flatten(before))
    made[:] = 7
    assert np.array_equal(group.flatten(trained), group.flatten(mixed_model(2)))


def test_what_a_tensor_cannot_hold_of_a_published_value_is_no_difference() -> None:
    """A trainer that leaves a count of 2.4, which it saw as 2, has not changed it."""
    values = GROUP.flatten(mixed_model(1)) + np.float32(0.4)
    assert not difference(GROUP, published(GROUP, values), GROUP.unflatten(values)).any()


def test_a_scale_is_not_trained() -> None:
    group = GroupLayout("all", (TensorSpec("w", (2,), "float32"), SCALE), 3, 3)
    blocks = [np.array([1, 2, 0.5], np.float32)]
    assert difference(group, blocks, {"w": np.ones(2, np.float32)}).tolist() == [0, -1, 0]


def test_another_model_is_refused() -> None:
    trained = mixed_model(2)
    del trained["bias"]
    with pytest.raises(WrongShape, match="'bias' of group 'all' is missing"):
        difference(GROUP, [], trained)


# --- what is told of a cut ----------------------------------------------------------


CUT_PLAN = make_plan(group=[{"clip": 5.0, "rule": {"quorum": 3, "minimum": 2}}])
PAIR = Schema((TensorSpec("mean", (2,), "float32"), TensorSpec("weight", (2,), "float32")))
CUT_KINDS: dict[str, Kind] = {"mean": "statistics", "weight": "trained"}


def group() -> GroupLayout:
    return CUT_PLAN.layout(PAIR).group("all")


def values(*of: float) -> Any:
    return np.array(of, np.float32)


@pytest.mark.parametrize(
    "delta", [(0, 0, 0, 0), (0, 0, 1, 2), (0, 0, 3, 4), (900, -900, 3, 4)], ids=str
)
def test_an_update_that_passes_whole_is_not_told(
    delta: tuple[float, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Up to the very length of the clip, however long its running statistics are."""
    caplog.set_level(logging.DEBUG, logger="secureps")
    passed = clip_update(CUT_PLAN, group(), values(*delta), None, CUT_KINDS)
    tell_cuts("c0", "", group(), passed, 1.0, max(map(abs, delta)))
    assert passed.values.tolist() == list(delta)
    assert caplog.messages == []


CLIPPED = "c0: update norm 10, clip 5: cut to 50 %"
HOLDS = "in the plan's [[group]] holds it"
RANGED = (
    "1 of the update's 4 values are beyond range 3.5: cut to it, 1 of them in weight; the largest "
    f"is 4: range = 4 {HOLDS}"
)


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (None, CLIPPED),
        (6.0, f"{CLIPPED}; clip = 10 {HOLDS}"),
        (3.5, f"{CLIPPED}; {RANGED}; clip = 10 {HOLDS}"),
    ],
)
def test_what_clip_and_range_cut_is_one_line(
    most: float | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Under noise, which grows with the clip, no clip is named."""
    caplog.set_level(logging.DEBUG, logger="secureps")
    cut = clip_update(CUT_PLAN, group(), values(0, 0, 6, 8), None, CUT_KINDS)
    tell_cuts("c0", "", group(), cut, 1.0, most)
    assert caplog.messages == [told]


def test_no_clip_is_named_for_an_update_that_no_plan_should_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ids taken for inputs make updates of 1e12; the bits of so wide a grid say nothing."""
    caplog.set_level(logging.DEBUG, logger="secureps")
    cut = clip_update(CUT_PLAN, group(), values(0, 0, 6e11, 8e11), None, CUT_KINDS)
    tell_cuts("c0", "", group(), cut, 1.0, 2.0)
    (told,) = caplog.messages
    assert "clip =" not in told
    assert told.endswith("its inputs are not scaled, or its learning rate is too high")


@pytest.mark.parametrize(
    ("value", "range_"),
    [(4.6, "5"), (1.02, "2"), (0.513, "0.6"), (96, "100"), (1.2e6, "2e+06"), (3e-5, "3e-05")],
)
def test_the_range_that_is_named_holds_the_largest_value_after_the_clip(
    value: float, range_: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="secureps")
    tell_cuts("c0", "", group(), made_of(values(0, 0, 0, -value)), 1.0, 1e-6)
    assert f"the largest is {value:.3g}: range = {range_} in the plan's" in caplog.text
    assert float(range_) >= value
