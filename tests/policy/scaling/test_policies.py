"""The contract of every policy of `[scaling]`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.policy.plan import Plan
from secureps.policy.scaling.policies import Observation, Round, ScalingPolicy, Waits
from secureps.roles.coordinator.scaling import POLICIES
from tests.kits.loads import LIMITS, observed, scaled_plan
from tests.kits.streams import BUFFERED

SECONDS = st.floats(0.0, 1e6)
WAITS = st.builds(Waits, SECONDS, SECONDS, SECONDS, SECONDS)
ARRIVALS = st.lists(SECONDS, max_size=8).map(lambda came: tuple(sorted(came)))
ROUNDS = st.builds(Round, st.integers(8, 12), ARRIVALS, SECONDS)
SEEN = st.builds(
    observed,
    shards=st.integers(1, 5),
    spares=st.integers(0, 3),
    lost=st.floats(0.0, 1.0),
    waits=WAITS,
    rounds=st.lists(ROUNDS, max_size=3).map(tuple),
    deadline=st.floats(LIMITS["least_deadline"], LIMITS["most_deadline"]),
    buffer=st.floats(LIMITS["least_buffer"], 1.0),
)

pytestmark = pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))


PLANS = [scaled_plan(), scaled_plan(BUFFERED)]


@given(seen=SEEN, plan=st.sampled_from(PLANS))
def test_no_decision_goes_beyond_the_limits(
    policy: ScalingPolicy, seen: Observation, plan: Plan
) -> None:
    """Whatever transfer times clients report, and however far the run is from its plan."""
    now, done = len(seen.shards), policy(seen, plan)
    if done.what == "add-shard":
        assert now < LIMITS["most_shards"]
        assert done.shard == seen.spares[0]
    elif done.what:
        assert (done.what, done.shard) == ("drain-shard", seen.shards[-1])
        assert now > 1
    assert LIMITS["least_deadline"] <= done.deadline <= LIMITS["most_deadline"]
    assert LIMITS["least_buffer"] <= done.buffer <= 1


@given(seen=SEEN)
def test_the_same_load_is_decided_on_in_the_same_way_and_says_why(
    policy: ScalingPolicy, seen: Observation
) -> None:
    done = policy(seen, PLANS[0])
    assert policy(seen, PLANS[0]) == done
    assert done.reason


@pytest.mark.parametrize("waits", [Waits(1.0, 0.0, 0.0, 0.0), Waits(10.0, 8.0, 1.0, 0.0)])
def test_at_its_limits_nothing_changes(policy: ScalingPolicy, waits: Waits) -> None:
    shards = {"least_shards": 2, "most_shards": 2}
    fixed = scaled_plan(**shards, least_deadline=1.0, most_deadline=1.0, least_buffer=1.0)
    done = policy(observed(waits=waits, lost=0.5), fixed)
    assert (done.what, done.deadline, done.buffer) == ("", 1.0, 1.0)
