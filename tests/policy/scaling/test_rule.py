"""The policy by thresholds, the one that changes nothing, and the limits of every policy."""

from typing import Any

import pytest

from secureps.policy.scaling.policies import (
    Round,
    Waits,
    act_within,
    decide_by_thresholds,
    decide_nothing,
)
from tests.kits.loads import observed, scaled_plan
from tests.kits.streams import BUFFERED

PLAN = scaled_plan()
BUSY = Waits(clients=10.0, transfer=5.0, shards=0.0, holders=0.0)
CALM = Waits(clients=10.0, transfer=2.0, shards=0.0, holders=0.0)
LATE = (Round(10, (1.0,) * 6, 20.0),)


@pytest.mark.parametrize(
    ("changes", "shards", "deadline", "buffer", "why"),
    [
        ({"waits": BUSY, "rounds": LATE}, 3, 1.0, 1.0, "50% of a version is spent on shards"),
        ({"rounds": LATE}, 1, 1.0, 1.0, "0% of a version is spent on shards, below 10%"),
        ({"waits": CALM, "rounds": LATE}, 2, 1.0, 1.0, "20% of a version is spent on shards"),
        ({"waits": CALM, "rounds": LATE, "lost": 0.3}, 2, 1.25, 1.0, "30% of the work is lost"),
        (
            {"waits": CALM, "rounds": (Round(9, (1.0,), 9.0),)},
            2,
            0.8,
            1.0,
            "all are here within",
        ),
        ({"waits": CALM, "rounds": ()}, 2, 1.0, 0.8, "versions wait long for a full buffer"),
    ],
)
def test_what_is_above_or_below_a_threshold_has_a_step_follow(
    changes: dict[str, Any], shards: int, deadline: float, buffer: float, why: str
) -> None:
    plan = PLAN if changes.get("rounds") else scaled_plan(BUFFERED | {"deadline": 20.0})
    action = decide_by_thresholds(observed(**changes), plan)
    wanted = {3: ("add-shard", "shard-2"), 2: ("", ""), 1: ("drain-shard", "shard-1")}
    assert (action.what, action.shard) == wanted[shards]
    assert (action.deadline, action.buffer) == (deadline, buffer)
    assert why in action.reason


def test_nothing_changes_by_the_fixed_policy() -> None:
    assert decide_nothing(observed(waits=BUSY, lost=0.9), PLAN).what == ""


@pytest.mark.parametrize("shards", [4, 5, 8])
def test_a_shard_that_an_operator_added_beyond_the_most_stays(shards: int) -> None:
    seen = observed(shards=shards, spares=1)
    for more in (0, 1):
        assert act_within(PLAN, seen, more, 1.0, 1.0, "because").what == ""
