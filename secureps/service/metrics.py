"""Counts what a server does, for Prometheus, and serves the counts on a port.

Each `Metrics` has its own registry. Labels are names of classes, groups, steps and servers, and
rules' reasons: their number is bounded, and none names a client. Values are counts, sizes and
seconds. A machine belongs to its loop's thread, so a scrape reads what the loop noted last.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from secureps.errors import ConfigError, SecurepsError
from secureps.messages.charge import Fact
from secureps.messages.requests import Payload, PutBlock, Reply, Request
from secureps.messages.run import LOOPBACK, STANDBY, Task, is_on_loopback
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency, total_epsilon
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.group import Phase
from secureps.roles.holder.holder import Holder
from secureps.roles.machine import Machine, Record, TaskResult
from secureps.roles.shard.shard import Shard
from secureps.service.environment import Meter
from secureps.service.web import Port, host_names, refuse_host
from secureps.store.atomic_file import replace_text
from secureps.store.keyring import TlsFiles
from secureps.wire.grpc.admission import Authenticate

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

REQUEST_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
WORK_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

ASKING = 16
"""The most open connections to the port."""
IN, OUT = "in", "out"


class Metrics(Meter, Collector):
    """The counters of one executor."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._ready_lock = threading.Lock()
        self._tell_ready: Callable[[bool], None] = lambda ready: None
        self._ready = self._hangs = False
        self._rows: tuple[_Row, ...] = ()
        self._spent: tuple[Plan, Sequence[Mapping[Fact, int]], bool] | None = None
        """The plan, each member's charges with their counts, and whether a seed was unsafe."""
        self._spent_more = True

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self._requests = counter(
            "secureps_requests",
            "Requests that were answered, by message class and outcome (ok or error class).",
            "kind",
            "outcome",
        )
        self._seconds = Histogram(
            "secureps_request_seconds",
            "From a request's arrival to its answer.",
            ("kind",),
            buckets=REQUEST_SECONDS,
            registry=registry,
        )
        self._strangers = counter(
            "secureps_unauthenticated_requests",
            "Requests turned away unread: no signature of anybody on the roster.",
            "outcome",
        )
        self._payload = counter(
            "secureps_payload_bytes",
            "Bytes of blocks and sums, requests' and answers', in and out.",
            "direction",
        )
        self._calls = counter(
            "secureps_calls",
            "Calls to servers that came back, by message class and outcome.",
            "kind",
            "outcome",
        )
        self._retries = counter(
            "secureps_call_retries", "Calls that failed and are tried again, by server.", "peer"
        )
        self._records = counter(
            "secureps_records_journalled", "Records written by this process, by class.", "kind"
        )
        self._works = Histogram(
            "secureps_work_seconds",
            "Works beside the loop, by task.",
            ("task",),
            buckets=WORK_SECONDS,
            registry=registry,
        )
        for direction in (IN, OUT):
            self._payload.labels(direction)
        registry.register(self)
        ProcessCollector(registry=registry)

    @property
    def ready(self) -> bool:
        """True if the party can do its work and does not hang; thread-safe."""
        return self._ready and not self._hangs

    def on_ready(self, tell: Callable[[bool], None]) -> None:
        """Calls `tell` with `ready`, now and at each change, on the loop."""
        with self._ready_lock:
            self._tell_ready = tell
            tell(self.ready)

    def gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def counting(self, authenticate: Authenticate) -> Authenticate:
        def counted(party: str, request: bytes, signature: bytes) -> None:
            try:
                authenticate(party, request, signature)
            except SecurepsError as error:
                self._strangers.labels(type(error).__name__).inc()
                raise

        return counted

    # --- Meter --------------------------------------------------------------------

    def on_request(self, message: Request, answer: Future[Reply]) -> None:
        kind, began = type(message).__name__, time.perf_counter()
        self._count_payload(message, IN)

        def answered(done: Future[Reply]) -> None:
            self._seconds.labels(kind).observe(time.perf_counter() - began)
            self._requests.labels(kind, self._outcome(done, OUT)).inc()

        answer.add_done_callback(answered)

    def on_call(self, message: Request, answer: Future[Reply]) -> None:
        kind = type(message).__name__
        self._count_payload(message, OUT)

        def came_back(done: Future[Reply]) -> None:
            self._calls.labels(kind, self._outcome(done, IN)).inc()

        answer.add_done_callback(came_back)

    def on_retry(self, to: str) -> None:
        self._retries.labels(to).inc()

    def on_records(self, records: Sequence[Record]) -> None:
        for record in records:
            self._records.labels(type(record).__name__).inc()
            self._spent_more |= isinstance(record, Fact)

    def on_work(self, task: Task, seconds: float, result: TaskResult | None = None) -> None:
        self._works.labels(type(task).__name__).observe(seconds)

    def on_state(self, machine: Machine, now: float) -> None:
        was_ready, self._ready = self.ready, _is_ready(machine)
        if isinstance(machine, Coordinator):
            federation = machine.federation
            facts = () if self._spent is None else self._spent[1]
            if self._spent_more:
                facts = tuple(map(federation.ledger.tally, federation.members))
                self._spent_more = False
            self._spent = machine.plan, facts, bool(federation.unsafe)
            self._rows = tuple(_coordinator_rows(machine, now))
        if self.ready != was_ready:
            with self._ready_lock:
                self._tell_ready(self.ready)

    def on_hang(self, hangs: bool) -> None:
        with self._ready_lock:
            self._hangs = hangs
            self._tell_ready(self.ready)

    def _count_payload(self, message: Request | Reply, direction: str) -> None:
        if isinstance(message, PutBlock | Payload):
            self._payload.labels(direction).inc(len(message.payload))

    def _outcome(self, done: Future[Reply], direction: str) -> str:
        if done.cancelled():
            return "cancelled"
        if (error := done.exception()) is not None:
            return type(error).__name__
        self._count_payload(done.result(), direction)
        return "ok"

    # --- Collector ----------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        ready: _Row = "secureps_ready", "1 if this party can do its work.", (), {(): self.ready}
        for name, text, labels, values in (ready, *self._rows):
            family = GaugeMetricFamily(name, text, labels=labels)
            for own, value in values.items():
                family.add_metric(own, float(value))
            yield family
        if self._spent is not None and self._spent[0].section.privacy is not None:
            plan, facts, unsafe = self._spent
            most = max((total_epsilon(plan, each) for each in facts), default=0.0)
            yield GaugeMetricFamily(
                "secureps_largest_epsilon",
                f"The most that any client has spent, at the plan's delta, of {adjacency(plan)}.",
                value=math.inf if unsafe else most,  # an unsafe seed protects nobody
            )


