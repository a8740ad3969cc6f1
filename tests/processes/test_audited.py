"""What real processes tell: audit logs that are exported meanwhile, and one trace a version."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from secureps.audit.entries import load
from secureps.errors import Malformed, Unsigned
from secureps.messages.requests import AskStatus
from secureps.run.audit_log import export, verify
from secureps.service.tracing import VERSION, trace_of
from secureps.wire.grpc import framing
from tests.kits.hostile_peer import peer_of
from tests.kits.nursery import spawn
from tests.kits.processes import Processes


def test_a_running_coordinator_tells_what_it_did_and_when(tmp_path: Path) -> None:
    began = time.time()
    with Processes(tmp_path, "plain") as processes:
        processes.pace = 0.15
        processes.start_all()
        own = (tmp_path / "coordinator", processes.kit("coordinator"))
        processes.wait(lambda: processes.reached(1), "a version")
        early = exported(*own, log := tmp_path / "log.jsonl")
        assert processes.alive("coordinator")
        processes.kill("coordinator")
        processes.start("coordinator")
        processes.wait(processes.finished, "the end")
        assert exported(*own, log).startswith(early)
    entries = load(log.read_bytes()).entries
    assert {"cohort closed", "run over"} < {entry.what for entry in entries}
    dates = [datetime.fromisoformat(str(entry.date)).astimezone(UTC) for entry in entries]
    assert began - 2 < min(dates).timestamp() < max(dates).timestamp() < time.time() + 2


def exported(state: Path, kit: Path, log: Path) -> bytes:
    export(state, kit, "coordinator", log)
    verify([log], kit, state)
    return log.read_bytes()


def test_what_a_server_turned_away_is_counted_in_its_log(tmp_path: Path) -> None:
    """Of a flood there are counts, and not an entry for each."""
    with Processes(tmp_path, "plain", clients=7, versions=100_000, insecure=True) as processes:
        processes.pace = 0.3
        processes.start_all(clients=6)
        processes.wait(lambda: processes.reached(1), "a version")
        stranger = peer_of(processes, "client-05", "client-06")
        member = peer_of(processes, "client-06", "client-06")
        for _ in range(200):
            with pytest.raises(Unsigned):
                stranger.ask("coordinator", AskStatus())
        for to, method in (("coordinator", framing.COORDINATOR_TELL), ("shard-0", framing.GET)):
            with pytest.raises(Unsigned):
                stranger.raw(to, method, [b"x"], anonymous=True)
            for _ in range(3):
                with pytest.raises(Malformed):
                    member.raw(to, method, [b"no message"])
        stranger.close()
        member.close()
        counts, rows = Counter[tuple[str, str, str]](), 0
        for server in ("coordinator", "shard-0"):
            assert processes.stop(server) == 0
            log = tmp_path / f"{server}.jsonl"
            export(tmp_path / server, processes.kit(server), server, log)
            for entry in load(log.read_bytes()).entries:
                if entry.what == "requests refused":
                    rows += 1
                    facts: Any = entry.facts
                    counts[server, facts["party"], facts["error"]] += facts["count"]
    assert counts["coordinator", "(nobody known)", "Unsigned"] == 201
    assert counts["coordinator", "client-06", "Malformed"] == 3
    assert counts["shard-0", "(nobody known)", "Unsigned"] == 1
    assert counts["shard-0", "client-06", "Malformed"] == 3
    assert rows <= 8, "of each party and error one when it begins, one at the end"


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
