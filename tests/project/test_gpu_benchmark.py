"""The benchmark of a GPU on a CPU, in its tiny form: it works the first time that there is one."""

import io
import json
import sys
from typing import Any

import pytest
import torch

from benchmarks import record_level
from benchmarks.gpu import __main__ as benchmark
from benchmarks.gpu import neighbours
from benchmarks.gpu.__main__ import SECTIONS, Bench
from benchmarks.gpu.timing import TINY, one_thread

CPU = torch.device("cpu")
BENCH = Bench(CPU, TINY)


def beside_once(count: int, command: Any) -> list[dict[str, Any]]:
    said, before = io.StringIO(), sys.stdout
    sys.stdout = said
    try:
        neighbours.play(command[3:], io.StringIO("go\n"))
    finally:
        sys.stdout = before
    ready, answer = said.getvalue().splitlines()
    assert ready == "ready"
    return [json.loads(answer)] * count


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    private = [{"model": "cnn", "way": "secureps", "to plain": 1.4}]
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(neighbours, "beside", beside_once)
        patch.setattr(record_level, "measure", lambda *given: private)
        made = benchmark.measure(BENCH, out, 600)
    assert json.loads(out.read_text()) == json.loads(json.dumps(made))
    return made


def test_every_section_is_measured(found: dict[str, Any]) -> None:
    assert found["left out"] == {}
    assert set(found["sections"]) == set(SECTIONS)
    rows = found["sections"]["training"] + found["sections"]["updates"]
    assert all(row["times as fast"] > 0 for row in rows)
    assert not any("made on the host" in row.get("step", "") for row in rows)
    steps = [row["step"].partition(", ")[0] for row in found["sections"]["updates"]]
    assert steps == ["update", "integers"] * (len(steps) // 2)
    assert [row["bits"] for row in found["sections"]["clients on one device"]] == ["same", "same"]
