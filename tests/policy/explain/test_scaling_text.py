"""`secureps check` says what follows the load."""

from __future__ import annotations

from typing import Any

import pytest

from secureps.policy.explain.explanation import _scaling_words as scaling_words
from tests.kits.federations import small_plan


@pytest.mark.parametrize(
    ("scaling", "text"),
    [
        ({}, "scaling by fixed, at most once in 60 s: row-blocks move"),
        ({"balance": False}, "scaling by fixed, at most once in 60 s: nothing"),
        (
            {"policy": "fitted", "every": 5.0, "most_shards": 4, "least_deadline": 0.5},
            "scaling by fitted, at most once in 5 s: 1 to 4 shards, deadlines of 0.5 to 1 times, "
            "row-blocks move",
        ),
        (
            {"policy": "rule", "balance": False, "least_buffer": 0.25},
            "scaling by rule, at most once in 60 s: 1 to 2 shards, buffers of 0.25 to 1 times",
        ),
    ],
)
def test_what_may_follow_the_load_is_said(scaling: dict[str, Any], text: str) -> None:
    assert scaling_words(small_plan(scaling=scaling).section, 8)[0] == text


def test_more_shards_than_blocks_are_of_no_use() -> None:
    plan = small_plan(scaling={"policy": "rule", "most_shards": 4})
    _, second = scaling_words(plan.section, 3)
    assert "3 blocks" in second
    assert (
        "1 block, and a shard holds one at least: no more than 1 shard can"
        in scaling_words(plan.section, 1)[1]
    )
    assert scaling_words(small_plan().section, 1) == []
