"""Traces: one for each version, the same for all parties, without clients' names."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from secureps.errors import Unreachable
from secureps.messages import coordinator_records as records
from secureps.messages.records import RunPinned
from secureps.messages.requests import GetBlock
from secureps.messages.submission import Cohort, Member, SubmissionId
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.service.environment import Meter
from secureps.service.process import tracing
from tests.kits.federations import same, small_federation, small_plan, unharmed
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run

memory = pytest.importorskip(
    "opentelemetry.sdk.trace.export.in_memory_span_exporter",
    reason="opentelemetry is not installed: pip install 'secureps[trace]'",
)

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402

from secureps.service.tracing import SECOND, VERSION, WHOLE, Tracing, span_of, trace_of  # noqa: E402

STEPS = ["close", "hold", "open", "prepare", "commit", "publish"]

TOLD = {"run", "group", "version", "cohort", "clients", "checkpoint"}
"""Names of what spans say: nothing of a client but what it did."""

CLIENTS = {"pull", "train", "seal", "upload", "submit"}


class Span(NamedTuple):
    """A span of OpenTelemetry."""

    name: str
    trace: int
    parent: int
    begin: int
    end: int
    facts: dict[str, Any]
    id: int
    links: tuple[int, ...]
    failed: str
    resource: dict[str, Any]


class Kept:
    """Collects spans."""

    def __init__(self) -> None:
        self.exporter = memory.InMemorySpanExporter()

    def trace(self, name: str, clock: Callable[[], int]) -> Tracing:
        role = name.partition("-")[0]
        return Tracing(name, role, SimpleSpanProcessor(self.exporter), clock)

    @property
    def spans(self) -> list[Span]:
        return [
            Span(
                each.name,
                each.context.trace_id,
                0 if each.parent is None else each.parent.span_id,
                each.start_time,
                each.end_time,
                {name.removeprefix("secureps."): fact for name, fact in each.attributes.items()},
                each.context.span_id,
                tuple(link.context.trace_id for link in each.links),
                "" if each.status.is_ok or each.status.is_unset else each.status.description,
                dict(each.resource.attributes),
            )
            for each in self.exporter.get_finished_spans()
        ]

    def named(self, *names: str) -> list[Span]:
        return [span for span in self.spans if span.name in names]


class Traced:
    """A federation in virtual time, whose parties each collect spans."""

    def __init__(self, folder: Path, cipher: str = "rlwe") -> None:
        plan = small_plan(cipher, versions=3)
        conditions = Conditions(meter=self._meter)
        self.kept: dict[str, Kept] = {}
        self._clock: Callable[[], float] = lambda: 0.0
        self.play: Simulation = small_federation(plan, folder, conditions)
        self._clock = self.play.loop.now

    def _meter(self, name: str) -> Meter:
        kept = self.kept.setdefault(name, Kept())
        return kept.trace(name, lambda: int((1000 + self._clock()) * SECOND))

    def reached(self, version: int) -> bool:
        return self.play.versions()["all"] >= version

    @property
    def run(self) -> bytes:
        pinned = self.play.coordinator.federation.pinned
        assert pinned is not None
        return pinned.run.id


def whole(spans: list[Span], run: bytes, version: int) -> None:
    """Checks that a trace has its first span, the six steps in order, and their work."""
    trace = trace_of(run, "all", version)
    own = [span for span in spans if span.trace == trace]
    (root,) = [span for span in own if span.name == VERSION]
    assert (root.parent, root.id) == (0, span_of(trace, VERSION))
    ids = [span.id for span in own]
    assert len(ids) == len(set(ids)), "no id is given twice"
    assert {span.parent for span in own} <= {0, *ids}, "every parent is there"
    assert all(span.begin <= span.end for span in own)
    steps = [span for span in own if span.name in STEPS]
    assert [span.name for span in steps] == (STEPS if version else []), "a founding has none"
    assert all(root.begin <= span.begin and span.end <= root.end for span in steps)
    assert all(a.end <= b.begin for a, b in pairwise(steps))


@pytest.mark.slow
@pytest.mark.parametrize("cipher", ["plain", "rlwe", "bfv"])
def test_a_version_is_one_trace_of_all_parties(
    cipher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=ward-7")
    traced = Traced(tmp_path, cipher)
    traced.play.run()
    assert same(traced.play.model(), unharmed(versions=3)[0]), "it changes nothing"
    by = {name: kept.spans for name, kept in traced.kept.items()}
    everything = [span for spans in by.values() for span in spans]
    traces = {trace_of(traced.run, "all", version): version for version in range(4)}
    newer = trace_of(traced.run, "all", 4)
    assert {span.trace for span in everything} <= {*traces, newer}
    for version in range(4):
        whole(everything, traced.run, version)
    for version in range(1, 4):
        at = {
            name: {span.name for span in spans if traces.get(span.trace) == version}
            for name, spans in by.items()
        }
        assert at["coordinator"] == {VERSION, *STEPS, "checkpoint"}
        assert at["shard-0"] == at["shard-1"] == {"add", "step", "checkpoint"}
        assert all(CLIENTS - {"pull"} <= at[f"client-{i:02}"] for i in range(6))
        if cipher == "bfv":
            assert at["holder-0"] == {"decrypt"}
        if cipher == "rlwe":
            assert sum("share" in at[f"holder-{i}"] for i in range(4)) >= 3
    steps = {span.id: span.name for span in everything if span.name in STEPS}
    parents = {span.name: steps.get(span.parent) for span in everything}
    assert (parents["add"], parents["step"], parents["checkpoint"]) == ("hold", "prepare", None)
    if cipher != "plain":
        assert parents["share" if cipher == "rlwe" else "decrypt"] == "open"
    assert {name for span in everything for name in span.facts} == TOLD
    texts = " ".join(f"{s.name} {s.failed} {s.facts}" for s in everything)
    assert "client-" not in texts
    assert "holder-" not in texts
    assert {s.resource["deployment.environment"] for s in everything} == {"ward-7"}
    assert all("client-" not in f"{dict(s.resource)}" for s in everything)
    services = {span.resource["service.name"] for span in everything}
    assert services >= {f"secureps-{role}" for role in ("coordinator", "shard", "client")}


@pytest.mark.parametrize("party", ["coordinator", "shard-0", "client-03"])
def test_who_comes_back_goes_on_in_the_same_trace(party: str, tmp_path: Path) -> None:
    traced = Traced(tmp_path)
    for version in range(3):
        traced.play.run(partial(traced.reached, version))
        traced.play.kill(party)
        traced.play.start(party)
    traced.play.run()
    spans = [span for kept in traced.kept.values() for span in kept.spans]
    for version in (1, 2, 3):
        whole(spans, traced.run, version)


class Told:
    """The coordinator's tracing, fed with one record a second."""

    def __init__(self) -> None:
        self.kept, self.now = Kept(), 0
        self.tracing = self.restarted()
        self.run = make_run(make_plan())
        self.say(RunPinned(self.run, make_placement(make_plan()), ADDRESSES))

    def restarted(self) -> Tracing:
        self.tracing = self.kept.trace("coordinator", lambda: self.now * SECOND)
        return self.tracing

    def say(self, *written: Any) -> None:
        self.now += 1
        self.tracing.on_records(written)

    def seconds(self, name: str) -> tuple[int, int]:
        (span,) = self.kept.named(name)
        return span.begin // SECOND, span.end // SECOND


