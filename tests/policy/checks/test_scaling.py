"""Plans whose `[scaling]` cannot be: what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from secureps.errors import PlanRefused
from secureps.policy.checks.scaling import most_shards
from tests.kits.federations import small_plan


@pytest.mark.parametrize(
    ("scaling", "changes", "text"),
    [
        ({"most_shards": 1}, {}, "begins with shards = 2, and they are to be 1 to 1: lower it"),
        (
            {"least_shards": 3, "most_shards": 4},
            {},
            "they are to be 3 to 4: raise it, or lower scaling.l",
        ),
        ({}, {"replicas": 2}, "least_shards = 1: every block lies on 2 shards"),
    ],
)
def test_what_cannot_be_is_refused(
    scaling: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(PlanRefused, match=text):
        small_plan(scaling=scaling, **changes)


def test_the_most_shards_are_the_plan_s_where_nobody_says() -> None:
    assert most_shards(small_plan().section) == 2
    assert most_shards(small_plan(scaling={}).section) == 2
    assert most_shards(small_plan(scaling={"most_shards": 5}).section) == 5
