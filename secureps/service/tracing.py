"""Traces: one for each version, with the work of every party for that version.

    version                  from the first message about it to its commit
      close hold open        the six steps, as the coordinator journals them
      prepare commit publish
        add, step            of shards, under the step that they are for
        share, decrypt       of key holders
      pull train seal        of clients
      upload submit evaluate
      checkpoint           parts of shards; the coordinator's manifest

The ids of a trace and of its steps are digests of the run, the group and the version, which all
parties know. So messages carry no ids, a party continues its trace after a crash, and no party can
bring in foreign ids. Spans are made from records, tasks and calls; machines know nothing of them.
They name groups, versions, cohorts and numbers, never a client.

OpenTelemetry sends them to the place that OTEL_EXPORTER_OTLP_ENDPOINT names. Only this module
imports opentelemetry, which belongs to the extra `trace`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from secureps import __version__
from secureps.messages import coordinator_records as records
from secureps.messages.encoding import digest
from secureps.messages.holder_records import CohortReleased
from secureps.messages.member_records import Sealed
from secureps.messages.orders import Examine, Open, WriteCheckpoint
from secureps.messages.records import RunPinned
from secureps.messages.requests import GetBlock, Prepared, Reply, Request, Submit
from secureps.messages.run import Task
from secureps.messages.submission import Cohort, Held
from secureps.roles.coordinator.state import WriteManifest
from secureps.roles.holder.bfv import OpenSum
from secureps.roles.machine import Record, TaskResult
from secureps.roles.member.tasks import (
    Contribute,
    Contributed,
    Evaluate,
    Offer,
    Reseal,
)
from secureps.roles.shard.state import MakeState, StepState, SumCohort
from secureps.service.environment import Meter

VERSION = "version"
"""The name of a trace's first span."""

_Step = tuple[str, int]
"""A step, and the number of its cohort."""

WHOLE: _Step = (VERSION, -1)
"""The first span, which encloses the steps of every cohort."""

SECOND = 10**9

LAST_SECONDS = 1.0
"""Seconds that a process waits at its end for spans to be sent."""


def trace_of(run: bytes, group: str, version: int) -> int:
    """Computes the id of a version's trace: 128 bits, never 0."""
    own = (run, group.encode(), version.to_bytes(8, "little", signed=True))
    return int.from_bytes(digest("secureps-trace", *own)[:16], "big") or 1


def span_of(trace: int, step: str, cohort: int = -1) -> int:
    """Computes the id of a step's span, or of the whole VERSION's: 64 bits, never 0."""
    own = (trace.to_bytes(16, "big"), step.encode(), cohort.to_bytes(8, "little", signed=True))
    return int.from_bytes(digest("secureps-span", *own)[:8], "big") or 1


@dataclass(slots=True)
class _Times:
    since: int
    closed: int = 0
    held: int = 0
    opened: int = 0
    prepared: int = 0


