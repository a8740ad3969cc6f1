"""JSON lines, and that no writer can end a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from secureps.run.report.version_metrics import JsonLines, Line, Record, Sinks
from tests.run.report.test_version_metrics import line


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_a_line_comes_in_the_order_of_publishing_and_is_replaced_in_its_place(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    sink.add(line(version=1))
    assert lines(path) == [line(version=1).record()]
    sink.add(line(version=2))
    sink.add(line(version=1, epsilon=9.0))
    sink.add(line(group="head", version=1))
    sink.close(None)
    assert lines(path) == [
        line(version=1, epsilon=9.0).record(),
        line(version=2).record(),
        line(group="head", version=1).record(),
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_file_of_an_earlier_play_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(line(version=1).record()) + "\n{half a li")
    sink = JsonLines(path)
    assert path.exists(), "until its lines come again"
    sink.add(line(version=1))
    sink.add(line(version=2))
    assert lines(path) == [line(version=1).record(), line(version=2).record()]


class Brittle:
    """Breaks at the second line."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def add(self, line: Line) -> None:
        if self.heard:
            raise RuntimeError("the server is gone")
        self.heard.append(line.version)

    def close(self, summary: Record | None) -> None:
        self.heard.append(summary)


class Sound(Brittle):
    """Does not."""

    def add(self, line: Line) -> None:
        self.heard.append(line.version)


def test_a_sink_that_breaks_is_left_out_and_told_of_once() -> None:
    brittle, sound, said = Brittle(), Sound(), list[str]()
    with Sinks((brittle, sound), said.append) as sinks:
        for version in range(4):
            sinks.add(line(version=version))
        sinks.close({"score": 1})
    assert sound.heard == [0, 1, 2, 3, {"score": 1}]
    assert brittle.heard == [0]
    assert said == ["Brittle gets no more lines of this run: RuntimeError: the server is gone"]


def test_a_run_that_breaks_off_has_no_summary() -> None:
    sound = Sound()

    def interrupted() -> None:
        with Sinks((sound,), print) as sinks:
            sinks.add(line())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sound.heard == [3, None]


def test_a_disk_that_is_full_does_not_end_a_run(tmp_path: Path) -> None:
    said: list[str] = []
    with Sinks((JsonLines(tmp_path / "gone" / "metrics.jsonl"),), said.append) as sinks:
        sinks.add(line())
    (text,) = said
    assert text.startswith("JsonLines gets no more lines of this run: FileNotFoundError")