_Row = tuple[str, str, tuple[str, ...], Mapping[tuple[str, ...], float]]
"""A gauge: its name, its help text, names of labels, and values by labels."""


def _is_ready(machine: Machine) -> bool:
    """True if a started machine can do its work; a shard or holder needs a run for that."""
    match machine:
        case Shard():
            return machine.state.is_pinned
        case Holder():
            return machine.is_pinned
    return True


def _coordinator_rows(machine: Coordinator, now: float) -> Iterator[_Row]:
    federation, servers, live = machine.federation, machine.servers, machine.live(now)
    groups = federation.groups.values()
    waits = machine.describe_waits(now)
    members, finished = len(federation.members), bool(federation.finished)
    yield (
        "secureps_group_version",
        "The committed version of a group; -1 before the first.",
        ("group",),
        {(g.name,): g.version for g in groups},
    )
    yield (
        "secureps_group_step",
        "1 for the step of the commit that a group is in.",
        ("group", "step"),
        {(g.name, phase.value): phase is g.phase for g in groups for phase in Phase},
    )
    yield (
        "secureps_group_waits",
        "1 for what a group waits for, as `secureps status` says it, without clients' names.",
        ("group", "why"),
        {(name, hide_names(reason, federation.members)): 1 for name, reason in waits.items()},
    )
    yield "secureps_members_joined", "Clients that ever joined.", (), {(): members}
    yield "secureps_members_live", "Clients whose lease runs.", (), {(): len(live)}
    yield (
        "secureps_servers_away",
        "Servers of the roster that do not watch the coordinator now, by role.",
        ("role",),
        {(r,): sum(s.role == r and not s.live for s in servers) for r in ("shard", "holder")},
    )
    text = "1 if the standby has everything that was acknowledged, and can take over."
    for standby in (server for server in servers if server.name == STANDBY):
        yield "secureps_standby_follows", text, (), {(): standby.live}
    yield "secureps_finished", "1 if the run is over.", (), {(): finished}


def hide_names(reason: str, clients: Collection[str]) -> str:
    """Replaces clients' names in a reason: "client-1, client-2 and 3 more" becomes "clients".

    It also removes the remaining seconds. Both keep the number of labels bounded, and metrics,
    which anybody may read, name no client.
    """
    reason = re.sub(r", \d+ s left", "", reason)
    words = ("clients" if w in clients else w for w in re.split(r"([^\w.-]+|[.](?:\s|$))", reason))
    return re.sub(r"clients(?:, clients)*(?: and \d+ more)?", "clients", "".join(words))


@contextmanager
def serve_metrics(
    metrics: Metrics, listen: str, state: Path, tls: TlsFiles | None
) -> Iterator[str]:
    """Answers HTTP GETs on `listen` while the `with` lasts; STATE/metrics-address has the address.

    Raises:
        ConfigError: `listen` is not HOST:PORT, or not on loopback and without `tls`.
        OperatorError: it cannot listen there.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"metrics: {listen!r} is not HOST:PORT")
    if is_on_loopback(listen):
        tls = None
    elif tls is None:
        raise ConfigError(f"metrics: {listen} is not on loopback: leave insecure out")
    app = make_wsgi_app(metrics.registry)
    with Port("metrics", listen, ASKING, tls) as server:
        if tls is None:
            app = _guard(app, host_names(LOOPBACK, server.server_port))
        server.set_app(app)
        with server.serving():
            address = f"{host}:{server.server_port}"
            replace_text(state / "metrics-address", f"{address}\n", 0o600)
            yield address


def _guard(app: WSGIApplication, names: frozenset[str]) -> WSGIApplication:
    """Refuses requests that do not name this server (DNS rebinding, see `refuse_host`)."""

    def answer(environ: WSGIEnvironment, begin: StartResponse) -> Iterable[bytes]:
        if why := refuse_host(environ, names):
            begin("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{why}\n".encode()]
        return app(environ, begin)

    return answer


def spooled_bytes(spool: Path) -> int:
    total = 0
    for path in spool.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
