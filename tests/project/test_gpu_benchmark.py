"""The benchmark of a GPU on a CPU, in its tiny form: it works the first time that there is one."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import record_level
from benchmarks.gpu import __main__ as benchmark
from benchmarks.gpu import neighbours, page
from benchmarks.gpu.__main__ import SECTIONS, Bench
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.timing import TINY, one_thread
from benchmarks.report import Row

CPU = torch.device("cpu")
BENCH = Bench(CPU, TINY)


def beside_once(count: int, command: Any) -> list[dict[str, Any]]:
    """What one process says, as if so many had."""
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
    """All of it, without other processes and private steps, which have a test."""
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


def test_the_models_have_the_weights_that_are_told() -> None:
    with torch.device("meta"):
        sizes = [
            sum(each.numel() for each in model.make().parameters()) for model in MODELS.values()
        ]
    assert all(20e6 < size < 30e6 for size in sizes)


def test_what_fails_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(bench: Bench) -> Iterator[Row]:
        yield {"step": "first"}
        raise RuntimeError("CUDA error")

    sections: dict[str, Callable[[Bench], Iterator[Row]]] = {
        "one": fails,
        "two": lambda bench: iter([{"step": "second"}]),
    }
    monkeypatch.setattr(benchmark, "SECTIONS", sections)
    made = benchmark.measure(BENCH, tmp_path / "gpu.json", 600)
    assert made["sections"] == {"one": [{"step": "first"}], "two": [{"step": "second"}]}
    assert made["left out"] == {"one": "RuntimeError: CUDA error"}
    assert "one: left out, or not whole: RuntimeError: CUDA error" in capsys.readouterr().out
    late = benchmark.measure(BENCH, tmp_path / "gpu.json", -1)
    assert late["left out"] == dict.fromkeys(sections, "-1 seconds were over")


def test_without_a_gpu_nothing_is_measured_and_why_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    benchmark.main([])
    said = capsys.readouterr().out
    assert said == "nothing is measured: torch finds no CUDA device here\n"


def test_clients_that_end_before_their_work_are_told() -> None:
    """And what they print goes on to the terminal."""
    with pytest.raises(RuntimeError, match="ended before its work"):
        neighbours.beside(1, [sys.executable, "-S", "-c", "print('no memory')"])
    play = "print('ready', flush=True); input(); print('{\"seconds\": 1}')"
    both = neighbours.beside(2, [sys.executable, "-S", "-c", play])
    assert both == [{"seconds": 1}] * 2


def goals_of(found: dict[str, Any]) -> dict[str, list[str]]:
    return {goal.name: list(goal.reached) for goal in page.goals(found)}


def test_goals_are_held_against_what_was_reached(found: dict[str, Any]) -> None:
    private, memory = page.goals(found)
    assert private.reached == {"cnn": 1.4}
    assert set(memory.reached) == {"ResNet", "transformer", "values alone"}
    assert private.met(1.5)
    assert not private.met(1.51)


def test_what_was_measured_is_drawn(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes into the page in the place of what is there, but not from a CPU."""
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(found))
    text, own = page.PAGE.read_text(), tmp_path / "page.md"
    own.write_text(text)
    monkeypatch.setattr(page, "PAGE", own)
    monkeypatch.setattr(page, "PICTURE", tmp_path / "assets.png")
    page.main([str(file)])
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    told = file.with_suffix(".md").read_text()
    assert "| a private step to a plain one, at most | 1.5 | cnn | 1.4 | yes |" in told
    with pytest.raises(SystemExit):
        page.main([str(file), "--publish"])
    assert own.read_text() == text
    file.write_text(json.dumps(found | {"tiny": False}))
    page.main([str(file), "--publish"])
    assert f"{page.heading(found)}\n\n![A GPU beside one core](assets/" in own.read_text()
    assert (tmp_path / "assets.png").is_file()
