"""A group's scale is moved by its adaptive clip, or by its range, or it has none."""

from __future__ import annotations

from secureps.codec.grid import MovingRange
from secureps.policy.groups import scale_mover
from tests.kits.federations import small_plan
from tests.kits.privacy_kit import adaptive_plan


def test_a_plan_says_what_moves() -> None:
    codec = ["rotate", {"name": "round", "length": "mean_norm"}]
    rule = {"quorum": 6}
    follows = small_plan(group=[{"rule": rule, "clip": 4.0, "codec": codec}])
    assert scale_mover(follows, "all", 400) == MovingRange(4.0, follows.grid("all", 400).range)
    assert scale_mover(small_plan(), "all") is None
    adaptive = adaptive_plan("local", "plain")
    assert scale_mover(adaptive, "all") == adaptive.adaptive("all") is not None
