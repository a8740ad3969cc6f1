"""`secureps check` says what a codec sends, and what becomes of the rest."""

from __future__ import annotations

from typing import Any

from secureps.model.layout import GroupLayout
from secureps.policy.explain.codec_text import codec_words
from tests.kits.federations import small_plan

SUPPORT = {"name": "support", "one_in": 4}


def words(**group: Any) -> tuple[str, ...]:
    plan = small_plan(group=[{"rule": {"quorum": 6}} | group])
    layout = GroupLayout("all", (), 1600, 800, None, 1, plan.group("all").one_in)
    return tuple(codec_words(plan, layout, "all: "))


def test_nothing_is_said_of_a_group_without_one() -> None:
    assert words() == ()


def test_what_is_sent_and_what_is_kept() -> None:
    sent, kept = words(codec=[SUPPORT, "rotate", "round"], clip=4.0, bits=4, feedback=True)
    assert sent == (
        "all: of 1,600 values an update sends 400, rotated, each as one of 15 integers within +-0.3"
    )
    assert "in the clear: 6,400 bytes" in kept


def test_who_keeps_nothing_is_told_what_that_costs() -> None:
    sent, stands = words(codec=[SUPPORT], range=1.0)
    assert "sends 400 each as one of 65,535 integers within +-1" in sent
    assert "stands for 4" in stands
