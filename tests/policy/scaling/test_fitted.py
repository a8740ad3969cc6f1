"""The model foretells what other settings make, and is corrected by what came of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from secureps.policy.scaling.fitted import Fitted, Model, _lognormal, _stretches, _whole
from secureps.policy.scaling.observation import KEPT, Round, Waits
from tests.kits.loads import LIMITS, decided, observed

STRAGGLERS = (Round(10, (1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 18.0, 19.0), 19.0),) * 4
"""Two of ten take fifteen times as long as the others."""
CROWDED = Waits(clients=10.0, transfer=8.0, shards=1.0, holders=0.0)


def test_rounds_are_foretold_from_who_was_here_when() -> None:
    model = Model(observed(rounds=STRAGGLERS), LIMITS)
    assert model.reward(2, 1.0, 1.0) == pytest.approx(10 / 19)
    assert model.reward(2, 0.25, 1.0) == pytest.approx(7 / 5 * 0.7), "two late, and one after them"


def test_a_round_below_the_quorum_goes_on_for_another_deadline() -> None:
    few = (Round(10, (1.0, 1.0, 6.0, 6.0, 6.0), 20.0),)
    limits = LIMITS
    model = Model(observed(rounds=few), limits)
    assert model.reward(2, 0.25, 1.0) == pytest.approx(5 / 10 * 0.5)


@pytest.mark.parametrize("said", [1e9, 1e15])
def test_a_transfer_that_nobody_can_have_measured_holds_nothing_up(said: float) -> None:
    """Clients say it: giving a shard back would make of it a round of so many deadlines."""
    seen = observed(waits=Waits(clients=10.0, transfer=said, shards=0.0, holders=0.0))
    assert Model(seen, LIMITS).reward(1, 1.0, 1.0) > 0
    action = Fitted().decide(seen, (), LIMITS)
    assert 1 <= action.shards <= LIMITS.most_shards


def test_who_waits_for_two_of_ten_takes_a_shorter_deadline() -> None:
    action = Fitted().decide(observed(rounds=STRAGGLERS), (), LIMITS)
    assert action.deadline == 0.25
    assert action.expected > 1.8
    assert action.reason.startswith("a deadline of 5 s: ")
    several = Fitted().decide(observed(rounds=STRAGGLERS), (), replace(LIMITS, group="wide"))
    words = "deadlines of 0.25 times the plan's, of wide 5 s: "
    assert several == replace(action, reason=action.reason.replace("a deadline of 5 s: ", words))


def test_where_updates_take_long_on_their_way_a_shard_comes() -> None:
    action = Fitted().decide(observed(waits=CROWDED), (), LIMITS)
    assert action.shards == 3
    assert "3 shards instead of 2" in action.reason


def test_four_row_blocks_are_no_better_spread_over_three_shards_and_over_four() -> None:
    seen = observed(spares=2, waits=CROWDED, blocks=4)
    action = Fitted().decide(seen, (), LIMITS)
    assert action.shards == 3
    assert action.reason.startswith("3 shards instead of 2, and 4 in the end: 1.43")
    assert action.expected == pytest.approx(1.0), "of this step alone"
    assert Fitted().decide(observed(shards=3, waits=CROWDED, blocks=4), (), LIMITS).shards == 4
    assert Fitted().decide(observed(waits=CROWDED, blocks=4), (), LIMITS).shards != 3
    few = observed(shards=3, spares=0, waits=CROWDED, blocks=4)
    assert Fitted().decide(few, (), LIMITS).shards == 2, "it brings nothing"


def test_the_last_of_a_queue_gains_the_most_by_another_shard() -> None:
    ways = tuple(0.8 * at for at in range(1, 11))
    queued = Model(observed(waits=CROWDED, ways=ways), LIMITS)
    alike = Model(observed(waits=CROWDED, ways=(4.4,) * 10), LIMITS)
    assert queued.reward(4, 1.0, 1.0) > 1.1 * alike.reward(4, 1.0, 1.0)


def test_no_deadline_is_shorter_than_the_queue_at_a_shard() -> None:
    waits = Waits(clients=10.0, transfer=5.0, shards=0.0, holders=0.0, queue=9.0)
    model = Model(observed(waits=waits), LIMITS)
    free = Model(observed(), LIMITS)
    assert free.reward(2, 0.4, 1.0) == pytest.approx(7 / 8 * 0.7)
    assert model.reward(2, 0.4, 1.0) == pytest.approx(7 / 9 * 0.7)


def test_updates_beyond_the_noise_scale_count_for_less() -> None:
    """With a tenth of a cohort's size as noise scale, half of it is worth nearly as much."""
    seen = observed(rounds=STRAGGLERS, noise=1.0)
    model = Model(seen, LIMITS)
    assert model.reward(2, 0.25, 1.0) == pytest.approx(7 / 8 / 5 * 0.7)
    assert model.reward(2, 1.0, 1.0) == pytest.approx(10 / 11 / 19)