class Tracing(Meter):
    """Makes and sends the spans of one party.

    A client is named only if OTEL_RESOURCE_ATTRIBUTES names it. `clock` gives nanoseconds since
    1970.
    """

    def __init__(
        self,
        party: str,
        role: str,
        processor: SpanProcessor,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        named = {} if role == "client" else {"service.instance.id": party}
        own = {"service.name": f"secureps-{role}", "service.version": __version__, **named}
        self._resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._processor = processor
        self._random = RandomIdGenerator()
        self._clock = clock
        self._born = clock()
        self._run = b""
        self._lock = threading.Lock()
        self._cohorts: dict[str, Cohort] = {}
        self._times: dict[str, _Times] = {}
        self._sealed: dict[tuple[str, int], int] = {}
        self._pulls: dict[tuple[str, int], list[int]] = {}

    @classmethod
    def exported(cls, party: str, role: str, exporter: str) -> Tracing:
        return cls(party, role, BatchSpanProcessor(_exporter(exporter)))

    def close(self) -> None:
        sending = threading.Thread(target=self._processor.shutdown, name="spans", daemon=True)
        sending.start()
        sending.join(LAST_SECONDS)

    # --- Meter --------------------------------------------------------------------

    def on_replay(self, record: Record) -> None:
        match record:
            case RunPinned(run):
                self._run = run.id
            case records.CohortClosed(cohort) | CohortReleased(cohort):
                self._cohorts[cohort.group] = cohort

    def on_records(self, written: Sequence[Record]) -> None:
        for record in written:
            self.on_replay(record)
            self._step(record, self._clock())

    def on_work(self, task: Task, seconds: float, result: TaskResult | None = None) -> None:
        end = self._clock()
        begin = end - int(seconds * SECOND)
        match task:
            case SumCohort(cohort):
                self._add_for_cohort("add", cohort, "hold", begin, end)
            case StepState(cohort):
                self._add_for_cohort("step", cohort, "prepare", begin, end)
            case Open(cohort=cohort):
                self._add_for_cohort("share", cohort, "open", begin, end)
            case OpenSum(cohort):
                self._add_for_cohort("decrypt", cohort, "open", begin, end)
            case MakeState(group):
                self._add("make", group, 0, begin, end)
            case Examine(receipt=receipt):
                self._add("examine", receipt.id.group, receipt.version + 1, begin, end)
            case Contribute():
                self._add_training(task, begin, end, result)
            case Offer(group):
                self._add("seal", group, 0, begin, end)
            case Reseal(receipt):
                self._add("seal", receipt.id.group, receipt.version + 1, begin, end)
            case Evaluate():
                at = task.model[0]
                self._add("evaluate", at.group, at.version, begin, end)
            case WriteCheckpoint(_, number, versions) | WriteManifest(number, versions):
                for at in versions:
                    told = {"checkpoint": number}
                    self._add("checkpoint", at.group, at.version, begin, end, told)

    def on_call(self, message: Request, answer: Future[Reply]) -> None:
        begin = self._clock()
        match message:
            case Submit(receipt):
                group, version = receipt.id.group, receipt.version + 1
                sealed = self._sealed.pop((group, receipt.id.sequence), None)
                if sealed is not None:
                    self._add("upload", group, version, sealed, begin)
                answer.add_done_callback(
                    lambda _: self._add("submit", group, version, begin, self._clock())
                )
            case GetBlock(group=group, version=version):
                with self._lock:
                    self._pulls.setdefault((group, version), [begin, 0])[1] += 1
                answer.add_done_callback(lambda _: self._end_pull(group, version))

    def _end_pull(self, group: str, version: int) -> None:
        """Counts down the blocks of a pull; the last one ends its span."""
        with self._lock:
            pull = self._pulls[group, version]
            pull[1] -= 1
            if pull[1]:
                return
            del self._pulls[group, version]
        self._add("pull", group, version, pull[0], self._clock())

    # --- a client's training ------------------------------------------------------

    def _add_training(
        self, task: Contribute, begin: int, end: int, result: TaskResult | None
    ) -> None:
        if not isinstance(result, Contributed) or result.again:
            return  # nothing was trained, or training failed, as the log says
        figures = {figure.name: figure.value for figure in result.figures}
        trained = min(end, begin + int(figures.get("training_seconds", 0.0) * SECOND))
        for aim in task.aims:
            self._add("train", aim.group, aim.version + 1, begin, trained)
            self._add("seal", aim.group, aim.version + 1, trained, end)

    # --- the six steps ------------------------------------------------------------

    def _step(self, record: Record, now: int) -> None:
        match record:
            case records.RoundOpened(group=group):
                self._times_of(group, now)
            case Submit(receipt):
                self._times_of(receipt.id.group, now)
            case Sealed(receipt):
                self._sealed[receipt.id.group, receipt.id.sequence] = now
            case records.CohortClosed(cohort):
                times = self._times_of(cohort.group)
                times.closed = times.held = now
                self._add_step("close", cohort.group, times.since, now)
            case Held(group=group):
                self._times_of(group).held = now
            case records.CohortReopened(group=group):
                self._add_step("hold", group, self._times_of(group).closed, now, "reopened")
            case records.CohortBurnt(group=group, spoilt=spoilt):
                times = self._times_of(group)
                self._add_step("hold", group, times.closed, times.held)
                self._add_step("open", group, times.held, now, "spoilt" if spoilt else "burnt")
            case records.CohortOpened(group=group):
                times = self._times_of(group)
                self._add_step("hold", group, times.closed, times.held)
                self._add_step("open", group, times.held, now)
                times.opened = times.prepared = now
            case Prepared(group=group):
                self._times_of(group).prepared = now
            case records.VersionCommitted(group, version):
                self._add_version(group, version, now)

    def _times_of(self, group: str, now: int = 0) -> _Times:
        """Returns the times of a group's next version, which begins `now` if it is new."""
        if group not in self._times:
            self._times[group] = _Times(now or self._born)
        return self._times[group]

    def _add_version(self, group: str, version: int, now: int) -> None:
        times, cohort = self._times_of(group), self._cohorts.get(group)
        if cohort is not None and cohort.version == version:
            self._add_step("prepare", group, times.opened, times.prepared or now)
            self._add_step("commit", group, times.prepared or now, now)
            self._add_step("publish", group, now, now)
        others = {} if cohort is None else {each.version + 1 for each in cohort.members}
        links = sorted({*others} - {version})
        self._add(VERSION, group, version, times.since, now, within=None, own=WHOLE, links=links)
        self._times[group] = _Times(now)

    # --- spans --------------------------------------------------------------------

    def _add_step(self, step: str, group: str, begin: int, end: int, failed: str = "") -> None:
        """Adds a step of a group's cohort; times that are 0 were before this process began."""
        if (cohort := self._cohorts.get(group)) is None:
            return
        facts = {"cohort": cohort.number, "clients": len(cohort.members)}
        begin, own = begin or self._born, (step, cohort.number)
        end = max(begin, end)
        self._add(step, group, cohort.version, begin, end, facts, own=own, failed=failed)

    def _add_for_cohort(self, name: str, cohort: Cohort, step: str, begin: int, end: int) -> None:
        facts, within = {"cohort": cohort.number}, (step, cohort.number)
        self._add(name, cohort.group, cohort.version, begin, end, facts, within)

    def _add(
        self,
        name: str,
        group: str,
        version: int,
        begin: int,
        end: int,
        facts: Mapping[str, int] | None = None,
        within: _Step | None = WHOLE,
        own: _Step | None = None,
        links: Sequence[int] = (),
        failed: str = "",
    ) -> None:
        """Sends a span of a version; thread-safe, returns at once.

        Args:
            within: the enclosing step, if any.
            own: the step that this span is; other spans have random ids.
            links: earlier versions whose updates went into this version.
            failed: one word about the failure, if the work failed.
        """
        trace = trace_of(self._run, group, version)
        id = self._random.generate_span_id() if own is None else span_of(trace, *own)
        earlier = (trace_of(self._run, group, each) for each in links)
        told = {"run": self._run.hex()[:16], "group": group, "version": version, **(facts or {})}
        named = {f"secureps.{fact}": value for fact, value in told.items()}
        made = ReadableSpan(
            name,
            self._context(trace, id),
            None if within is None else self._context(trace, span_of(trace, *within), True),
            self._resource,
            named,
            links=[Link(self._context(each, span_of(each, *WHOLE), True)) for each in earlier],
            status=Status(StatusCode.ERROR, failed) if failed else Status(),
            start_time=begin,
            end_time=end,
            instrumentation_scope=InstrumentationScope("secureps", __version__),
        )
        self._processor.on_end(made)

    def _context(self, trace: int, span: int, others: bool = False) -> SpanContext:
        """Makes a span's ids; the sampler decides by the trace, alike at every party."""
        taken = self._sampler.should_sample(None, trace, VERSION).decision.is_sampled()
        return SpanContext(trace, span, others, TraceFlags(TraceFlags.SAMPLED if taken else 0))


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        return ConsoleSpanExporter()
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = "grpc" if next(filter(None, map(os.environ.get, names)), "") == "grpc" else "http"
    module = import_module(f"opentelemetry.exporter.otlp.proto.{protocol}.trace_exporter")
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter
