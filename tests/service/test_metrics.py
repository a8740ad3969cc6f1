"""Operation: metrics say what happened, and name no client."""

import math
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import Busy, ConfigError, OperatorError, Unsigned, WrongVersion
from secureps.messages.coordinator_records import VersionCommitted
from secureps.messages.records import Incarnated
from secureps.messages.requests import GetBlock, Heartbeat, Noted, Payload, PutBlock
from secureps.messages.run import STANDBY, Placement
from secureps.messages.submission import BlockHeader
from secureps.roles.coordinator.state import WriteManifest
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from secureps.service.environment import Meter
from secureps.service.metrics import ASKING, Metrics, serve_metrics
from secureps.service.web import PATIENCE, host_names
from secureps.store.issuing import approve, create_kit, issue, make_keys, renew
from secureps.store.keyring import LOOK, TlsFiles, load_public
from tests.kits.federations import Walker, small_plan
from tests.kits.host_requests import OTHERS, OWN, answer
from tests.kits.party_kits import give, phrase
from tests.kits.polling import until
from tests.kits.processes import Processes
from tests.kits.standbys import followed, lose, reach

HEADER = BlockHeader(b"r" * 32, "hospital-1", "update", "g", 0, 0, 3, b"d" * 32)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def ended(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def test_requests_are_counted_when_they_are_answered_by_what_came_of_them(metrics: Metrics) -> None:
    meter: Meter = metrics
    waiting: Future[Any] = Future()
    meter.on_request(Heartbeat("hospital-1"), waiting)
    assert value(metrics, "secureps_requests_total", kind="Heartbeat", outcome="ok") is None
    waiting.set_result(Noted())
    meter.on_request(Heartbeat("hospital-1"), ended(WrongVersion("hospital-1 is late")))
    assert value(metrics, "secureps_requests_total", kind="Heartbeat", outcome="ok") == 1
    outcome = "WrongVersion"
    assert value(metrics, "secureps_requests_total", kind="Heartbeat", outcome=outcome) == 1
    assert value(metrics, "secureps_request_seconds_count", kind="Heartbeat") == 2
    assert b"hospital-1" not in generate_latest(metrics.registry), "no series names a client"


def test_payload_bytes_go_in_and_out_on_both_sides(metrics: Metrics) -> None:
    metrics.on_request(PutBlock(HEADER, b"abc"), ended(Noted()))
    metrics.on_request(GetBlock(b"r", "g", 1, 0), ended(Payload(b"d", b"12345")))
    assert value(metrics, "secureps_payload_bytes_total", direction="in") == 3
    assert value(metrics, "secureps_payload_bytes_total", direction="out") == 5
    metrics.on_call(PutBlock(HEADER, b"abcd"), ended(Busy("full")))
    metrics.on_call(GetBlock(b"r", "g", 1, 0), ended(Payload(b"d", b"12")))
    assert value(metrics, "secureps_payload_bytes_total", direction="in") == 5
    assert value(metrics, "secureps_payload_bytes_total", direction="out") == 9
    assert value(metrics, "secureps_calls_total", kind="PutBlock", outcome="Busy") == 1


def test_retries_records_and_works(metrics: Metrics) -> None:
    metrics.on_retry("shard-0")
    metrics.on_records([Incarnated(1), VersionCommitted("g", 0), VersionCommitted("g", 1)])
    metrics.on_work(WriteManifest(0, (), Placement(1, (), ()), ()), 2.0)
    assert value(metrics, "secureps_call_retries_total", peer="shard-0") == 1
    assert value(metrics, "secureps_records_journalled_total", kind="VersionCommitted") == 2
    assert value(metrics, "secureps_work_seconds_sum", task="WriteManifest") == 2.0


def test_whoever_is_turned_away_unread_is_counted(metrics: Metrics) -> None:

    def authenticate(party: str, request: bytes, signature: bytes) -> None:
        if signature != b"good":
            raise Unsigned("no")

    counted = metrics.counting(authenticate)
    counted("hospital-1", b"", b"good")
    with pytest.raises(Unsigned):
        counted("mallory", b"", b"bad")
    assert value(metrics, "secureps_unauthenticated_requests_total", outcome="Unsigned") == 1


def coordinator_after(tmp_path: Path, version: int) -> tuple[Simulation, Metrics]:
    privacy = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "records": 10,
        "sample_rate": 0.5,
        "delta": 1e-5,
        "budget": 1000.0,
    }
    plan = small_plan(privacy=privacy, training={"local_steps": 1})
    trainers = {name: Walker(i) for i, name in enumerate(client_names(6))}
    simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path)
    simulation.run(lambda: simulation.versions()["all"] >= version)
    metrics = Metrics()
    metrics.on_state(simulation.coordinator, simulation.loop.now())
    return simulation, metrics


