"""All processes send one trace for each version."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from secureps.service.tracing import VERSION, trace_of
from tests.kits.nursery import spawn
from tests.kits.processes import Processes

pytest.importorskip(
    "opentelemetry.proto", reason="opentelemetry is not installed: pip install 'secureps[trace]'"
)


class Collector(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.spans: set[tuple[int, str, str]] = set()
        self.bodies: list[bytes] = []

    def has(self, trace: int, spans: set[tuple[str, str]]) -> bool:
        return spans <= {(name, service) for at, name, service in set(self.spans) if at == trace}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Post(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(body)
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {a.key: a.value.string_value for a in each.resource.attributes}
            for scope in each.scope_spans:
                for span in scope.spans:
                    trace = int.from_bytes(span.trace_id, "big")
                    self.server.spans.add((trace, span.name, named["service.name"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


class TracedProcesses(Processes):
    endpoint = ""

    def _begin(self, command: list[str], log: Path) -> Any:
        asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        return spawn(command, self.folder, log, {**os.environ, **asked})


def test_all_processes_of_a_run_send_one_trace_a_version(tmp_path: Path) -> None:
    with collecting() as collector, TracedProcesses(tmp_path, "plain", versions=2) as run:
        run.endpoint = collector.url
        run.start_all()
        run.wait(run.finished, "the end")
        id = run.seen.run
        wanted = {
            (VERSION, "secureps-coordinator"),
            ("open", "secureps-coordinator"),
            ("step", "secureps-shard"),
            ("train", "secureps-client"),
            ("submit", "secureps-client"),
        }
        for version in (1, 2):
            trace = trace_of(id, "all", version)
            whole = partial(collector.has, trace, wanted)
            run.wait(whole, f"the whole trace of version {version}")
        assert not any(b"client-0" in body for body in collector.bodies)
        assert run.stop("coordinator") == 0
