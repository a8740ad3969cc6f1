"""Copies that a plan cannot have are refused before anybody trains."""

from __future__ import annotations

import pytest

from secureps.errors import PlanRefused
from tests.kits.federations import small_plan


def test_no_more_copies_than_shards() -> None:
    assert small_plan(shards=3, replicas=3).section.replicas == 3
    with pytest.raises(PlanRefused, match="raise shards to 3 or lower replicas"):
        small_plan(replicas=3)


def test_nobody_leaves_who_has_the_only_copy() -> None:
    assert small_plan(replicas=2, shards_wait=5.0).section.shards_wait == 5.0
    with pytest.raises(PlanRefused, match="shards_wait: without copies"):
        small_plan(shards_wait=5.0)


def test_one_copy_is_no_part_of_the_text() -> None:
    assert small_plan(replicas=1).text == small_plan().text
    assert small_plan(replicas=2).text != small_plan().text
