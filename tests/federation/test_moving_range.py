"""A range that follows the mean norm: it is told under encryption, and everybody has the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client import worker
from secureps.client.trainer import FitConfig, FitResult
from secureps.client.update import Update, clip_update
from secureps.policy.plan import Plan
from tests.kits.federations import (
    Tensors,
    Walker,
    finished,
    small_federation,
    small_plan,
)
from tests.kits.privacy_kit import scales
from tests.kits.thin_group import FED_BACK, RULE, THIN

FOLLOWS = (*THIN[:2], {"name": "round", "length": "mean_norm"})
CLIP = 64.0


GROUP = FED_BACK | {"codec": FOLLOWS, "clip": CLIP, "weighting": "uniform", "rule": RULE}


def plan(cipher: str = "plain", local: tuple[str, ...] = ("*.count",), **more: Any) -> Plan:
    return small_plan(cipher, versions=6, local=local, group=[GROUP | more])


@pytest.mark.parametrize("feedback", [True, False])
def test_the_range_follows_the_mean_norm(
    feedback: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From a clip that is far too long, by a factor of at most four in a version."""
    norms = dict[float, list[float]]()

    def noted(*given: Any) -> Update:
        made = clip_update(*given)
        norms.setdefault(given[3], []).append(made.norm)
        return made

    monkeypatch.setattr(worker, "clip_update", noted)
    simulation = small_federation(plan(feedback=feedback), tmp_path)
    simulation.run(lambda: finished(simulation))
    found = scales(simulation)
    assert [found[version] for version in range(3)] == [1.0, 0.25, 0.0625]
    for version in range(3, 6):
        mean = np.mean(norms[found[version]])
        assert found[version + 1] == pytest.approx(mean / CLIP, rel=0.3)
        assert found[version + 1] < 0.06


class Steady(Walker):
    """Begins with zeros, and takes the same step every time."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.step = 0.1 * np.random.default_rng(number).standard_normal(200, np.float32)

    def parameters(self, seed: int) -> Tensors:
        return {"body": np.zeros(200, np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        return FitResult({"body": parameters["body"] + self.step}, 10, {}, 1)


def test_a_range_that_follows_loses_less_than_one_that_stays(tmp_path: Path) -> None:
    """Where the clip is far too long; the first versions are rounded as coarsely by both."""
    mean = np.mean([Steady(number).step for number in range(6)], axis=0)
    far = []
    for length in ("clip", "mean_norm"):
        codec = ("rotate", {"name": "round", "length": length})
        own = plan(local=(), codec=codec, feedback=False, bits=6)
        simulation = small_federation(own, tmp_path / length, kind=Steady)
        simulation.run(lambda: finished(simulation))  # noqa: B023
        far.append(float(np.linalg.norm(simulation.model()["body"] - 6 * mean)))
    assert far[1] < far[0] / 2
