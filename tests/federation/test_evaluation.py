"""Evaluation by a whole federation: exact, every k versions, through every fault and kill."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from secureps.messages.evaluation import EVALUATION
from secureps.run.party_names import client_names
from tests.kits.evaluations import (
    METRICS,
    MOST_HELD_OUT,
    Examiner,
    evaluated_plan,
    examined,
    examiners,
    judged,
    metrics_of,
)
from tests.kits.federations import Tensors, events_of, finished, same, small_plan

Result = tuple[Tensors, dict[int, dict[str, float]]]


@cache
def unharmed(cipher: str, versions: int = 5, clients: int = 6) -> tuple[Result, int]:
    """Model and metrics of a run in which nothing goes wrong, and how many events it had."""
    with TemporaryDirectory() as folder:
        plan = evaluated_plan(cipher, versions=versions, clients=clients)
        simulation = examined(plan, Path(folder), trainers=examiners(clients))
        events = events_of(simulation)
        return (simulation.model(), metrics_of(simulation)), events


def test_evaluating_changes_no_bit_of_the_model(tmp_path: Path) -> None:
    simulation = examined(small_plan(versions=5), tmp_path)
    simulation.run()
    assert same(simulation.model(), unharmed("plain")[0][0])


def test_every_client_is_shown_exactly_the_versions_that_are_evaluated(tmp_path: Path) -> None:
    cast = {name: Examiner(i) for i, name in enumerate(client_names(6))}
    simulation = examined(evaluated_plan(), tmp_path, trainers=cast)
    published: dict[int, Tensors] = {}
    reasons = set[str]()

    def over() -> bool:
        version = simulation.versions()["all"]
        if version >= 0 and version not in published:
            published[version] = simulation.model()
        if EVALUATION in simulation.coordinator.federation.groups:
            reasons.add(simulation.coordinator.federation.groups[EVALUATION].reason)
        return finished(simulation)

    simulation.run(over)
    assert {"version 2 is evaluated", "version 4 is evaluated"} <= reasons
    for examiner in cast.values():
        shown = [{n: v for n, v in s.items() if n != "body.count"} for s in examiner.shown]
        assert len(shown) == 3
        assert all(same(s, published[v]) for s, v in zip(shown, (2, 4, 5), strict=True))


def test_a_metric_is_the_weighted_mean_of_integers_computed_here(tmp_path: Path) -> None:
    """Rounded by the same words, added up in Python's integers, divided once."""
    from secureps.crypto.sampling import UnsafeSeed

    cast = {name: Examiner(i) for i, name in enumerate(client_names(6))}
    simulation = examined(evaluated_plan(), tmp_path, trainers=cast)
    simulation.run()
    most, names = (1 << 15) - 1, sorted(METRICS)
    for version, (base, at) in enumerate([(0, 2), (1, 4), (2, 5)]):
        sums, examples = [0] * len(names), 0
        for number, (name, examiner) in enumerate(cast.items()):
            result = judged(number, examiner.shown[version])
            assert result.loss is not None
            values = {"loss": result.loss, **result.metrics}
            share = result.examples / MOST_HELD_OUT
            words = UnsafeSeed(3).derive("round", name, EVALUATION, base, 0).words(len(names))
            for i, metric in enumerate(names):
                scaled = np.float64(np.float32(values[metric] / METRICS[metric]))
                exact = scaled * share * most
                low = int(np.floor(exact))
                sums[i] += low + int(int(words[i]) < (exact - low) * 2**32)
            examples += result.examples
        totals = [float(np.float32(s * (1.0 / most))) for s in sums]
        told = metrics_of(simulation)[at]
        assert [told[name] for name in names] == [
            total / (examples / MOST_HELD_OUT) * METRICS[name]
            for total, name in zip(totals, names, strict=True)
        ]
