"""What a shard says of successive means, and when it says nothing."""

from __future__ import annotations

from secureps.messages.evaluation import EVALUATION
from secureps.messages.requests import Figure
from secureps.service.shard.mean_samples import MeanSamples, wanted
from tests.kits.federations import small_plan


def said(figures: tuple[Figure, ...]) -> dict[str, float]:
    return {figure.name: figure.value for figure in figures}


def test_a_mean_is_told_with_its_distance_to_the_one_before() -> None:
    samples = MeanSamples()
    assert said(samples.figures("all", 1, {0: [3.0, 4.0], 2: [0.0]})) == {"mean_square": 25.0}
    own = said(samples.figures("all", 2, {0: [3.0, 2.0], 2: [1.0]}))
    assert own == {"mean_square": 14.0, "mean_change": 5.0}


def test_where_versions_or_blocks_are_others_there_is_no_distance() -> None:
    samples = MeanSamples()
    samples.figures("all", 1, {0: [3.0]})
    assert said(samples.figures("all", 3, {0: [2.0]})) == {"mean_square": 4.0}
    assert said(samples.figures("all", 4, {0: [2.0], 1: [1.0]})) == {"mean_square": 5.0}
    assert said(samples.figures("other", 5, {0: [2.0], 1: [1.0]})) == {"mean_square": 5.0}
    assert said(samples.figures("all", 5, {0: [2.0], 1: [1.0]}))["mean_change"] == 0.0


def test_what_is_too_large_for_a_figure_is_not_said() -> None:
    assert MeanSamples().figures("all", 1, {0: [1e9]}) == ()


def test_means_are_kept_where_a_plan_follows_the_load_alone() -> None:
    assert not wanted(small_plan("plain"), "all")
    plan = small_plan("plain", scaling={"policy": "fitted"})
    assert wanted(plan, "all")
    assert not wanted(plan, EVALUATION)