def test_a_change_is_judged_by_all_that_was_measured_while_it_stood() -> None:
    before = [
        decided(deadline=0.5, expected=1.2, reward=1.0),
        decided(deadline=0.5, reward=1.2),
        decided(deadline=0.5, reward=0.6),
        decided(deadline=0.5, reward=0.6),
    ]
    first, second = _stretches(before)
    assert (first.setting, first.reward, first.expected) == ((2.0, 1.0, 1.0), 1.0, 1.2)
    assert second.setting == (2.0, 0.5, 1.0)
    assert second.reward == pytest.approx(0.8)
    theta, _ = Fitted()._learned(before)
    missed = math.log(0.8) - math.log(1.2)
    assert theta == pytest.approx([0, -missed / 3, 0, missed / 3]), "by halving, and by any change"


def test_what_was_in_force_before_all_that_is_known_is_no_stretch() -> None:
    """Of the oldest decision that is kept nobody knows what it was made under."""
    row = decided(deadline=0.5)
    assert [each.setting[1] for each in _stretches([row] * (KEPT - 1))] == [1.0, 0.5]
    assert [each.setting[1] for each in _stretches([row] * KEPT)] == [0.5]


def test_a_shard_that_brings_nothing_is_given_back() -> None:
    action = Fitted().decide(observed(), (), LIMITS)
    assert action.shards == 1


def test_what_disappointed_twice_is_not_tried_again() -> None:
    seen, before = observed(waits=CROWDED), []
    for _ in range(3):
        before += [
            decided(what="add-shard", shard="shard-2", expected=1.5, reward=1.0, shards=2),
            decided(what="drain-shard", shard="shard-2", expected=1.0, reward=0.6, shards=3),
        ]
    before += [decided(shards=2)]
    assert Fitted().decide(seen, (), LIMITS).shards == 3
    assert Fitted().decide(seen, before, LIMITS).shards < 3


def test_a_smaller_buffer_is_foretold_to_make_staler_updates() -> None:
    seen = observed(rounds=(), updates=100, versions=5, live=20)
    model = Model(seen, LIMITS)
    assert model.reward(2, 1.0, 1.0) > 0
    big, small = model._of_streams(20, 1.0, 0.0), model._of_streams(5, 1.0, 0.0)
    assert big != small


def test_those_who_did_not_come_are_put_behind_the_end_of_their_round() -> None:
    ((asked, arrivals),) = _whole((Round(6, (1.0, 2.0, 3.0, 4.0), 5.0),))
    assert asked == 6
    assert arrivals[:4] == (1.0, 2.0, 3.0, 4.0)
    assert all(at >= 5.0 for at in arrivals[4:])
    assert len(arrivals) == 6


def test_a_lognormal_is_found_though_a_third_is_cut_off() -> None:
    from statistics import NormalDist

    true = NormalDist(1.0, 0.5)
    draws = [true.inv_cdf((k + 0.5) / 300) for k in range(300)]
    known, cut = draws[:200], [draws[200]] * 100
    found = _lognormal(known, cut)
    assert found.mean == pytest.approx(1.0, abs=0.05)
    assert found.stdev == pytest.approx(0.5, abs=0.05)


def test_nothing_is_decided_on_nothing() -> None:
    seen = observed(rounds=(), updates=0, versions=0)
    action = Fitted().decide(seen, (), LIMITS)
    assert (action.shards, action.deadline, action.buffer) == (2, 1.0, 1.0)
    assert math.isclose(action.expected, 1.0)
