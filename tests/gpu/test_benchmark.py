"""The benchmark of the GPU runs where there is none: by the interpreter's clock, and every row."""

from __future__ import annotations

import pytest

from tests.kits import gpu_kit  # isort: skip  # first: it skips where there is no Triton

from benchmarks import gpu


def test_every_step_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = next(iter(gpu.PARAMETERS))
    monkeypatch.setattr(gpu, "PARAMETERS", {narrow: gpu.PARAMETERS[narrow]})
    here = gpu_kit.interpreter()
    rows = gpu.measure(gpu.Timed(here.torch, here.where, here.name), values=4096, tries=1)
    steps = [str(row["step"]).partition(",")[0] for row in rows]
    assert steps == ["copy there", "copy back", "seal", "open", "SGD"]
    for row in rows:
        assert float(row["device, ms"]) > 0
        assert float(row["clock, ms"]) > 0


def test_an_interpreter_is_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "has_device_file", lambda: True)
    gpu.main()
    said = capsys.readouterr().out
    assert said == "no device, and nothing measured: kernels are interpreted\n"
