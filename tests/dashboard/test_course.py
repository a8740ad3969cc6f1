"""A run's course from its journal; scores and evaluations by version, and why there are none."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.dashboard import Json
from secureps.dashboard.observation import (
    KEPT,
    Facts,
    Observation,
    Report,
    Seen,
    merge_costs,
    read_course,
    read_report,
    scores_view,
)
from secureps.dashboard.operator_view import operator_view
from secureps.errors import DamagedStore
from secureps.messages import coordinator_records as records
from secureps.messages.evaluation import (
    EvaluationSkipped,
    EvaluationStatus,
    Metric,
    VersionEvaluated,
)
from secureps.messages.records import Dated
from secureps.messages.requests import CohortSteps, OpenRefused
from secureps.roles.coordinator.state import KEPT_STEPS
from secureps.run.journal_status import journal_status
from secureps.run.report.version_metrics import Metrics
from secureps.store.journal import read_rows
from secureps.store.journal_rows import Record, Row
from tests.kits.dashboards import STATUS


@pytest.fixture(scope="module")
def rows(run: Path) -> list[Row]:
    return list(read_rows(run / "state" / "coordinator" / "journal.db"))


def numbered(told: Iterable[tuple[float, Record]]) -> list[Row]:
    return [Row(seq, at, record, b"") for seq, (at, record) in enumerate(told, 1)]


@pytest.mark.slow
def test_every_version_went_through_its_steps_in_order(run: Path) -> None:
    told = journal_status([run / "state" / "coordinator"], run / "kit")
    assert told is not None
    assert [steps.version for steps in told.steps] == [1, 2, 3]
    for steps in told.steps:
        times = (
            *(steps.began, steps.closed, steps.held),
            *(steps.opened, steps.prepared, steps.committed),
        )
        assert None not in times
        assert list(times) == sorted(times)  # type: ignore[type-var]
        assert (steps.members, steps.ended) == (3, "")
    assert told.burnt == 0
    assert told.checkpoint is not None


def holder(name: str, **own: object) -> Json:
    return {"name": name, "opened": 0, "refused": 0, "lied": 0, "why": ""} | own


def test_holders_are_counted_by_what_they_opened(rows: list[Row]) -> None:
    told = read_course(rows, ())
    assert (told.rows, told.burnt) == (len(rows), ())
    holders = told.holders
    assert sum(each["opened"] for each in holders) >= 2 * 3
    assert {each["refused"] for each in holders} == {0}


def test_refusals_are_told_with_their_reasons_and_by_holder() -> None:
    rows = numbered(
        [
            (0.0, Dated(1_700_000_000.0, "coordinator", "coordinator")),
            (4.0, OpenRefused("holder-1", "all", 9, "its ledger says no", b"")),
            (5.0, records.LiarsNamed("all", 9, ("holder-2",), "off the polynomial")),
            (6.0, records.CohortBurnt("all", 9, "no set of answers opens it", True)),
        ]
    )
    burnt = [CohortSteps("all", number, 3, 3, 0.0, 1.0, ended="burnt") for number in (8, 9)]
    told = read_course(rows, burnt)
    assert [steps.number for steps in told.burnt] == [9, 8]
    assert told.holders == (
        holder("holder-1", refused=1, why="its ledger says no"),
        holder("holder-2", lied=1, why="off the polynomial"),
    )
    assert [entry.what for entry in told.refused] == [
        *("cohort burnt", "holders named", "opening refused")
    ]
    assert told.refused[0].date == "2023-11-14T22:13:26Z"


def test_the_newest_refusals_are_kept() -> None:
    many = [(float(n), records.CohortBurnt("all", n, "no")) for n in range(3 * KEPT_STEPS)]
    told = read_course(numbered(many), ())
    assert len(told.refused) == KEPT_STEPS
    assert told.refused[0].at == 3 * KEPT_STEPS - 1


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
