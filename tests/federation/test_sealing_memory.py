"""A client needs as much memory to make an update as `secureps check` says."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.trainer import FitConfig, FitResult
from secureps.client.worker import ClientWorker
from secureps.policy.memory import sealing_memory
from secureps.run.simulate.simulation import Conditions
from secureps.store.spool import DiskSpool
from tests.kits.federations import Tensors, Walker, small_federation, small_plan
from tests.kits.privacy_kit import PRIVACY
from tests.kits.thin_group import FED_BACK, THIN

RULE = {"quorum": 1, "minimum": 1}
VALUES = 1 << 20
MOST_ERROR = 1.25
"""Of the prediction, either way."""
CLIENT = PRIVACY | {"placement": "local"}


class Still(Walker):
    """Returns what it got, in memory of its own."""

    def parameters(self, seed: int) -> Tensors:
        return {"body": np.full(VALUES, 0.5, np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        return FitResult({"body": parameters["body"] + np.float32(1e-5)}, 10, {}, 1)


def peak(patch: pytest.MonkeyPatch, folder: Path, **changes: Any) -> tuple[float, int]:
    """What one client takes to make its second update, and what is said of it, in bytes."""
    plan = small_plan("plain", versions=2, shards=1, block_size=1 << 19, local=(), **changes)
    draft, seal, peaks = ClientWorker._draft_update, ClientWorker._seal, list[int]()

    def begun(self: ClientWorker, *given: Any) -> Any:
        tracemalloc.start()
        return draft(self, *given)

    def watched(self: ClientWorker, made: Any) -> Any:
        try:
            return (yield from seal(self, made))
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    patch.setattr(ClientWorker, "_draft_update", begun)
    patch.setattr(ClientWorker, "_seal", watched)
    spools = Conditions(spool=lambda name: DiskSpool(folder / name / "spool"))
    small_federation(plan, folder, spools, clients=1, kind=Still).run()
    (group,) = plan.lay_out_sizes({"all": VALUES})
    return peaks[-1] + 2 * 4 * VALUES, sealing_memory(plan, group)  # pulled, and trained


PRIVATE = {"rule": RULE, "weighting": "uniform", "clip": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"group": [{"rule": RULE}]},
        {"group": [{"rule": RULE} | FED_BACK]},
        {"group": [{"rule": RULE} | FED_BACK | {"codec": ("rotate", "round")}]},
        {"group": [{"rule": RULE} | FED_BACK | {"feedback": False}]},
        {"group": [{"rule": RULE, "codec": ("rotate",), "clip": 1.0, "range": 1.0}]},
        {"group": [{"rule": RULE, "codec": THIN[:1], "clip": 1.0, "range": 1.0}]},
        {"group": [PRIVATE], "privacy": CLIENT},
        {"group": [PRIVATE | {"codec": ("rotate",)}], "privacy": CLIENT},
        {"group": [PRIVATE | {"codec": THIN[:2]}], "privacy": CLIENT},
    ],
)
def test_a_client_needs_what_is_said(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needed, said = peak(monkeypatch, tmp_path, **changes)
    assert needed / MOST_ERROR < said < needed * MOST_ERROR