def test_gauges_are_the_folds(tmp_path: Path) -> None:
    simulation, metrics = coordinator_after(tmp_path, 2)
    assert value(metrics, "secureps_group_version", group="all") == 2
    steps = {
        sample.labels["step"]: sample.value
        for family in metrics.registry.collect()
        if family.name == "secureps_group_step"
        for sample in family.samples
    }
    step = simulation.coordinator.federation.groups["all"].phase.value
    assert steps.pop(step) == 1
    assert set(steps.values()) == {0}
    assert len(steps) == 6
    assert value(metrics, "secureps_members_joined") == 6
    assert value(metrics, "secureps_members_live") == 6
    assert value(metrics, "secureps_servers_away", role="shard") == 0
    assert value(metrics, "secureps_finished") == 0
    assert value(metrics, "secureps_largest_epsilon") == math.inf, "an unsafe seed protects nobody"
    told = generate_latest(metrics.registry).decode()
    assert "at the plan's delta, of one record added or removed." in told


def test_whether_a_standby_follows(tmp_path: Path) -> None:
    """A coordinator that never had a standby reports nothing."""
    _, alone = coordinator_after(tmp_path / "alone", 1)
    assert value(alone, "secureps_standby_follows") is None
    simulation, metrics = followed(tmp_path), Metrics()
    reach(simulation, 1)
    metrics.on_state(simulation.coordinator, simulation.loop.now())
    assert value(metrics, "secureps_standby_follows") == 1
    lose(simulation, STANDBY)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    metrics.on_state(simulation.coordinator, simulation.loop.now())
    assert value(metrics, "secureps_standby_follows") == 0


def test_what_was_noted_does_not_move_with_the_machine(tmp_path: Path) -> None:
    simulation, metrics = coordinator_after(tmp_path, 1)
    simulation.run()
    assert value(metrics, "secureps_group_version", group="all") == 1
    assert value(metrics, "secureps_finished") == 0
    metrics.on_state(simulation.coordinator, simulation.loop.now())
    assert value(metrics, "secureps_finished") == 1


def test_the_largest_epsilon_follows_the_ledger(tmp_path: Path) -> None:
    simulation, metrics = coordinator_after(tmp_path, 1)
    coordinator = simulation.coordinator
    coordinator.federation.unsafe.clear()
    metrics.on_state(coordinator, simulation.loop.now())
    first = value(metrics, "secureps_largest_epsilon")
    charges = coordinator.federation.ledger.facts
    simulation.run(lambda: len(coordinator.federation.ledger.facts) > len(charges))
    coordinator.federation.unsafe.clear()
    metrics.on_state(coordinator, simulation.loop.now())
    assert value(metrics, "secureps_largest_epsilon") == first, "nothing was journalled here"
    metrics.on_records([coordinator.federation.ledger.facts[-1]])
    metrics.on_state(coordinator, simulation.loop.now())
    after = value(metrics, "secureps_largest_epsilon")
    assert first is not None
    assert after is not None
    assert 0 < first < after < math.inf


def test_a_party_is_ready_once_it_stands(metrics: Metrics, tmp_path: Path) -> None:
    told: list[bool] = []
    metrics.on_ready(told.append)
    assert value(metrics, "secureps_ready") == 0
    simulation = Simulation(small_plan(), Cast({"a": Walker(0)}, UnsafeSeed(3)), tmp_path)
    shard = simulation.parties["shard-0"].machine
    metrics.on_state(shard, 0.0)
    assert (told, value(metrics, "secureps_ready")) == ([False], 0), "it belongs to no run yet"
    metrics.on_state(simulation.coordinator, 0.0)
    metrics.on_state(simulation.coordinator, 0.0)
    assert told == [False, True]
    assert value(metrics, "secureps_ready") == 1


