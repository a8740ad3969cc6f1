"""Benchmarks of scale: their counts and their virtual time follow from what is put in."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pytest

from benchmarks import elastic, receipts
from benchmarks.cluster import NANO, Cluster, Costs, efficiency, needed, play
from benchmarks.large import Cost, Spent
from benchmarks.scaling import Case, by_party, costs_of, draw, flat_rows, way_rows, ways

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


def test_a_version_waits_for_what_the_coordinator_does_for_each_shard() -> None:
    own = Cluster(4, 8, 1_000_000, 1e9)
    times, more = (play(each, own, True, True) for each in (COSTS, replace(COSTS, direct=2e-3)))
    assert more.pushed == times.pushed
    assert more.pulled == pytest.approx(times.pulled + 8 * 2e-3)


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


def test_a_link_is_shared_by_all_who_send_over_it() -> None:
    free = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, up=4.0, down=4.0, decide=0.0, share=0.0)
    for workers in (1, 2, 8):
        times = play(free, Cluster(workers, 1, 1000, 1000.0, blocks=1), True, True)
        assert times.pushed == pytest.approx(4.0 * workers)
        assert times.pulled - times.opened == pytest.approx(4.0 * workers)


def test_blocks_that_leave_as_they_are_sealed_and_orders_of_ones_own_are_never_later() -> None:
    seconds = {}
    for pipelined, own_order in itertools.product((False, True), repeat=2):
        cluster = Cluster(16, 16, 16_000_000, 1.25e9)
        seconds[pipelined, own_order] = play(COSTS, cluster, pipelined, own_order).pulled
    assert seconds[False, True] < seconds[False, False]
    assert seconds[True, True] < 0.9 * seconds[False, True]


def test_a_model_has_a_block_for_each_shard_and_none_is_longer_than_plans_allow() -> None:
    assert Cluster(1, 64, 60_000_000, 1.0).pieces == 64
    assert Cluster(1, 8, 60_000_000, 1.0).pieces == 16


def test_the_goal_is_met_after_as_much_training_as_is_told() -> None:
    assert efficiency(needed(0.92, 1.3), 1.3) == pytest.approx(0.92)
    assert efficiency(1.0, 0.0) == 1.0
    assert efficiency(1.0, 3.0, alone=1.0) == 0.5


def cost(of: dict[str, float]) -> Cost:
    spent = {name: Spent(seconds, 0.0) for name, seconds in of.items()}
    return Cost(1.0, spent, 3.0, 4.0, {})


def test_cpu_is_told_by_party_and_held_against_the_same_turn() -> None:
    seconds = {"crowd-0": 0.2, "crowd-1": 0.2, "shard-0": 0.3, "coordinator": 0.02, "holder-1": 0.1}
    parties = by_party(cost(seconds), values=4_000_000, clients=5)
    assert parties == pytest.approx(
        {"clients": 20.0, "shards": 15.0, "coordinator": 1.0, "holders": 5.0}
    )
    twice = {name: 2 * each for name, each in parties.items()}
    cases = [Case(2, 5, (parties, twice), 3.0, 4.0), Case(8, 5, (parties, parties), 3.0, 4.0)]
    first, more = flat_rows(cases)
    assert (first["ratio"], first[""]) == (1.0, "flat")
    assert (first["shards"], first["clients"], first["ns, clients"]) == (2, 5, 30.0)
    assert more["ratio"] == pytest.approx(0.75)
    assert (more["of turns"], more[""]) == ("0.50 to 1.00", "less")


def test_costs_of_steps_are_shares_of_what_processes_spent(tmp_path: Path) -> None:
    party = {"clients": 20.0, "shards": 10.0, "coordinator": 1.0, "holders": 4.0}
    case = Case(2, 5, (party,), 3.0, 4.0)
    found = costs_of(case, receipts.Control(3e-3, 5e-3, 0.1, 1e-3))
    assert (found.decide, found.share) == (3e-3, 1e-3)
    assert (found.direct, found.begin) == (5e-3, 0.1)
    assert found.make + found.send + found.pull == pytest.approx(20.0)
    assert found.take + found.open / 5 + found.serve == pytest.approx(10.0)
    assert found.make / found.send == pytest.approx(30.7 / 4.3)
    assert (found.up, found.down) == (3.0, 4.0)
    rows = list(way_rows(every := ways(found)))
    assert len(rows) == 20
    assert all(0 < float(row["after 10 s"]) < 1 for row in rows)
    draw(every, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "name"),
    [("", "elastic"), ("--tuning", "elastic-tuning"), ("--only bursts", "elastic-bursts")],
)
def test_each_choice_of_scenarios_is_kept_under_a_name_of_its_own(
    given: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list[str]()
    monkeypatch.setattr(elastic, "rows", lambda *_: [])
    monkeypatch.setattr(elastic, "report", lambda name, title, rows: kept.append(name))
    monkeypatch.setattr("sys.argv", ["benchmark", *given.split()])
    elastic.main()
    assert kept == [name]


def test_a_fitted_model_makes_a_tenth_more_of_changing_loads_than_thresholds() -> None:
    """Of scenarios that no number of either was chosen by."""
    gains = [
        elastic.play("fitted", scene, elastic.FIRST).reward
        / elastic.play("rule", scene, elastic.FIRST).reward
        for scene in elastic.SCENES.values()
    ]
    assert geometric_mean(gains) > 1.1
    assert min(gains) > 0.95, "and less nowhere"