def cohort(number: int, version: int, *bases: int) -> Cohort:
    members = tuple(Member(SubmissionId(f"c{i}", "g", 0), 1, base) for i, base in enumerate(bases))
    return Cohort("g", number, version, 1, members)


def test_a_cohort_that_comes_to_nothing_is_an_error_and_the_next_one_another_span() -> None:
    told = Told()
    told.say(records.RoundOpened("g", 1, 0, (), ""))
    told.say(records.CohortClosed(cohort(0, 1, 0, 0), ""))
    told.say(records.CohortReopened("g", 0, ()))
    told.say(records.CohortClosed(cohort(1, 1, 0), ""))
    told.say(records.CohortBurnt("g", 1, "c0 sent what it may not", True))
    told.say(records.CohortClosed(cohort(2, 1, 0), ""))
    told.say(records.CohortOpened("g", 2, ()))
    told.say(records.VersionCommitted("g", 1))
    spans = told.kept.spans
    assert [(s.name, s.failed) for s in spans if s.failed] == [
        ("hold", "reopened"),
        ("open", "spoilt"),
    ]
    assert [s.facts["cohort"] for s in spans if s.name == "close"] == [0, 1, 2]
    assert [s.facts["clients"] for s in spans if s.name == "close"] == [2, 1, 1]
    ids = [span.id for span in spans]
    assert len(set(ids)) == len(ids)
    assert told.seconds(VERSION) == (2, 9)
    assert len({span.trace for span in spans}) == 1


