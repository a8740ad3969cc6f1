"""What no decision of a policy goes beyond, whatever policy it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.policy.scaling.policies import Action, buffer_of, deed, stay, within
from tests.kits.loads import LIMITS, observed

ACTIONS = st.builds(
    Action,
    st.integers(-5, 9),
    st.floats(0.001, 1000),
    st.floats(0.001, 1000),
    st.just("because"),
)


@given(ACTIONS, st.integers(1, 4), st.integers(0, 3))
def test_an_action_stays_within_the_limits(wanted: Action, shards: int, spares: int) -> None:
    seen = observed(shards=shards, spares=spares)
    done = within(wanted, seen, LIMITS)
    assert abs(done.shards - shards) <= 1
    assert done.shards <= max(shards, LIMITS.most_shards)
    assert done.shards >= min(shards, LIMITS.least_shards)
    assert done.shards <= shards + spares
    assert LIMITS.least_deadline <= done.deadline <= LIMITS.most_deadline
    assert LIMITS.minimum <= buffer_of(LIMITS, done.buffer) <= LIMITS.buffer
    assert within(done, seen, LIMITS) == done


@pytest.mark.parametrize("shards", [4, 5, 8])
def test_a_shard_that_an_operator_added_beyond_the_most_stays(shards: int) -> None:
    seen = observed(shards=shards, spares=1)
    assert deed(within(stay(seen, "fixed"), seen, LIMITS), seen) == ("", "")
    wanted = Action(shards + 1, 1.0, 1.0, "because")
    assert deed(within(wanted, seen, LIMITS), seen) == ("", "")


@pytest.mark.parametrize(
    ("shards", "what"),
    [(3, ("add-shard", "shard-2")), (2, ("", "")), (1, ("drain-shard", "shard-1"))],
)
def test_one_more_shard_is_the_first_spare_and_one_less_the_last(
    shards: int, what: tuple[str, str]
) -> None:
    seen = observed(shards=2, spares=2)
    assert deed(Action(shards, 1.0, 1.0, "because"), seen) == what


def test_nothing_changes_by_staying() -> None:
    seen = observed(shards=2, spares=1)
    assert within(stay(seen, "why"), seen, LIMITS) == stay(seen, "why")
    assert deed(stay(seen, "why"), seen) == ("", "")
