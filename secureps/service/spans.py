"""Exports spans by OpenTelemetry, to the place that OTEL_EXPORTER_OTLP_ENDPOINT names.

Only this module imports opentelemetry, which belongs to the extra `trace`.
"""

from __future__ import annotations

import os
import threading

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from secureps import __version__
from secureps.service.tracing import VERSION, Span, span_of

LAST_SECONDS = 1.0
"""Seconds that a process waits at its end for spans to be sent."""


class _Ids:
    """Generates the ids that this thread has chosen, or random ones."""

    def __init__(self) -> None:
        self._chosen = threading.local()
        self._random = RandomIdGenerator()

    def choose(self, trace: int, span: int) -> None:
        self._chosen.trace, self._chosen.span = trace, span

    def generate_trace_id(self) -> int:
        return int(getattr(self._chosen, "trace", 0)) or int(self._random.generate_trace_id())

    def is_trace_id_random(self) -> bool:
        return True

    def generate_span_id(self) -> int:
        return int(getattr(self._chosen, "span", 0)) or int(self._random.generate_span_id())


class OpenTelemetrySpans:
    """Sends the spans of one party; names a client only if OTEL_RESOURCE_ATTRIBUTES does."""

    def __init__(self, party: str, role: str, processor: SpanProcessor) -> None:
        self._ids = _Ids()
        named = {} if role == "client" else {"service.instance.id": party}
        own = {"service.name": f"secureps-{role}", "service.version": __version__, **named}
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(
            id_generator=self._ids, resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("secureps", __version__)

    @classmethod
    def exported(cls, party: str, role: str, exporter: str) -> OpenTelemetrySpans:
        return cls(party, role, BatchSpanProcessor(_exporter(exporter)))

    def add(self, span: Span) -> None:
        within = Context()
        if span.parent:
            within = set_span_in_context(
                NonRecordingSpan(self._context(span.trace, span.parent)), within
            )
        links = [Link(self._context(trace, span_of(trace, VERSION))) for trace in span.links]
        facts = {f"secureps.{name}": value for name, value in span.facts.items()}
        self._ids.choose(span.trace, span.id)
        try:
            made = self._tracer.start_span(
                span.name, within, attributes=facts, links=links, start_time=span.begin
            )
        finally:
            self._ids.choose(0, 0)
        if span.failed:
            made.set_status(Status(StatusCode.ERROR, span.failed))
        made.end(span.end)

    def close(self) -> None:
        sending = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        sending.start()
        sending.join(LAST_SECONDS)

    def _context(self, trace: int, span: int) -> SpanContext:
        """Makes a span's ids; the sampler decides by the trace, alike at every party."""
        taken = self._provider.sampler.should_sample(None, trace, VERSION).decision.is_sampled()
        return SpanContext(trace, span, True, TraceFlags(TraceFlags.SAMPLED if taken else 0))


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        return ConsoleSpanExporter()
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http()
