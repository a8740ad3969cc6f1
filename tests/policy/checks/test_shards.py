"""The numbers of shards and copies that a plan may have."""

from typing import Any

import pytest

from secureps.errors import PlanRefused
from tests.kits.federations import small_plan


def test_no_more_copies_than_shards() -> None:
    assert small_plan(shards=3, replicas=3).section.replicas == 3
    with pytest.raises(PlanRefused, match="raise shards to 3 or lower replicas"):
        small_plan(replicas=3)


def test_one_copy_is_no_part_of_the_text() -> None:
    assert small_plan(replicas=1).text == small_plan().text
    assert small_plan(replicas=2).text != small_plan().text


@pytest.mark.parametrize(
    ("scaling", "changes", "text"),
    [
        ({"most_shards": 1}, {}, "begins with shards = 2, and they are to be 1 to 1: lower it"),
        ({"least_shards": 3, "most_shards": 4}, {}, "to be 3 to 4: raise it, or lower scaling.l"),
        ({}, {"replicas": 2}, "least_shards = 1: every block lies on 2 shards"),
    ],
)
def test_what_cannot_be_is_refused(
    scaling: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(PlanRefused, match=text):
        small_plan(scaling=scaling, **changes)


def test_the_most_shards_are_the_plan_s_where_nobody_says() -> None:
    assert small_plan().section.most_shards == 2
    assert small_plan(scaling={}).section.most_shards == 2
    assert small_plan(scaling={"most_shards": 5}).section.most_shards == 5