def test_updates_of_other_bases_are_linked_from_their_own_traces() -> None:
    told = Told()
    told.say(records.CohortClosed(cohort(0, 5, 4, 2, 2), ""))
    told.say(records.CohortOpened("g", 0, ()))
    told.say(records.VersionCommitted("g", 5), records.CohortClosed(cohort(1, 6, 5), ""))
    (root,) = told.kept.named(VERSION)
    assert root.links == (trace_of(told.run.id, "g", 3),)
    assert [span.facts["version"] for span in told.kept.named("publish", "close")] == [5, 5, 6]


def test_a_coordinator_that_comes_back_knows_the_cohort_from_its_journal() -> None:
    told = Told()
    closed = records.CohortClosed(cohort(7, 3, 2), "")
    told.say(closed)
    told.now = 100
    told.restarted().on_replay(RunPinned(told.run, make_placement(make_plan()), ADDRESSES))
    told.tracing.on_replay(closed)
    told.say(records.CohortOpened("g", 7, ()))
    assert told.kept.named("open")[0].trace == trace_of(told.run.id, "g", 3)
    assert told.seconds("open") == (100, 101)


def test_a_sampler_takes_the_same_traces_at_every_party(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    taken = []
    for role, within in (("coordinator", None), ("shard", WHOLE)):
        kept = Kept()
        tracing = kept.trace(role, lambda: 1)
        for version in range(200):
            tracing._add("s", "g", version, 1, 2, within=within)
        taken.append({span.trace for span in kept.spans})
    assert taken[0] == taken[1]
    assert 60 < len(taken[0]) < 140


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SERVICE_NAME": "mine"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nobody_is_traced_unasked(environment: dict[str, str]) -> None:
    assert tracing("shard-0", "shard", environment) is None


def test_what_is_wrong_with_the_variables_is_told_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert tracing("shard-0", "shard", {"OTEL_TRACES_EXPORTER": "zipkin"}) is None
    assert "no traces: OTEL_TRACES_EXPORTER: 'zipkin' is not known here" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


def test_a_value_that_the_library_refuses_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1")
    assert tracing("shard-0", "shard", {"OTEL_TRACES_EXPORTER": "console"}) is None
    assert "no traces: " in caplog.text


def test_opentelemetry_is_imported_by_who_asks_for_traces_alone() -> None:
    code = (
        "import sys, secureps.run.serve, secureps.client.script;"
        "from secureps.service.process import tracing; tracing('a', 'shard');"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=quiet
    )
    assert done.stdout.strip() == "False"


def test_ids_follow_from_run_group_and_version_and_of_steps_from_the_cohort() -> None:
    traces = {trace_of(r, g, v) for r in (b"a", b"b") for g in ("g", "h") for v in (0, 1)}
    assert len(traces) == 8
    assert all(0 < trace < 1 << 128 for trace in traces)
    spans = {span_of(t, s, n) for t in traces for s in ("hold", "open") for n in (-1, 0, 1)}
    assert len(spans) == 48
    assert all(0 < span < 1 << 64 for span in spans)


def test_a_pull_is_over_with_its_last_block() -> None:
    kept, times = Kept(), iter(range(100, 200))
    party = kept.trace("client-00", lambda: next(times))
    blocks: list[Future[Any]] = [Future() for _ in range(3)]
    for number, answer in enumerate(blocks):
        party.on_call(GetBlock(b"r" * 32, "all", 4, number), answer)
    for answer in blocks[:2]:
        answer.set_result(None)
    assert kept.spans == []
    blocks[2].set_exception(Unreachable("it is gone"))
    (pull,) = kept.spans
    assert (pull.name, pull.facts["version"], pull.begin) == ("pull", 4, 101)
    assert pull.end > pull.begin
