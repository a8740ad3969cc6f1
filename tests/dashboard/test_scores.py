"""Scores and evaluations by version, and why there are none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from secureps.dashboard.observation import (
    KEPT,
    Observation,
    Report,
    Seen,
    merge_costs,
    read_report,
    scores_view,
)
from secureps.dashboard.operator_view import operator_view
from secureps.dashboard.sources import Facts
from secureps.errors import DamagedStore
from secureps.messages.evaluation import (
    EvaluationSkipped,
    EvaluationStatus,
    Metric,
    VersionEvaluated,
)
from secureps.run.report.version_metrics import Metrics
from tests.kits.dashboards import STATUS

EVALUATION = EvaluationStatus(
    step="collecting",
    reason="waits for client-01",
    late=("client-01",),
    results=(
        VersionEvaluated(1, (Metric("accuracy", 0.5),)),
        VersionEvaluated(3, (Metric("accuracy", 0.75),)),
    ),
    best=3,
    skipped=(EvaluationSkipped(2, "2 of 3 sent"),),
    noise=(Metric("accuracy", 0.01),),
)


def seen(status: object = STATUS, **more: object) -> Seen:
    return replace(Observation().take(STATUS, 1.0), status=status, **more)  # type: ignore[arg-type]


def report(versions: int = 4, groups: tuple[str, ...] = ("all",)) -> Report:
    records = dict[tuple[str, int], str]()
    own = Metrics(lambda line: records.update({line.at: json.dumps(line.record())}), unsafe=False)
    for group in groups:
        for version in range(versions):
            own.publish(group, version, 1.0, 0.5, {"bytes_up": 30.0, "bytes_down": 7.0})
            own.add_scores({group: version}, {"loss": 2.0 - version, "accuracy": 0.25 * version})
    own.add_evaluations(EVALUATION.results, groups)
    own.settle()
    return read_report("\n".join(records.values()))


def test_a_report_has_scores_of_all_versions_and_what_they_cost() -> None:
    found = report(groups=("body", "head"))
    assert found.scores == {v: {"loss": 2.0 - v, "accuracy": 0.25 * v} for v in range(4)}
    assert {(cost["group"], cost["version"]) for cost in found.costs} == {
        (group, version) for group in ("body", "head") for version in (1, 2, 3)
    }
    assert (found.up, found.down) == (180.0, 42.0)
    assert [cost["version"] for cost in report(60).costs] == list(range(60 - KEPT, 60))
    assert report(60).up == 59 * 30.0, "of all of them"


@pytest.mark.parametrize("text", ["no json", "[]", '{"group": "all"}', '{"version": 1}'])
def test_what_is_no_report_is_said(text: str) -> None:
    with pytest.raises(DamagedStore, match=r"metrics\.jsonl cannot be read"):
        read_report(text)


def test_a_version_has_the_scripts_scores_and_the_federations_own() -> None:
    view = scores_view(seen(replace(STATUS, evaluation=EVALUATION)), report())
    assert [each["version"] for each in view["judged"]] == [3, 2, 1, 0]
    newest, second, *_ = view["judged"]
    assert newest["held_out"] == {"loss": -1.0, "accuracy": 0.75}
    assert (newest["federated"], newest["best"]) == ({"accuracy": 0.75}, True)
    assert (second["federated"], second["best"]) == ({}, False)
    assert view["noise"] == {"accuracy": 0.01}
    assert view["nothing"] == ""
    assert view["notes"] == [
        "evaluation collecting: waits for client-01",
        "skipped: version 2: 2 of 3 sent",
    ]


def test_an_evaluation_is_under_way_only_while_the_coordinator_says_so() -> None:
    status = replace(STATUS, evaluation=EVALUATION)
    for other in (
        seen(status, recalled=True),
        seen(status, silent="gone"),
        seen(status, over=True),
    ):
        assert scores_view(other, None)["notes"] == ["skipped: version 2: 2 of 3 sent"]


def test_who_may_not_know_clients_reads_none_in_a_note() -> None:
    own = replace(EVALUATION, results=(replace(EVALUATION.results[0], by="client-01"),))
    page = operator_view(Facts(seen=seen(replace(STATUS, evaluation=own))), names=False)
    assert page["scores"]["notes"][:2] == [
        "evaluated by clients, in the clear",
        "evaluation collecting: waits for clients",
    ]


def test_without_a_best_version_none_is_marked() -> None:
    none = replace(STATUS, evaluation=replace(EVALUATION, best=0))
    view = scores_view(seen(none), report())
    assert [each["version"] for each in view["judged"]] == [3, 2, 1, 0]
    assert not any(each["best"] for each in view["judged"])


def test_the_best_version_is_listed_however_old_it_is() -> None:
    results = tuple(VersionEvaluated(v, (Metric("loss", 1.0),)) for v in range(1, 90))
    own = replace(EVALUATION, results=results, best=2)
    view = scores_view(seen(replace(STATUS, evaluation=own)), None)
    assert [each["version"] for each in view["judged"]] == [*range(89, 89 - KEPT, -1), 2]
    assert [each["version"] for each in view["judged"] if each["best"]] == [2]


@pytest.mark.parametrize(
    ("at", "known", "said"),
    [
        (Seen(), None, "Not known: the coordinator has not answered, and no report is at hand."),
        (seen(), None, "The plan has no [evaluation], and no report of `secureps up` is at hand."),
        (seen(), Report(), "No version is scored yet."),
        (seen(over=True), Report(), "No version was scored."),
    ],
)
def test_why_there_are_no_scores_is_said(at: Seen, known: Report | None, said: str) -> None:
    assert scores_view(at, known)["nothing"] == said


def test_costs_are_the_reports_and_else_what_was_seen() -> None:
    looked = seen()
    (own,) = looked.costs
    assert (own["version"], own["up"]) == (3, 1000.0)
    assert merge_costs(looked, None) == looked.costs
    assert [(cost["version"], cost["up"]) for cost in merge_costs(looked, report(3))] == [
        *((1, 30.0), (2, 30.0), (3, 1000.0))
    ]
    assert merge_costs(looked, report(4))[-1]["up"] == 30.0, (
        "all of it, and not what was seen alone"
    )
