"""Benchmarks of scale: their counts follow from what is put in."""

from __future__ import annotations

from statistics import geometric_mean

import pytest

from benchmarks import elastic, receipts
from benchmarks.large import Cost, Spent
from benchmarks.scaling import Case, by_party, flat_rows


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
