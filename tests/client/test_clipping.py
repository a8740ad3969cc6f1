"""What a clip or a range cuts off an update is told, and an update that passes whole is not."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest

from secureps.client.update import clip_update, tell_cuts
from secureps.messages.schema import Schema, TensorSpec
from secureps.model.layout import GroupLayout
from secureps.policy.tensor_kinds import Kind
from tests.kits.roles_kit import make_plan
from tests.kits.sealed_blocks import made_of, parts_of

PLAN = make_plan(group=[{"clip": 5.0, "rule": {"quorum": 3, "minimum": 2}}])
SCHEMA = Schema((TensorSpec("mean", (2,), "float32"), TensorSpec("weight", (2,), "float32")))
KINDS: dict[str, Kind] = {"mean": "statistics", "weight": "trained"}


def group() -> GroupLayout:
    return PLAN.layout(SCHEMA).group("all")


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
    passed = clip_update(PLAN, group(), parts_of(values(*delta)), None, KINDS)
    tell_cuts("c0", "", group(), passed, 1.0, max(map(abs, delta)))
    assert passed.whole().tolist() == list(delta)
    assert caplog.messages == []


CLIPPED = "c0: update norm 10, clip 5: cut to 50 %"
RANGED = (
    "1 of the update's 4 values are beyond range 3.5: cut to it, 1 of them in weight; the largest "
    "is 4: range = 4 in the plan's [[group]] holds it"
)


@pytest.mark.parametrize(
    ("share", "most", "told"),
    [
        (1.0, None, CLIPPED),
        (1.0, 9.0, f"{CLIPPED}; clip = 10 in the plan's [[group]] would hold the whole update"),
        (
            1.0,
            6.0,
            f"{CLIPPED}; clip = 10 and range = 8 in the plan's [[group]] would hold the whole "
            "update",
        ),
        (
            1.0,
            3.5,
            f"{CLIPPED}; then {RANGED}; clip = 10 and range = 8 in the plan's [[group]] would hold "
            "the whole update",
        ),
    ],
)
def test_what_clip_and_range_cut_is_one_line_that_does_not_contradict_itself(
    share: float, most: float | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A range that holds the clipped update holds less than the range beside a longer clip."""
    caplog.set_level(logging.DEBUG, logger="secureps")
    cut = clip_update(PLAN, group(), parts_of(values(0, 0, 6, 8)), None, KINDS)
    tell_cuts("c0", "", group(), cut, share, most)
    assert caplog.messages == [told]
    wide = make_plan(group=[{"clip": 10.0, "range": 8.0, "rule": {"quorum": 3, "minimum": 2}}])
    whole = clip_update(wide, group(), parts_of(values(0, 0, 6, 8)), None, KINDS)
    tell_cuts("c0", "", group(), whole, share, 8.0)
    assert caplog.messages == [told], "the plan that the line names cuts nothing"


def test_no_clip_is_named_for_an_update_that_no_plan_should_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ids taken for inputs make updates of 1e12; the bits of so wide a grid say nothing."""
    caplog.set_level(logging.DEBUG, logger="secureps")
    cut = clip_update(PLAN, group(), parts_of(values(0, 0, 6e11, 8e11)), None, KINDS)
    tell_cuts("c0", "", group(), cut, 1.0, 2.0)
    (told,) = caplog.messages
    assert "clip =" not in told
    assert told.endswith("its inputs are not scaled, or its learning rate is too high")


def test_a_range_alone_is_named_with_what_holds_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="secureps")
    tell_cuts("c0", "", group(), made_of(values(0, 0, 6, -8)), 0.5, 3.5)
    assert caplog.messages == [f"c0: {RANGED}"]


@pytest.mark.parametrize(
    ("value", "range_"),
    [(4.6, "5"), (1.02, "2"), (0.513, "0.6"), (96, "100"), (1.2e6, "2e+06"), (3e-5, "3e-05")],
)
def test_the_range_that_is_named_holds_the_largest_value_after_the_clip(
    value: float, range_: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="secureps")
    made = dataclasses.replace(made_of(values(0, 0, 0, -value)), largest=1e9)
    tell_cuts("c0", "", group(), made, 1.0, 1e-6)
    assert f"the largest is {value:.3g}: range = {range_} in the plan's" in caplog.text
    assert float(range_) >= value


def test_a_clip_counts_no_running_statistics() -> None:
    delta = parts_of(values(900, -900, 3, 4))
    assert clip_update(PLAN, group(), delta, None, KINDS).norm == 5
    assert clip_update(PLAN, group(), delta, None, {}).whole()[2] < 0.02
