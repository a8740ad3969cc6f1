"""Benchmarks of scale: their counts follow from what is put in."""

import pytest

from benchmarks import elastic, receipts


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


GAINS = {"bursts": (450.0, 1.04), "stragglers": (600.0, 1.33)}
"""How much more a fitted model makes at least, where shards come and go, and where deadlines do.

Each by the seconds that are played. Of all four scenes, and of more seeds, and for longer:
`python -m benchmarks.elastic`.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", GAINS)
def test_a_fitted_model_makes_more_of_changing_loads_than_thresholds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, gain = GAINS[name]
    monkeypatch.setattr(elastic, "SECONDS", seconds)
    fitted, rule = (
        elastic.play(policy, elastic.SCENES[name], elastic.FIRST).reward
        for policy in ("fitted", "rule")
    )
    assert fitted / rule > gain