def test_the_port_answers_while_it_is_open_and_is_free_afterwards(
    metrics: Metrics, tmp_path: Path
) -> None:
    metrics.gauge("secureps_test", "A test.", lambda: 7.0)
    with serve_metrics(metrics, "127.0.0.1:0", tmp_path, None) as address:
        assert (tmp_path / "metrics-address").read_text() == f"{address}\n"
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
            assert b"secureps_test 7.0" in reply.read()
        with (
            pytest.raises(OperatorError, match="metrics: cannot listen"),
            serve_metrics(metrics, address, tmp_path, None),
        ):
            raise AssertionError
    host, _, port = address.rpartition(":")
    socket.create_server((host, int(port))).close()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of metrics on loopback."""
    with serve_metrics(Metrics(), "127.0.0.1:0", tmp_path_factory.mktemp("state"), None) as address:
        yield int(address.rpartition(":")[2])


@pytest.mark.parametrize("text", OTHERS.values(), ids=list(OTHERS))
def test_a_page_that_points_its_own_name_here_reads_nothing(port: int, text: str) -> None:
    status, told = answer(port, text, "/metrics")
    assert status == 403
    assert f"this server answers to 127.0.0.1:{port}, [::1]:{port}, localhost:{port}, and" in told
    assert "secureps_" not in told


@pytest.mark.parametrize("text", OWN.values(), ids=list(OWN))
def test_names_of_this_machine_are_answered(port: int, text: str) -> None:
    for request in (text, text.replace("GET ", f"GET http://127.0.0.1:{port}")):
        status, told = answer(port, request, "/metrics")
        assert status == 200
        assert "secureps_ready" in told


def test_the_schemes_own_port_may_go_without_saying() -> None:
    assert host_names(["127.0.0.1"], 80) == {"127.0.0.1", "127.0.0.1:80"}
    assert host_names(["Ps"], 443, 443) == {"ps", "ps:443"}
    assert host_names(["ps"], 80, 443) == {"ps:80"}


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    made = tmp_path / "kit"
    create_kit(made, CipherParameters("plain", 8, 14))
    issue(made, "holder", "keys-0")
    return made


def trusting(kit: Path, name: str = "") -> ssl.SSLContext:
    """Makes a context that trusts only the kit's CA, and shows a party's certificate, if named."""
    tls = kit / "public" / "tls"
    context = ssl.create_default_context(cafile=tls / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.check_hostname = False  # asked by its address; Prometheus has server_name
    if name:
        context.load_cert_chain(tls / f"{name}.pem", kit / "private" / name / "tls.key")
    return context


def test_beyond_this_machine_it_is_for_those_of_the_kit(tmp_path: Path, kit: Path) -> None:
    issue(kit, "observer", "prometheus")
    now = [0.0]
    tls = TlsFiles(kit, "keys-0", load_public(kit).ca, lambda: now[0])
    context = trusting(kit)
    metrics = Metrics()
    with (
        pytest.raises(ConfigError, match="is not on loopback: leave insecure out"),
        serve_metrics(metrics, "0.0.0.0:0", tmp_path, None),
    ):
        raise AssertionError
    with serve_metrics(metrics, "0.0.0.0:0", tmp_path, tls) as address:
        port = address.rpartition(":")[2]
        half_open = socket.create_connection(("127.0.0.1", int(port)))
        url = f"https://127.0.0.1:{port}/metrics"
        with pytest.raises(OSError):
            urllib.request.urlopen(url.replace("https", "http"), timeout=10)
        with pytest.raises(OSError):
            urllib.request.urlopen(url, timeout=10, context=context)
        context = trusting(kit, "prometheus")
        with urllib.request.urlopen(url, timeout=10, context=context) as reply:
            assert reply.status == 200
        now[0] += LOOK
        renew(kit, ["keys-0"])
        with (
            socket.create_connection(("127.0.0.1", int(port)), 10) as line,
            context.wrap_socket(line) as secured,
        ):
            shown = ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"")
        assert shown == (kit / "public" / "tls" / "keys-0.pem").read_text()
        half_open.close()


@pytest.mark.parametrize("secured", [False, True], ids=["in the clear", "tls"])
def test_who_says_nothing_or_nonsense_holds_nobody_up(
    tmp_path: Path, kit: Path, secured: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    tls = TlsFiles(kit, "keys-0", load_public(kit).ca)
    context = trusting(kit, "keys-0")
    threads = threading.active_count()
    with (
        ExitStack() as half,
        serve_metrics(
            Metrics(), "0.0.0.0:0" if secured else "127.0.0.1:0", tmp_path, tls
        ) as address,
    ):
        port = int(address.rpartition(":")[2])
        url = f"{'https' if secured else 'http'}://127.0.0.1:{port}/metrics"
        for said in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET /metrics HTTP/1.1\r\nHost: "):
            for _ in range(2 * ASKING):
                line = half.enter_context(socket.create_connection(("127.0.0.1", port)))
                with suppress(OSError):
                    line.sendall(said)
            with urllib.request.urlopen(
                url, timeout=PATIENCE / 2, context=context if secured else None
            ) as reply:
                assert reply.status == 200
        # The threads of those that were let go end a moment later; the port's own stays.
        until(lambda: threading.active_count() <= threads + ASKING + 1)
    assert "Traceback" not in capfd.readouterr().err


def test_a_key_under_a_passphrase_is_on_no_disk(tmp_path: Path) -> None:
    issuer, own = tmp_path / "issuer", tmp_path / "own"
    create_kit(issuer, CipherParameters("plain", 8, 14))
    asked = [make_keys(own, "holder", "keys-0", None, phrase("six words"))]
    approve(issuer, [*asked, make_keys(own, "observer", "prometheus", None)])
    give(issuer, own)
    tls = TlsFiles(own, "keys-0", load_public(own).ca, passphrases=phrase("six words"))
    context = trusting(own, "prometheus")
    with serve_metrics(Metrics(), "0.0.0.0:0", tmp_path, tls) as address:
        url = f"https://127.0.0.1:{address.rpartition(':')[2]}/metrics"
        with urllib.request.urlopen(url, timeout=10, context=context) as reply:
            assert reply.status == 200
    assert all(tls().key not in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


@pytest.mark.parametrize("listen", ["7700", "here:", "127.0.0.1:70000", ":7700"])
def test_what_is_no_address_is_refused(listen: str, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="is not HOST:PORT"),
        serve_metrics(Metrics(), listen, tmp_path, None),
    ):
        raise AssertionError


def test_a_federations_servers_say_what_happened(tmp_path: Path) -> None:
    with Processes(tmp_path, versions=3, metrics=True) as processes:
        processes.start_all()
        processes.wait(processes.finished, "the end")
        coordinator = processes.scrape("coordinator")
        shards = [processes.scrape(name) for name in processes.shards]
        holder = processes.scrape("holder-0")
        assert processes.stop("coordinator") == 0
        with pytest.raises(OSError):
            processes.scrape("coordinator")
    kinds = "secureps_records_journalled_total{{kind={}}}"
    assert coordinator[kinds.format("VersionCommitted")] == 4, "versions 0 to 3"
    assert coordinator[kinds.format("Submit")] == 1 + 3 * 6, "the founding model and all updates"
    assert coordinator["secureps_group_version{group=all}"] == 3
    assert coordinator["secureps_group_step{group=all,step=done}"] == 1
    assert coordinator["secureps_members_joined"] == 6
    assert coordinator["secureps_finished"] == 1
    assert coordinator["secureps_requests_total{kind=Submit,outcome=ok}"] >= 19
    assert "secureps_largest_epsilon" not in coordinator, "the plan protects nothing"
    uploads = sum(s["secureps_requests_total{kind=PutBlock,outcome=ok}"] for s in shards)
    # four blocks of 19 submissions, and four opened sums of each version
    assert uploads >= 4 * 19 + 4 * 3
    for shard in shards:
        assert shard[kinds.format("Commit")] == 4
        assert shard["secureps_payload_bytes_total{direction=in}"] > 0
        assert shard["secureps_payload_bytes_total{direction=out}"] > 0
        assert shard["secureps_payload_bytes_in_flight"] == 0
        assert shard["secureps_spooled_payload_bytes"] > 0
        assert shard["secureps_work_seconds_count{task=SumCohort}"] == 3
    assert holder[kinds.format("CohortReleased")] == 3
    assert holder["secureps_work_seconds_count{task=OpenSum}"] == 4 * 3
    for scraped in (coordinator, holder, *shards):
        assert scraped["secureps_ready"] == 1
        assert not any("client" in series for series in scraped)
