"""Benchmarks of scale: their counts follow from what is put in."""

from __future__ import annotations

from statistics import geometric_mean

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


@pytest.mark.slow
def test_a_fitted_model_makes_a_tenth_more_of_changing_loads_than_thresholds() -> None:
    """Of scenarios that no number of either was chosen by."""
    gains = [
        elastic.play("fitted", scene, elastic.FIRST).reward
        / elastic.play("rule", scene, elastic.FIRST).reward
        for scene in (elastic.SCENES["bursts"], elastic.SCENES["stragglers"])
    ]
    assert geometric_mean(gains) > 1.1
    assert min(gains) > 0.95, "and less nowhere"
