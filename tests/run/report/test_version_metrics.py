"""A line for every version: told when it is known, told again when more is."""

from __future__ import annotations

import json
import math
from typing import Any

from secureps.messages.requests import Figure, Telemetry
from secureps.run.report.version_metrics import Line, Metrics, Wait


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
        "waits": {
            "ada": Wait(1.23456, True),
            "bob": Wait(7.0, True),
            "eve": Wait(60.0, False),
        },
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
    metrics.judged({"all": 1}, {"version": 7.0, "epsilon": 9.0, "f1": 0.5})
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
    metrics.judged({"all": 1}, {"loss": 0.25})
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
    metrics.judged({"body": 1, "head": 0}, {"loss": 3.0})
    metrics.publish("head", 0, 1.0, None)
    metrics.publish("body", 1, 2.0, None)
    metrics.judged({"body": 1, "head": 1}, {"loss": 2.0})
    metrics.publish("head", 1, 3.0, None)
    metrics.settle()
    scores = {(x.group, x.version): x.scores["loss"] for x in told}
    assert scores == {("head", 0): 3.0, ("body", 1): 3.0, ("head", 1): 2.0}


def test_the_coordinators_clock_is_nearer_to_the_truth() -> None:
    metrics = Metrics(lambda line: None, unsafe=True)
    metrics.publish("all", 1, 9.0, math.inf)
    metrics.publish("all", 2, 9.0, math.inf)
    metrics.take([report("coordinator", 1, published_seconds=7.5)])
    assert [x.elapsed for x in metrics.lines] == [7.5, 9.0]
    assert all(x.unsafe for x in metrics.lines)


def test_nobody_reports_a_score() -> None:
    metrics = Metrics(lambda line: None, unsafe=False)
    metrics.publish("all", 1, 1.0, 0.5)
    metrics.judged({"all": 1}, {"accuracy": 0.25})
    metrics.take([report("eve", 1, accuracy=1.0, elapsed=9.0, epsilon=0.0, bytes_up=2.0)])
    record = metrics.lines[0].record()
    assert (record["accuracy"], record["elapsed"], record["epsilon"]) == (0.25, 1.0, 0.5)
    assert record["bytes_up"] == 2.0


def test_only_figures_that_are_wanted() -> None:
    metrics = Metrics(lambda line: None, True, ("network_seconds",))
    metrics.publish("all", 1, 1.0, math.inf, {"clients": 3})
    metrics.take([report("ada", 1, network_seconds=0.5, training_seconds=0.7)])
    assert metrics.lines[0].figures == {"clients": 3, "network_seconds": 0.5}


def test_a_later_play_tells_all_that_an_earlier_one_knew() -> None:
    earlier: list[Line] = []
    first = Metrics(earlier.append, unsafe=False)
    first.publish("all", 0, 1.0, None)
    first.publish("all", 1, 2.0, math.inf)
    first.judged({"all": 1}, {"accuracy": 0.5})
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
