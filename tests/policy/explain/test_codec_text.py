"""`secureps check` says what a codec sends, and what becomes of the rest."""

import math
import re
from typing import Any

import numpy as np
import pytest

from secureps.model.layout import GroupLayout
from secureps.policy.explain.explanation import codec_words
from tests.kits.explained import explain
from tests.kits.federations import small_plan

SUPPORT = {"name": "support", "one_in": 4}


def said_of(**group: Any) -> tuple[str, ...]:
    plan = small_plan(group=[{"rule": {"quorum": 6}} | group])
    layout = GroupLayout("all", (), 1600, 800, None, plan.group("all").one_in)
    return tuple(codec_words(plan, layout, "all: "))


def test_nothing_is_said_of_a_group_without_one() -> None:
    assert said_of() == ()


def test_what_is_sent_and_what_is_kept() -> None:
    sent, noise, kept = said_of(codec=[SUPPORT, "rotate", "round"], clip=4.0, bits=4, feedback=True)
    assert sent == (
        "all: of 1,600 values an update sends 400, rotated, each as one of 15 integers within +-0.3"
    )
    said = "all: rounding adds noise 17% as long as an update of the clip's length, 8% in the mean"
    assert noise == f"{said} of 5"
    assert "in the clear: 6,400 bytes" in kept


@pytest.mark.parametrize("deviations", [0.5, 3.0, 30.0, 1000.0])
def test_the_noise_of_rounding_is_that_of_rounding(
    deviations: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of normal values as long as the clip, which a range that fits does not cut off."""
    monkeypatch.setattr("secureps.policy.plan.DEVIATIONS", deviations)
    plan = small_plan(
        group=[{"rule": {"quorum": 6}, "codec": ["rotate", "round"], "clip": 4.0, "bits": 6}]
    )
    values = 1 << 16
    layout = GroupLayout("all", (), values, values)
    grid, rng = plan.grid("all", values), np.random.default_rng(1)
    x = np.clip(rng.standard_normal(values) * (4 / math.sqrt(values)), -grid.range, grid.range)
    rounded = grid.encode(x, rng.integers(0, 1 << 32, values, dtype=np.uint32))
    noise = np.linalg.norm((rounded - grid.most) * grid.step - x) / 4
    _, said, *_ = codec_words(plan, layout, "")
    percent = re.search(r"noise (\d+)%", said)
    assert percent is not None
    assert int(percent[1]) == pytest.approx(100 * noise, rel=0.2, abs=1)


def test_a_grid_that_is_too_coarse_for_its_range_is_told() -> None:
    (coarse,) = said_of(clip=4.0, bits=3)
    assert "take more bits, or rotate and round" in coarse
    assert said_of(clip=4.0, bits=16) == ()


def test_a_range_that_moves_is_told() -> None:
    follows = {"name": "round", "length": "mean_norm"}
    _, moves, *_ = said_of(codec=["rotate", follows], clip=4.0, bits=4)
    assert moves.startswith("all: the range is that of version 0, and follows the mean norm")


def test_who_keeps_nothing_is_told_what_that_costs() -> None:
    sent, stands = said_of(codec=[SUPPORT], range=1.0)
    assert "sends 400 each as one of 65,535 integers within +-1" in sent
    assert "stands for 4" in stands


def test_what_clients_pull() -> None:
    (pulled,) = said_of(pull_bits=4, range=1.0)
    each = 2 * (2 + 400)
    assert pulled == (
        f"all: clients pull what changed since the version that they have, {each} bytes a version, "
        "and the whole, 6,400 bytes, when they begin or are 8 versions behind or more; a shard "
        "keeps what was rounded off for the next version"
    )
    plan = small_plan(group=[{"rule": {"quorum": 6}, "pull_bits": 4, "range": 1.0}])
    down = explain(plan, {"all": 1600}).groups[0].bytes_down
    assert down is not None
    assert down < 1000
