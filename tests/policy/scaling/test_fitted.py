"""The model predicts the effect of other settings, and the best change is made."""

from dataclasses import replace

import pytest

from secureps.policy.scaling.policies import (
    STAYS,
    Model,
    Round,
    Waits,
    decide_by_model,
    decide_by_thresholds,
)
from tests.kits.loads import LIMITS, decided, observed

STRAGGLERS = (Round(10, (1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 18.0, 19.0), 19.0),) * 4
"""Two of ten take fifteen times as long as the others."""
CROWDED = Waits(clients=10.0, transfer=8.0, shards=1.0, holders=0.0)


def test_rounds_are_foretold_from_who_was_here_when() -> None:
    model = Model(observed(rounds=STRAGGLERS), LIMITS)
    assert model.reward(2, 1.0) == pytest.approx(10 / 19)
    assert model.reward(2, 0.25) == pytest.approx(7 / 5 * 0.7), "two late, and one after them"


def test_a_round_below_the_quorum_goes_on_for_another_deadline() -> None:
    few = (Round(10, (1.0, 1.0, 6.0, 6.0, 6.0), 20.0),)
    limits = LIMITS
    model = Model(observed(rounds=few), limits)
    assert model.reward(2, 0.25) == pytest.approx(5 / 10 * 0.5)


@pytest.mark.parametrize("said", [1e9, 1e15])
def test_a_transfer_that_nobody_can_have_measured_holds_nothing_up(said: float) -> None:
    """Clients report it: draining a shard would then predict a round of very many deadlines."""
    seen = observed(waits=Waits(clients=10.0, transfer=said, shards=0.0, holders=0.0))
    assert Model(seen, LIMITS).reward(1, 1.0) > 0
    action = decide_by_model(seen, (), LIMITS)
    assert 1 <= action.shards <= LIMITS.most_shards


def test_who_waits_for_two_of_ten_takes_a_shorter_deadline() -> None:
    action = decide_by_model(observed(rounds=STRAGGLERS), (), LIMITS)
    assert action.deadline == 0.25
    assert action.reason.startswith("a deadline of 5 s: ")
    several = decide_by_model(observed(rounds=STRAGGLERS), (), replace(LIMITS, group="wide"))
    words = "deadlines of 0.25 times the plan's, of wide 5 s: "
    assert several == replace(action, reason=action.reason.replace("a deadline of 5 s: ", words))


def test_where_updates_take_long_on_their_way_a_shard_comes() -> None:
    action = decide_by_model(observed(waits=CROWDED), (), LIMITS)
    assert action.shards == 3
    assert "3 shards instead of 2" in action.reason


def test_four_row_blocks_are_no_better_spread_over_three_shards_and_over_four() -> None:
    seen = observed(spares=2, waits=CROWDED, blocks=4)
    action = decide_by_model(seen, (), LIMITS)
    assert action.shards == 3
    assert action.reason.startswith("3 shards instead of 2, and 4 in the end: 1.43")
    assert decide_by_model(observed(shards=3, waits=CROWDED, blocks=4), (), LIMITS).shards == 4
    assert decide_by_model(observed(waits=CROWDED, blocks=4), (), LIMITS).shards != 3
    few = observed(shards=3, spares=0, waits=CROWDED, blocks=4)
    assert decide_by_model(few, (), LIMITS).shards == 2, "it brings nothing"


def test_a_shard_that_brings_nothing_is_given_back() -> None:
    action = decide_by_model(observed(), (), LIMITS)
    assert action.shards == 1


def test_a_shard_that_has_come_stays_for_a_while() -> None:
    came = decided(what="add-shard", shard="shard-1")
    for since in range(STAYS + 1):
        action = decide_by_model(observed(), (came, *[decided()] * since), LIMITS)
        assert action.shards == (2 if since < STAYS else 1)


def test_clients_that_did_not_come_are_taken_to_come_later_than_their_round_closed() -> None:
    """A longer deadline then promises some of them, and one just as long none."""
    half = observed(rounds=(Round(10, (1.0, 2.0, 3.0, 4.0, 5.0), 20.0),))
    model = Model(half, LIMITS)
    now, longer = (model.reward(2, factor) for factor in (1.0, 4.0))
    assert now == pytest.approx(5 / 10 * 5 / 20)
    assert longer > now


def test_without_rounds_thresholds_decide() -> None:
    seen = observed(rounds=(), lost=0.5, buffer=0.5)
    assert decide_by_model(seen, (), LIMITS) == decide_by_thresholds(seen, (), LIMITS)
