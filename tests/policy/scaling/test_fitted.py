"""The model predicts the effect of other settings, and the best change is made."""

from dataclasses import replace

import pytest

from secureps.policy.scaling.policies import (
    Round,
    Waits,
    decide_by_model,
    decide_by_thresholds,
    predict_reward,
)
from tests.kits.loads import LIMITS, observed

STRAGGLERS = (Round(10, (1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 18.0, 19.0), 19.0),) * 4
"""Two of ten take fifteen times as long as the others."""
CROWDED = Waits(clients=10.0, transfer=8.0, shards=1.0, holders=0.0)


def test_rounds_are_foretold_from_who_was_here_when() -> None:
    seen = observed(rounds=STRAGGLERS)
    assert predict_reward(seen, LIMITS, 1.0) == pytest.approx(10 / 19)
    promised = predict_reward(seen, LIMITS, 0.25)
    assert promised == pytest.approx(7 / 5 * 0.7), "two late, and one after them"


def test_a_round_below_the_quorum_goes_on_for_another_deadline() -> None:
    few = observed(rounds=(Round(10, (1.0, 1.0, 6.0, 6.0, 6.0), 20.0),))
    assert predict_reward(few, LIMITS, 0.25) == pytest.approx(5 / 10 * 0.5)


def test_who_waits_for_two_of_ten_takes_a_shorter_deadline() -> None:
    action = decide_by_model(observed(rounds=STRAGGLERS), LIMITS)
    assert action.deadline == 0.25
    assert action.reason.startswith("a deadline of 5 s: ")
    several = decide_by_model(observed(rounds=STRAGGLERS), replace(LIMITS, group="wide"))
    words = "deadlines of 0.25 times the plan's, of wide 5 s: "
    assert several == replace(action, reason=action.reason.replace("a deadline of 5 s: ", words))


def test_where_updates_take_long_on_their_way_a_shard_comes() -> None:
    action = decide_by_model(observed(waits=CROWDED), LIMITS)
    assert action.shards == 3
    assert "82% of a version is spent on shards, above 40%" in action.reason


@pytest.mark.parametrize(("seconds", "shards"), [(0.0, 1), (0.5, 2)])
def test_a_shard_that_brings_nothing_is_given_back(seconds: float, shards: int) -> None:
    waits = Waits(clients=10.0, transfer=seconds, shards=0.0, holders=0.0)
    assert decide_by_model(observed(waits=waits), LIMITS).shards == shards


def test_clients_that_did_not_come_are_taken_to_come_later_than_their_round_closed() -> None:
    """A longer deadline then promises some of them, and one just as long none."""
    half = observed(rounds=(Round(10, (1.0, 2.0, 3.0, 4.0, 5.0), 20.0),))
    now, longer = (predict_reward(half, LIMITS, factor) for factor in (1.0, 4.0))
    assert now == pytest.approx(5 / 10 * 5 / 20)
    assert longer > now


def test_without_rounds_thresholds_decide() -> None:
    seen = observed(rounds=(), lost=0.5, buffer=0.5)
    assert decide_by_model(seen, LIMITS) == decide_by_thresholds(seen, LIMITS)
