"""The benchmark of the GPU runs where there is none: kernels by the interpreter's clock."""

from __future__ import annotations

import pytest
import torch

from tests.kits import gpu_kit  # isort: skip  # first: it skips where there is no Triton

from benchmarks.gpu import sealing, training
from benchmarks.gpu.__main__ import with_kernels
from benchmarks.gpu.timing import TINY, Timed


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Timed:
    """The interpreter; of rings the first alone."""
    narrow = next(iter(sealing.PARAMETERS))
    monkeypatch.setattr(sealing, "PARAMETERS", {narrow: sealing.PARAMETERS[narrow]})
    made = with_kernels(torch.device("cpu"), TINY).kernels
    assert made is not None
    assert made.where == gpu_kit.interpreter().where
    return made


def test_every_step_of_sealing_is_measured(here: Timed) -> None:
    sections = (sealing.transfers, sealing.batches, sealing.whole)
    rows = [row for section in sections for row in section(here, TINY)]
    steps = [str(row["step"]).partition(",")[0] for row in rows]
    assert steps == ["copy there", "copy back", "seal", "open", *[sealing.WHOLE] * 2]
    for row in rows:
        assert all(float(row[f"{by}, ms"]) > 0 for by in ("device", "clock", "one core"))
        assert float(row["10^9 values/s"]) > 0


def test_a_share_of_a_step_is_told_of_every_model(here: Timed) -> None:
    rows = list(training.shares(here, TINY))
    assert [row["model"] for row in rows] == ["ResNet", "transformer"]
    for row in rows:
        busy = float(row["sealing, ms"]) / float(row["step, ms"])
        assert row["sealing, of a step"] == pytest.approx(busy)
        assert float(row["of 100 steps"]) > busy / 100
