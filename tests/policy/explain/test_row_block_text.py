"""`secureps check` counts the row-blocks that too few clients touch."""

from __future__ import annotations

from collections import Counter

from secureps.policy.explain.explanation import row_block_words, touched_by_few
from tests.kits.federations import small_plan
from tests.kits.shoppers import BUFFERED, TASTES, sparse_plan


def test_row_blocks_that_too_few_touch_are_counted() -> None:
    plan = sparse_plan("plain", BUFFERED)
    touching = Counter(f"table.{block}" for tastes in TASTES for block in tastes)
    few = touched_by_few(plan, touching)
    assert few == {"table.3"}
    (said,) = row_block_words(plan, few)
    assert said.startswith("1 of 4 row-blocks of table are touched by fewer than 3 clients")
    del touching["table.1"]
    assert touched_by_few(plan, touching) == {"table.1", "table.3"}, "none touches it"


def test_without_any_there_is_nothing_to_say() -> None:
    plan = sparse_plan("plain", BUFFERED)
    assert list(row_block_words(plan, touched_by_few(plan, Counter(plan.groups * 3)))) == []
    assert list(row_block_words(small_plan(), touched_by_few(small_plan(), {}))) == []
