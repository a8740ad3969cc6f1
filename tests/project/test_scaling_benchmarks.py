"""Benchmarks of scale: their counts and their virtual time follow from what is put in."""

from __future__ import annotations

import itertools
from statistics import geometric_mean

import pytest

from benchmarks import elastic, receipts
from benchmarks.cluster import NANO, Cluster, Costs, play

COSTS = Costs(
    make=14.0,
    send=3.0,
    take=11.0,
    open=15.0,
    serve=1.0,
    pull=4.0,
    up=3.0,
    down=4.0,
    decide=8e-5,
    share=2e-5,
)


def test_one_worker_and_one_shard_take_each_step_after_the_other() -> None:
    values, link = 1_000_000, 1e9
    own = Cluster(1, 1, values, link, blocks=1)
    times = play(COSTS, own, pipelined=False, own_order=True)
    pushed = NANO * values * (14 + 3 + 11) + 3.0 * values / link + 1e-4
    opened = pushed + NANO * values * 15
    assert times.pushed == pytest.approx(pushed)
    assert times.opened == pytest.approx(opened)
    assert times.pulled == pytest.approx(opened + NANO * values * (1 + 4) + 4.0 * values / link)


def test_costs_of_receipts_shards_and_versions_are_told_apart() -> None:
    """From what three federations spend, in which each has another weight."""
    control = receipts.Control(receipt=4e-3, shard=6e-3, version=0.05, share=1e-3)
    costs = {
        (shards, clients): (
            control.version + control.receipt * clients + control.shard * shards,
            0.02 + control.share * clients,
        )
        for shards, clients in receipts.CASES
    }
    assert vars(receipts.split(costs)) == pytest.approx(vars(control))


def test_blocks_that_leave_as_they_are_sealed_and_orders_of_ones_own_are_never_later() -> None:
    seconds = {}
    for pipelined, own_order in itertools.product((False, True), repeat=2):
        cluster = Cluster(16, 16, 16_000_000, 1.25e9)
        seconds[pipelined, own_order] = play(COSTS, cluster, pipelined, own_order).pulled
    assert seconds[False, True] < seconds[False, False]
    assert seconds[True, True] < 0.9 * seconds[False, True]


@pytest.mark.slow
def test_a_fitted_model_makes_a_tenth_more_of_changing_loads_than_thresholds() -> None:
    """Of scenarios that no number of either was chosen by."""
    gains = [
        elastic.play("fitted", scene, elastic.FIRST).reward
        / elastic.play("rule", scene, elastic.FIRST).reward
        for scene in elastic.SCENES.values()
    ]
    assert geometric_mean(gains) > 1.1
    assert min(gains) > 0.95, "and less nowhere"
