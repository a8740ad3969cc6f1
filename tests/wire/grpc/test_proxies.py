"""Servers behind an HTTP proxy: which way is taken, and what is said if it leads nowhere."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from secureps.errors import ConfigError, Unreachable
from secureps.messages.requests import Heartbeat, Noted
from secureps.messages.run import COORDINATOR
from secureps.store.keyring import load_credentials, load_public
from secureps.wire.grpc import framing
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import DIRECT, find_way
from secureps.wire.grpc.servers import CoordinatorServer
from tests.kits.relay import ConnectProxy, refusal
from tests.kits.transport_kit import PATIENCE, EchoServer
from tests.wire.grpc.test_tls import make_kit, tls_of

HERE = "ps.study.example:443"
"""Where the server is for everybody; only the proxy knows that it is on loopback."""
NAMES = ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "no_grpc_proxy")
PASSWORD = "p@ss/w:rd#1"
ESCAPED = "p%40ss%2Fw:rd%231"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, *map(str.upper, NAMES)):
        monkeypatch.delenv(name, raising=False)


def way(monkeypatch: pytest.MonkeyPatch, address: str, **variables: str) -> str:
    with monkeypatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        proxy, option = find_way(address)
    assert (option == DIRECT) == (proxy == "")
    return proxy


def test_the_environment_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert way(monkeypatch, HERE) == ""
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY"):
        assert way(monkeypatch, HERE, **{name: "http://p.example:3128"}) == "p.example:3128"
    assert way(monkeypatch, HERE, https_proxy="http://a:1/", http_proxy="http://b:2") == "a:1"
    assert way(monkeypatch, HERE, https_proxy="a:1") == "a:1"
    assert way(monkeypatch, HERE, https_proxy="HTTP://[::1]:3128\n") == "[::1]:3128"
    assert way(monkeypatch, HERE, https_proxy="") == ""


@pytest.mark.parametrize("address", ["127.0.0.1:7600", "localhost:7600", "[::1]:7600"])
def test_what_is_on_this_machine_is_dialled_directly(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    assert way(monkeypatch, address, https_proxy="http://p.example:3128") == ""


@pytest.mark.parametrize(
    ("excepted", "address", "direct"),
    [
        ("ps.study.example", HERE, True),
        (" other, .STUDY.example ,", HERE, True),
        ("other\tps.study.example", HERE, True),
        ("*.study.example", HERE, True),
        ("PS.study.example:443", HERE, True),
        ("*", HERE, True),
        ("tudy.example", HERE, False),
        (",", HERE, False),
        ("10.0.0.0/8", HERE, False),
        ("10.0.0.0/8", "10.1.2.3:7600", True),
        ("10.0.0.0/8", "11.1.2.3:7600", False),
        ("10.1.2.3", "10.1.2.3:7600", True),
        ("fd00::/8", "[fd00::1]:7600", True),
        ("[fd00::1]", "[fd00::1]:7600", True),
    ],
)
def test_no_proxy_has_hosts_domains_and_networks(
    monkeypatch: pytest.MonkeyPatch, excepted: str, address: str, direct: bool
) -> None:
    for name in ("no_proxy", "no_grpc_proxy"):
        variables = {"https_proxy": "http://p.example:3128", name: excepted}
        assert (way(monkeypatch, address, **variables) == "") == direct


@pytest.mark.parametrize(
    "url",
    [
        f"https://me:{ESCAPED}@p.example:3128",
        f"socks5://me:{ESCAPED}@p.example:3128",
        f"http://me:{PASSWORD}@p.example:3128",
        f"http://me:{ESCAPED}@p.example",
        f"http://me:{ESCAPED}@p.example:3128/path",
        f"http://me:{ESCAPED}@p.example:65536",
        f"http://me:{ESCAPED}@p example:3128",
        "x" * 100_000,
    ],
)
def test_a_proxy_that_cannot_be_used_is_never_passed_by(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """gRPC would say nothing and dial directly."""
    monkeypatch.setenv("https_proxy", url)
    with pytest.raises(ConfigError, match="https_proxy names no HTTP proxy: write") as failed:
        find_way(HERE)
    for secret in (url, PASSWORD, ESCAPED, "p.example"):
        assert secret not in str(failed.value)
    assert failed.value.__cause__ is failed.value.__context__ is None


# --- calls through a proxy ---------------------------------------------------------


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    return make_kit(tmp_path / "kit")


@pytest.fixture
def address(kit: Path) -> Iterator[str]:
    made = CoordinatorServer(tls_of(kit, COORDINATOR), EchoServer(), "127.0.0.1:0", lambda *_: None)
    made.start()
    yield f"127.0.0.1:{made.port}"
    made.stop(0)


def call(kit: Path, proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch, user: str = "") -> object:
    monkeypatch.setenv("https_proxy", f"http://{user}{proxy.address}")
    transport = GrpcTransport(tls_of(kit, "eve"), "eve", lambda _: b"", {COORDINATOR: HERE}, 5.0)
    with closing(transport):
        return transport.call(COORDINATOR, Heartbeat("eve")).result(PATIENCE)


def test_mutual_tls_goes_through_a_proxy_with_a_password(
    kit: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ConnectProxy({HERE: lambda: address}, user=f"me:{PASSWORD}") as proxy:
        for password in (ESCAPED, "p%40ss%2Fw%3Ard%231", "p@ss%2Fw:rd#1"):
            assert call(kit, proxy, monkeypatch, f"me:{password}@") == Noted()
        assert set(proxy.asked) == {HERE}
        with pytest.raises(ConfigError, match=r"wants name and password \(407\)") as failed:
            call(kit, proxy, monkeypatch, "me:secret-1@")
        assert f"coordinator at {HERE} through the proxy {proxy.address}: " in str(failed.value)
        assert "secret-1" not in str(failed.value)
        assert len(proxy.asked) == 4, "a wrong password that is tried again locks the account"


def test_a_password_may_have_bytes_that_are_not_utf_8(
    kit: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ConnectProxy({HERE: lambda: address}, user="me:caf\xe9") as proxy:
        for password in ("caf%E9", "caf\udce9"):
            assert call(kit, proxy, monkeypatch, f"me:{password}@") == Noted()


@pytest.mark.parametrize(
    ("answer", "kind", "again", "text"),
    [
        (refusal(403), Unreachable, False, "its operator must allow CONNECT to this address"),
        (refusal(302), Unreachable, False, "its operator must allow CONNECT to this address"),
        (refusal(502), Unreachable, True, "the proxy cannot reach it: is it up, and open to the"),
        (b"SSH-2.0-OpenSSH\r\n", ConfigError, False, "there is no HTTP proxy; check https_proxy"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 400\r\n\r\n", Unreachable, False, "speaks no TLS"),
    ],
)
def test_what_a_proxy_refuses_says_whose_fault_it_is(
    kit: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
    kind: type[Exception],
    again: bool,
    text: str,
) -> None:
    with ConnectProxy({}, answer=answer) as proxy, pytest.raises(kind, match=text) as failed:
        call(kit, proxy, monkeypatch)
    assert f"through the proxy {proxy.address}" in str(failed.value)
    assert getattr(failed.value, "retry_after", None) == (0.2 if again else None)


def test_a_proxy_that_hangs_is_tried_again(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(framing.CLIENT_OPTIONS) | {"grpc.min_reconnect_backoff_ms": 1_000}
    monkeypatch.setattr(framing, "CLIENT_OPTIONS", tuple(options.items()))
    with ConnectProxy({}, answer=b"") as proxy, pytest.raises(Unreachable) as failed:
        call(kit, proxy, monkeypatch)
    assert f"{HERE} through the proxy {proxy.address}" in str(failed.value)
    assert failed.value.retry_after is not None


@pytest.mark.parametrize("chain", [False, True])
def test_who_opens_tls_on_the_way_is_never_believed(
    kit: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain: bool
) -> None:
    """`chain`: it also shows the certificate of its own CA, as such proxies do."""
    other = make_kit(tmp_path / "other")
    link = tls_of(other, COORDINATOR)
    if chain:
        own = load_credentials(other, COORDINATOR, load_public(other).ca)
        both = own.certificate + own.authority
        shown = grpc.ssl_server_certificate_configuration([(own.key, both)], own.authority)
        monkeypatch.setattr(framing, "_configuration", lambda made: shown)
    between = CoordinatorServer(link, EchoServer(), "127.0.0.1:0", lambda *_: None)
    between.start()
    try:
        with (
            ConnectProxy({HERE: lambda: f"127.0.0.1:{between.port}"}) as proxy,
            pytest.raises(Unreachable, match="opens TLS has to let this address") as failed,
        ):
            call(kit, proxy, monkeypatch)
    finally:
        between.stop(0)
    assert "Flower's engine" in str(failed.value)
    assert failed.value.retry_after is None
