"""No decision of any policy goes beyond the limits."""

from __future__ import annotations

import pytest

from secureps.policy.scaling.policies import Action, choose_deed, clamp_action, stay
from tests.kits.loads import LIMITS, observed


@pytest.mark.parametrize("shards", [4, 5, 8])
def test_a_shard_that_an_operator_added_beyond_the_most_stays(shards: int) -> None:
    seen = observed(shards=shards, spares=1)
    assert choose_deed(clamp_action(stay(seen, "fixed"), seen, LIMITS), seen) == ("", "")
    wanted = Action(shards + 1, 1.0, 1.0, "because")
    assert choose_deed(clamp_action(wanted, seen, LIMITS), seen) == ("", "")


@pytest.mark.parametrize(
    ("shards", "what"),
    [(3, ("add-shard", "shard-2")), (2, ("", "")), (1, ("drain-shard", "shard-1"))],
)
def test_one_more_shard_is_the_first_spare_and_one_less_the_last(
    shards: int, what: tuple[str, str]
) -> None:
    seen = observed(shards=2, spares=2)
    assert choose_deed(Action(shards, 1.0, 1.0, "because"), seen) == what
