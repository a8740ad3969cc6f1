"""What is kept of every version: figures counted once, a line told again when more is known."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secureps.messages.requests import UP, Figure, Telemetry
from secureps.run.report.version_metrics import (
    DOWN,
    MOST_FIGURES,
    JsonLines,
    Line,
    Metrics,
    Record,
    Sinks,
    Totals,
    Wait,
)


def report(party: str, version: int, group: str = "all", **figures: float) -> Telemetry:
    return Telemetry(party, group, version, tuple(Figure(n, v) for n, v in figures.items()))


def line(**changes: Any) -> Line:
    facts: dict[str, Any] = {
        "group": "all",
        "version": 3,
        "elapsed": 12.34567,
        "epsilon": 1.5,
        "unsafe": False,
        "scores": {"accuracy": 0.75, "loss": 0.5},
        "figures": {"bytes_up": 800.0},
        "waits": {"ada": Wait(1.23456, True), "bob": Wait(7.0, True), "eve": Wait(60.0, False)},
    }
    return Line(**facts | changes)


def test_a_line_of_json_has_the_longest_wait_and_all_of_them() -> None:
    assert line().record() == {
        "group": "all",
        "version": 3,
        "elapsed": 12.346,
        "epsilon": 1.5,
        "accuracy": 0.75,
        "loss": 0.5,
        "bytes_up": 800.0,
        "longest_wait": "eve",
        "longest_wait_seconds": 60.0,
        "waited_seconds": {"ada": 1.235, "bob": 7.0},
        "missed_seconds": {"eve": 60.0},
    }


def test_json_has_no_infinity_and_says_that_there_is_no_privacy() -> None:
    record = line(epsilon=math.inf, unsafe=True, waits={}).record()
    assert record["epsilon"] is None
    assert record["privacy"] == "unsafe seed: no privacy"
    assert not any("wait" in name or "missed" in name for name in record)
    assert "privacy" not in line().record()
    json.dumps(record, allow_nan=False)
    assert line(epsilon=None).record()["epsilon"] is None


def test_a_scripts_metric_takes_no_name_of_the_lines_own() -> None:
    told = list[Line]()
    metrics = Metrics(told.append, False)
    metrics.publish("all", 1, 1.0, 0.5)
    metrics.add_scores({"all": 1}, {"version": 7.0, "epsilon": 9.0, "f1": 0.5})
    metrics.settle()
    record = told[-1].record()
    assert (record["version"], record["epsilon"], record["f1"]) == (1, 0.5, 0.5)
    assert (record["held_out_version"], record["held_out_epsilon"]) == (7.0, 9.0)


def test_scalars_are_flat_and_finite() -> None:
    assert line().scalars() == {
        "epsilon": 1.5,
        "accuracy": 0.75,
        "loss": 0.5,
        "bytes_up": 800.0,
        "longest_wait_seconds": 60.0,
        "waited_seconds/ada": 1.235,
        "waited_seconds/bob": 7.0,
        "missed_seconds/eve": 60.0,
    }
    diverged = line(epsilon=math.inf, scores={"loss": math.nan}, waits={})
    assert diverged.scalars() == {"bytes_up": 800.0}


def test_a_line_is_told_once_and_again_when_more_is_known() -> None:
    told: list[Line] = []
    metrics = Metrics(told.append, unsafe=False)
    metrics.publish("all", 0, 1.0, 0.0)
    metrics.take([report("ada", 1, bytes_up=8.0)])
    assert told == [], "some reports of a version are on their way when it is published"
    metrics.settle()
    metrics.settle()
    assert [(x.version, x.elapsed, x.epsilon) for x in told] == [(0, 1.0, 0.0)]

    metrics.publish("all", 1, 2.0, 0.5)
    metrics.add_scores({"all": 1}, {"loss": 0.25})
    metrics.take([report("ada", 1, waited_seconds=3.0, arrived=1.0)])
    metrics.settle()
    assert (told[1].figures, told[1].scores) == ({"bytes_up": 8.0}, {"loss": 0.25})
    assert told[1].waits == {"ada": Wait(3.0, True)}

    metrics.take([report("bob", 1, bytes_up=4.0), report("bob", 2, bytes_up=4.0)])
    metrics.settle()
    assert [x.version for x in told] == [0, 1, 1]
    assert told[2].figures == {"bytes_up": 12.0}
    assert metrics.lines == (told[0], told[2])


def test_a_score_stays_with_the_first_model_and_may_come_before_its_line() -> None:
    """A model can be judged before the status that shows its version is seen."""
    told: list[Line] = []
    metrics = Metrics(told.append, unsafe=False)
    metrics.add_scores({"body": 1, "head": 0}, {"loss": 3.0})
    metrics.publish("head", 0, 1.0, None)
    metrics.publish("body", 1, 2.0, None)
    metrics.add_scores({"body": 1, "head": 1}, {"loss": 2.0})
    metrics.publish("head", 1, 3.0, None)
    metrics.settle()
    scores = {(x.group, x.version): x.scores["loss"] for x in told}
    assert scores == {("head", 0): 3.0, ("body", 1): 3.0, ("head", 1): 2.0}


def test_the_coordinators_clock_is_nearer_to_the_truth() -> None:
    metrics = Metrics(lambda line: None, unsafe=True)
    metrics.publish("all", 1, 9.0, math.inf)
    metrics.publish("all", 2, 9.0, math.inf)
    metrics.take([report("coordinator", 1, published_seconds=7.5)])
    metrics.take([report("ada", version, published_seconds=3.0) for version in (1, 2)])
    assert [x.elapsed for x in metrics.lines] == [7.5, 9.0]
    assert all(x.unsafe for x in metrics.lines)


def test_nobody_reports_a_score() -> None:
    metrics = Metrics(lambda line: None, unsafe=False)
    metrics.publish("all", 1, 1.0, 0.5)
    metrics.add_scores({"all": 1}, {"accuracy": 0.25})
    metrics.take([report("eve", 1, accuracy=1.0, elapsed=9.0, epsilon=0.0, bytes_up=2.0)])
    record = metrics.lines[0].record()
    assert (record["accuracy"], record["elapsed"], record["epsilon"]) == (0.25, 1.0, 0.5)
    assert record["bytes_up"] == 2.0


def test_a_later_play_tells_all_that_an_earlier_one_knew() -> None:
    earlier: list[Line] = []
    first = Metrics(earlier.append, unsafe=False)
    first.publish("all", 0, 1.0, None)
    first.publish("all", 1, 2.0, math.inf)
    first.add_scores({"all": 1}, {"accuracy": 0.5})
    first.take([Telemetry("a", "all", 1, (Figure("bytes_up", 7.0), Figure("waited_seconds", 3.0)))])
    first.settle()
    later: list[Line] = []
    second = Metrics(later.append, unsafe=False, before=first.gathered)
    second.publish("all", 1, 99.0, 99.0)  # seen again by who knows nothing of the earlier play
    second.settle()
    assert later == list(first.lines) == list(second.lines)
    assert second.gathered == first.gathered
    second.publish("all", 2, 4.0, 1.0)
    second.settle()
    assert [line.version for line in later] == [0, 1, 2]


def test_windows_that_overlap() -> None:
    reports = [report("a", v, bytes_up=10.0 * v) for v in range(1, 6)]
    totals = Totals()
    for first in range(4):
        totals.add(reports[first : first + 2])
        totals.add(reports[first : first + 2])
    assert totals.total(UP) == 150
    assert totals.updates() == {"all": 5}
    assert totals.updates_by_party() == {"a": 5}


def test_two_reports_of_one_party_add_up_and_a_repeated_one_replaces() -> None:
    totals = Totals()
    totals.add([report("a", 1, training_seconds=2.0), report("a", 1, bytes_up=8.0)])
    totals.add([report("a", 1, training_seconds=3.0), report("b", 1, training_seconds=0.5)])
    assert totals.of_version("all", 1) == {"training_seconds": 3.5, "bytes_up": 8.0}
    assert totals.of_version("all", 2) == {}


def test_updates_from_the_same_base_are_several() -> None:
    totals = Totals()
    first = report("a", 1, bytes_up=8.0, training_seconds=2.0)
    totals.add(
        [first, replace(first, step=1), replace(first, step=1), report("b", 1, bytes_up=8.0)]
    )
    assert totals.of_version("all", 1) == {"training_seconds": 4.0, "bytes_up": 24.0}
    assert totals.updates_by_party() == {"a": 2, "b": 1}
    assert totals.updates() == {"all": 3}
    assert Totals(totals.figures()).figures() == totals.figures()


def test_a_party_fills_no_memory() -> None:
    totals, honest = Totals(), report("b", 1, bytes_up=8.0)
    for step in range(MOST_FIGURES):
        totals.add([replace(report("a", 1, bytes_up=8.0, bytes_down=1.0), step=step)])
    totals.add([honest, report("a", 1, bytes_up=9.0)])
    assert len(totals.figures()) == MOST_FIGURES + 1
    assert totals.of_version("all", 1)["bytes_up"] == 8.0 * (MOST_FIGURES // 2 + 1) + 1.0
    assert not Totals(totals.figures()).add([replace(report("a", 1, bytes_up=1.0), step=9999)])


def test_the_ratio_is_to_fp32_of_each_groups_updates() -> None:
    totals = Totals()
    assert totals.ratio(UP, {"all": 10}) is None
    totals.add([report("a", 1, "big", bytes_up=800, bytes_down=400)])
    totals.add([report("a", 1, "small", bytes_up=80), report("b", 1, "small", bytes_up=80)])
    assert totals.ratio(UP, {"big": 100, "small": 10}) == pytest.approx(960 / (400 + 2 * 40))
    assert totals.ratio(DOWN, {"big": 100, "small": 10}) == pytest.approx(400 / 480)


def test_how_long_each_client_was_waited_for_is_no_sum() -> None:
    totals = Totals()
    totals.add([report("b", 1, waited_seconds=9.0, arrived=0.0)])
    totals.add([report("a", 1, waited_seconds=2.0, arrived=1.0), report("a", 1, bytes_up=8.0)])
    totals.add([report("a", 1, "head", waited_seconds=1.0, arrived=1.0)])
    assert totals.waits("all", 1) == {"a": Wait(2.0, True), "b": Wait(9.0, False)}
    assert list(totals.waits("all", 1)) == ["a", "b"]
    assert totals.waits("all", 2) == {}
    assert totals.of_version("all", 1) == {"bytes_up": 8.0}
    totals.add([report("b", 1, waited_seconds=12.0, arrived=1.0)])
    assert totals.waits("all", 1)["b"] == Wait(12.0, True), "the round went on without it, then not"


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_a_line_comes_in_the_order_of_publishing_and_is_replaced_in_its_place(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    sink.add(line(version=1))
    assert records(path) == [line(version=1).record()]
    file = path.stat().st_ino
    sink.add(line(version=2))
    assert path.stat().st_ino == file, "a new line is no new file, for there may be thousands"
    sink.add(line(version=1, epsilon=9.0))
    assert path.stat().st_ino != file, "no reader sees half of it"
    sink.add(line(group="head", version=1))
    sink.close(None)
    assert records(path) == [
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
    assert records(path) == [line(version=1).record(), line(version=2).record()]


class Brittle:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def add(self, line: Line) -> None:
        if self.heard:
            raise RuntimeError("the server is gone")
        self.heard.append(line.version)

    def close(self, summary: Record | None) -> None:
        self.heard.append(summary)


class Sound(Brittle):
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
