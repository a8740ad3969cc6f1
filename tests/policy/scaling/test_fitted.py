"""The model predicts the effect of other settings, and the best change is made."""

import pytest

from secureps.config.plan import SyncSection
from secureps.policy.scaling.policies import (
    Round,
    Waits,
    decide_by_model,
    decide_by_thresholds,
    predict_reward,
)
from tests.kits.loads import ROUNDS, observed, scaled_plan
from tests.kits.shoppers import sparse_plan
from tests.kits.streams import BUFFERED

STRAGGLERS = (Round(10, (1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 18.0, 19.0), 19.0),) * 4
"""Two of ten take fifteen times as long as the others."""
CROWDED = Waits(clients=10.0, transfer=8.0, shards=1.0, holders=0.0)
PLAN, RULE = scaled_plan(), SyncSection.model_validate(ROUNDS)


def test_rounds_are_foretold_from_who_was_here_when() -> None:
    seen = observed(rounds=STRAGGLERS)
    assert predict_reward(seen, RULE, 1.0) == pytest.approx(10 / 19)
    promised = predict_reward(seen, RULE, 0.25)
    assert promised == pytest.approx(7 / 5 * 0.7), "two late, and one after them"


def test_a_round_below_the_quorum_goes_on_for_another_deadline() -> None:
    few = observed(rounds=(Round(10, (1.0, 1.0, 6.0, 6.0, 6.0), 20.0),))
    assert predict_reward(few, RULE, 0.25) == pytest.approx(5 / 10 * 0.5)


def test_who_waits_for_two_of_ten_takes_a_shorter_deadline() -> None:
    action = decide_by_model(observed(rounds=STRAGGLERS), PLAN)
    assert action.deadline == 0.25
    assert action.reason.startswith("a deadline of 5 s: ")
    several = sparse_plan("plain", ROUNDS, scaling={"least_deadline": 0.25})
    told = decide_by_model(observed(rounds=STRAGGLERS), several)
    assert told.reason.startswith("deadlines of 0.25 times the plan's, of table 5 s: ")


def test_where_updates_take_long_on_their_way_a_shard_comes() -> None:
    action = decide_by_model(observed(waits=CROWDED), PLAN)
    assert (action.what, action.shard) == ("add-shard", "shard-2")
    assert "82% of a version is spent on shards, above 40%" in action.reason


@pytest.mark.parametrize(("seconds", "what"), [(0.0, "drain-shard"), (0.5, "")])
def test_a_shard_that_brings_nothing_is_given_back(seconds: float, what: str) -> None:
    waits = Waits(clients=10.0, transfer=seconds, shards=0.0, holders=0.0)
    assert decide_by_model(observed(waits=waits), PLAN).what == what


def test_clients_that_did_not_come_are_taken_to_come_later_than_their_round_closed() -> None:
    """A longer deadline then promises some of them, and one just as long none."""
    half = observed(rounds=(Round(10, (1.0, 2.0, 3.0, 4.0, 5.0), 20.0),))
    now, longer = (predict_reward(half, RULE, factor) for factor in (1.0, 4.0))
    assert now == pytest.approx(5 / 10 * 5 / 20)
    assert longer > now


def test_without_rounds_thresholds_decide() -> None:
    seen, plan = observed(rounds=(), lost=0.5, buffer=0.5), scaled_plan(BUFFERED)
    assert decide_by_model(seen, plan) == decide_by_thresholds(seen, plan)
