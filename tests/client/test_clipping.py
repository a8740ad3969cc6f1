"""What a clip or a range cuts off an update is told, and an update that passes whole is not."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest

from secureps.client.clipping import clip_update, tell_range
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
    passed = clip_update("c0", PLAN, group(), parts_of(values(*delta)), None, KINDS)
    tell_range("c0", "", group(), passed, 1.0, max(map(abs, delta)))
    assert passed.whole().tolist() == list(delta)
    assert caplog.messages == []


def test_an_update_that_is_cut_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="secureps")
    cut = clip_update("c0", PLAN, group(), parts_of(values(900, -900, 6, 8)), None, KINDS)
    assert cut.whole().tolist() == pytest.approx([900, -900, 3, 4])
    tell_range("c0", "", group(), made_of(values(0, 0, 6, -8)), 0.5, 3.5)
    assert caplog.messages == [
        "c0: update norm 10, clip 5: cut to 50 %",
        "c0: 1 of the update's 4 values are beyond range 3.5: cut to it, 1 of them in weight; the "
        "largest is 4: range = 4 in the plan's [[group]] holds it",
    ]


@pytest.mark.parametrize(
    ("value", "range_"),
    [(4.6, "5"), (1.02, "2"), (0.513, "0.6"), (96, "100"), (1.2e6, "2e+06"), (3e-5, "3e-05")],
)
def test_the_range_that_is_named_holds_the_largest_value_after_the_clip(
    value: float, range_: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="secureps")
    made = dataclasses.replace(made_of(values(0, 0, 0, -value)), largest=1e9)
    tell_range("c0", "", group(), made, 1.0, 1e-6)
    assert f"the largest is {value:.3g}: range = {range_} in the plan's" in caplog.text
    assert float(range_) >= value


def test_a_clip_counts_no_running_statistics() -> None:
    delta = parts_of(values(900, -900, 3, 4))
    assert clip_update("c0", PLAN, group(), delta, None, KINDS).norm == 5
    assert clip_update("c0", PLAN, group(), delta, None, {}).whole()[2] < 0.02
