"""Secrecy: every connection is mutual TLS 1.3; other CAs, names and versions are refused.
Hostile input: connections that are begun and left hold nobody up.
Hostile input: a revoked party's streams and connections end within a stated time.
"""

import os
import queue
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from secureps.crypto import identity
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Credentials, Identity, Role, TlsKey
from secureps.crypto.roster import Roster
from secureps.errors import (
    ConfigError,
    KitError,
    NotReady,
    SecurepsError,
    UnknownParty,
    Unreachable,
    Unsigned,
)
from secureps.messages.orders import Finish
from secureps.messages.requests import Heartbeat, Noted, OpenRefused, Subscribe
from secureps.messages.run import COORDINATOR
from secureps.service.executor import Watchers
from secureps.service.process import authenticator
from secureps.store.issuing import approve, create_kit, issue, make_keys, renew, revoke, rotate
from secureps.store.keyring import (
    LOOK,
    SOON,
    TlsFiles,
    certificate_end,
    certificate_file,
    load_credentials,
    load_private,
    load_public,
)
from secureps.wire.grpc import framing
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT, REQUEST_DOMAIN, Link, Tls, sign_request
from secureps.wire.grpc.servers import CoordinatorServer
from tests.fuzz.attempt import resident
from tests.kits.half_open import HalfOpen
from tests.kits.handshakes import WAYS, Begun, hasten, kit_of_two, secured
from tests.kits.party_kits import give
from tests.kits.relay import Relay
from tests.kits.transport_kit import PATIENCE, EchoServer

PARTIES: dict[str, Role] = {
    COORDINATOR: "coordinator",
    "shard-0": "shard",
    "a_b.c-d": "client",
    "eve": "client",
}
PLAIN = CipherParameters("plain", 8, 14)


NOT_READY = OpenRefused("fail", "all", 0, "NotReady", b"")
"""What the server of these tests answers with this error."""


def make_kit(folder: Path) -> Path:
    create_kit(folder, PLAIN)
    for name, role in PARTIES.items():
        issue(folder, role, name)
    return folder


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    return make_kit(tmp_path / "kit")


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes a server that claims to be the coordinator; returns its address."""
    made: list[CoordinatorServer] = []

    def start(link: Link, endpoint: EchoServer | None = None) -> str:
        endpoint = endpoint or EchoServer()
        made.append(CoordinatorServer(link, endpoint, "127.0.0.1:0", lambda *_: None))
        made[-1].start()
        return f"127.0.0.1:{made[-1].port}"

    yield start
    for server in made:
        server.stop(0)


def tls_of(kit: Path, name: str, **more: Any) -> Tls:
    return Tls(TlsFiles(kit, name, load_public(kit).ca, **more))


def ask(link: Link, address: str, party: str = "a_b.c-d") -> Any:
    transport = GrpcTransport(link, party, lambda _: bytes(64), {COORDINATOR: address}, PATIENCE)
    with closing(transport):
        return transport.call(COORDINATOR, Heartbeat(party)).result(PATIENCE)


def test_who_is_on_the_roster_is_let_in_and_the_line_shows_nothing(kit: Path, serve: Serve) -> None:
    address = serve(tls_of(kit, COORDINATOR))
    recorder = Relay(address, keeps=True)
    try:
        assert ask(tls_of(kit, "a_b.c-d"), recorder.address) == Noted()
        line = b"".join(bytes(part) for part in recorder.streams)
        assert len(line) > 1000
        assert b"a_b.c-d" not in line
        assert b"secureps-party" not in line
    finally:
        recorder.close()


def test_a_client_that_calls_itself_another_is_refused(kit: Path, serve: Serve) -> None:
    address = serve(tls_of(kit, COORDINATOR))
    with pytest.raises(Unsigned, match=r"the connection is eve's, and the request a_b\.c-d's"):
        ask(tls_of(kit, "eve"), address)


@pytest.mark.parametrize("as_whom", ["shard-0", "eve"])
def test_a_party_of_the_roster_cannot_be_the_coordinator(
    kit: Path, serve: Serve, as_whom: str
) -> None:
    address = serve(tls_of(kit, as_whom))
    with pytest.raises(Unreachable, match=r"certified as another party|its certificate is not"):
        ask(tls_of(kit, "a_b.c-d"), address)


def test_a_clients_certificate_serves_nothing(kit: Path, serve: Serve) -> None:
    key, ca = identity.TlsKey.generate(), Identity((kit / "ca" / "ca.key").read_bytes())
    authority = load_credentials(kit, "eve", ca.public).authority
    refused = pytest.raises(Unreachable, match="its certificate is not good")
    ends: dict[Role, Any] = {"shard": nullcontext(), "client": refused}
    for role, end in ends.items():
        made = identity.certify_tls(ca, authority, COORDINATOR, role, key.public)
        address = serve(Tls(partial(Credentials, authority, made, key.to_bytes())))
        with end:
            assert ask(tls_of(kit, "eve"), address, "eve") == Noted()


def test_another_ca_is_refused_at_both_ends(kit: Path, serve: Serve, tmp_path: Path) -> None:
    """A man in the middle can make any certificates except those of the kit's CA."""
    other = make_kit(tmp_path / "other")
    with pytest.raises(Unreachable, match="certified by another CA; check kit"):
        ask(tls_of(kit, "a_b.c-d"), serve(tls_of(other, COORDINATOR)))

    def mixed() -> Credentials:
        """Credentials with the right CA and another CA's certificate."""
        right, wrong = (load_credentials(k, "eve", load_public(k).ca) for k in (kit, other))
        return Credentials(right.authority, wrong.certificate, wrong.key)

    with pytest.raises(Unreachable):
        ask(Tls(mixed), serve(tls_of(kit, COORDINATOR)), "eve")


@pytest.mark.parametrize("refused", [False, True], ids=["answered", "refused"])
def test_who_met_its_server_waits_for_it_whoever_is_there_meanwhile(
    kit: Path, serve: Serve, tmp_path: Path, refused: bool
) -> None:
    stranger = serve(tls_of(make_kit(tmp_path / "other"), COORDINATOR))
    addresses = {COORDINATOR: serve(tls_of(kit, COORDINATOR))}
    link = tls_of(kit, "eve")
    with closing(GrpcTransport(link, "eve", lambda _: bytes(64), addresses, PATIENCE)) as met:
        if refused:
            with pytest.raises(NotReady):
                met.call(COORDINATOR, NOT_READY).result(PATIENCE)
        else:
            assert met.call(COORDINATOR, Heartbeat("eve")).result(PATIENCE) == Noted()
        met.locate(COORDINATOR, stranger)
        with pytest.raises(Unreachable, match="another CA") as passing:
            met.call(COORDINATOR, Heartbeat("eve")).result(PATIENCE)
    with pytest.raises(Unreachable, match="another CA") as lasting:
        ask(link, stranger, "eve")
    assert passing.value.retry_after is not None
    assert lasting.value.retry_after is None


def test_what_is_over_is_refused_at_both_ends(
    kit: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tls_of(kit, COORDINATOR)
    ca, authority = kit / "ca" / "ca.key", kit / "public" / "tls" / "ca.pem"
    kept = authority.read_bytes()
    for name, by, said in (("AUTHORITY_LIFETIME", -1, "ended"), ("_EARLY", 1 - 9**6, "begins")):
        with monkeypatch.context() as patch:
            patch.setattr(identity, name, timedelta(seconds=by))
            authority.write_bytes(identity.make_authority(Identity(ca.read_bytes())))
        with pytest.raises(KitError, match=rf"ca.pem: it {said} on .*secureps keys renew"):
            tls_of(kit, "eve")
    authority.write_bytes(kept)
    monkeypatch.setattr(identity, "LIFETIME", timedelta(seconds=-1))
    renew(kit, ["eve", "shard-0"])
    with pytest.raises(KitError, match=r"eve.pem: it ended on .*secureps keys renew"):
        tls_of(kit, "eve")
    monkeypatch.setattr("secureps.store.keyring.check_certificate", lambda *_: None)
    with pytest.raises(Unreachable):
        ask(tls_of(kit, "eve"), serve(good), "eve")
    renew(kit, [COORDINATOR])
    with pytest.raises(Unreachable, match="its certificate is not good, or over"):
        ask(tls_of(kit, "a_b.c-d"), serve(tls_of(kit, COORDINATOR)))


def test_a_certificate_that_ends_soon_is_said_once_a_day(
    kit: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]

    def looks() -> int:
        caplog.clear()
        files = TlsFiles(kit, "eve", load_public(kit).ca, lambda: now[0])
        for _ in range(3):
            now[0] += LOOK
            files()
        return caplog.text.count("eve: its TLS certificate ends on")

    assert looks() == 0
    monkeypatch.setattr(identity, "LIFETIME", SOON - timedelta(hours=1))
    renew(kit, ["eve"])
    assert looks() == 1


def test_a_kit_that_is_copied_once_more_is_no_new_certificate(
    kit: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    files = TlsFiles(kit, "eve", load_public(kit).ca, lambda: now[0])
    before = files()
    for path in (kit / "public" / "tls").iterdir():
        os.utime(path, (1.0, 1.0))
    now[0] += LOOK
    assert files() is before
    assert not caplog.records
    renew(kit, ["eve"])
    now[0] += LOOK
    assert files() is not before
    assert "eve has a new certificate" in caplog.text


def test_whoever_connects_has_no_file_read_each_time(
    kit: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection asks for the certificate, and strangers connect too."""
    now, loads = [0.0], list[str]()
    files = TlsFiles(kit, "eve", load_public(kit).ca, lambda: now[0])

    def lost(_: Path, name: str, *__: object) -> Credentials:
        loads.append(name)
        raise KitError("the same as before")

    monkeypatch.setattr("secureps.store.keyring.load_credentials", lost)
    for _ in range(3):
        now[0] += LOOK
        for _ in range(5):
            files()
    assert loads == ["eve"] * 3
    assert caplog.text.count("the same as before") == 1


def test_a_damaged_renewal_is_told_and_changes_nothing(
    kit: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    files = TlsFiles(kit, "eve", load_public(kit).ca, lambda: now[0])
    before, path = files(), kit / "public" / "tls" / "eve.pem"
    path.write_text("half a certif")
    now[0] += LOOK
    assert files() is before
    assert "eve goes on with the certificate that it has" in caplog.text
    path.unlink()
    now[0] += LOOK
    assert files() is before
    renew(kit, ["eve"])
    now[0] += LOOK
    assert (between := files()) is not before
    key = kit / "private" / "eve" / "tls.key"
    old = key.read_bytes()
    path.unlink()
    key.write_bytes(new := TlsKey.generate().to_bytes())
    renew(kit, ["eve"])
    key.write_bytes(old)  # which arrives after the certificate
    now[0] += LOOK
    assert files() is between
    key.write_bytes(new)
    now[0] += LOOK
    assert files() is not between


def test_who_does_not_speak_tls_is_not_heard(kit: Path, serve: Serve) -> None:
    with pytest.raises(Unreachable):
        ask(PLAINTEXT, serve(tls_of(kit, COORDINATOR)))
    with pytest.raises(Unreachable, match="speaks no TLS"):
        ask(tls_of(kit, "a_b.c-d"), serve(PLAINTEXT))


def test_a_renewed_certificate_is_taken_without_a_restart(kit: Path, serve: Serve) -> None:
    now = [0.0]
    server, client = (tls_of(kit, name, clock=lambda: now[0]) for name in (COORDINATOR, "a_b.c-d"))
    address = serve(server, endpoint := EchoServer())
    transport = GrpcTransport(
        client, "a_b.c-d", lambda _: bytes(64), {COORDINATOR: address}, PATIENCE
    )
    came: queue.Queue[Any] = queue.Queue()

    def shown() -> str:
        host, _, port = address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection((host, int(port)), PATIENCE) as line,
            context.wrap_socket(line) as secured,
        ):
            return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"")

    with closing(transport):
        heartbeat = Heartbeat("a_b.c-d")
        assert transport.call(COORDINATOR, heartbeat).result(PATIENCE) == Noted()
        transport.watch(Subscribe("a_b.c-d", ()), came.put, came.put)
        assert endpoint.subscribed.get(timeout=PATIENCE) == "a_b.c-d"
        before, channel = shown(), transport._channel(COORDINATOR)
        renew(kit)
        assert shown() == before
        now[0] += LOOK
        assert shown() != before
        assert shown() == (kit / "public" / "tls" / "coordinator.pem").read_text()
        assert transport.call(COORDINATOR, heartbeat).result(PATIENCE) == Noted()
        assert transport._channel(COORDINATOR) is not channel
        endpoint.streams["a_b.c-d"](Finish(1, "over"))
        assert came.get(timeout=PATIENCE) == Finish(1, "over"), "what is under way goes on"
    retired: Any = channel.unary_unary("/x/y")
    with pytest.raises(ValueError, match="closed"):
        retired(b"")


def test_a_kit_without_certificates_is_told_what_to_do(kit: Path) -> None:
    ca = load_public(kit).ca
    for path in (kit / "public" / "tls").iterdir():
        path.unlink()
    assert certificate_end(kit, "eve") is None
    with pytest.raises(
        KitError, match=r"missing: fetch the issuer's public/ .*secureps keys renew"
    ):
        load_credentials(kit, "eve", ca)
    renew(kit, ["eve"])
    assert load_credentials(kit, "eve", ca)


def test_files_of_others_are_refused(kit: Path, tmp_path: Path) -> None:
    ca, folder = load_public(kit).ca, kit / "public" / "tls"
    (folder / "eve.pem").write_bytes((folder / "shard-0.pem").read_bytes())
    with pytest.raises(KitError, match="another party's and not eve's"):
        load_credentials(kit, "eve", ca)
    with pytest.raises(KitError, match="another party's and not eve's; put the one that you made"):
        renew(kit, ["eve"])  # or the shard's key would be eve's
    other = make_kit(tmp_path / "other")
    (folder / "eve.pem").write_bytes((other / "public" / "tls" / "eve.pem").read_bytes())
    for refused in (lambda: load_credentials(kit, "eve", ca), lambda: renew(kit, ["eve"])):
        with pytest.raises(KitError, match="another CA has signed it"):
            refused()
    own = kit / "private" / "shard-0" / "tls.key"
    kept = own.read_bytes()
    own.write_bytes((kit / "private" / "eve" / "tls.key").read_bytes())
    with pytest.raises(KitError, match="is not the key of"):
        load_credentials(kit, "shard-0", ca)
    own.write_bytes(kept)
    theirs = (other / "public" / "tls" / "ca.pem").read_bytes()
    with (folder / "ca.pem").open("ab") as file:
        file.write(theirs)
    with pytest.raises(KitError, match="more than one certificate"):
        load_credentials(kit, "shard-0", ca)
    (folder / "ca.pem").write_bytes(theirs)
    with pytest.raises(KitError, match=r"it is another CA's.*secureps keys renew"):
        load_credentials(kit, "shard-0", ca)
    renew(kit, ["shard-0"])
    assert load_credentials(kit, "shard-0", ca)
    (kit / "private" / "eve" / "tls.key").chmod(0o640)
    with pytest.raises(KitError, match="chmod 600"):
        load_credentials(kit, "eve", ca)


def test_plaintext_does_not_leave_the_machine() -> None:
    for address in ("0.0.0.0:0", "10.0.0.1:7000", "example.org:7000", "127.0.0.1.example.org:1"):
        with pytest.raises(ConfigError, match="is not on loopback: leave insecure out"):
            PLAINTEXT.channel(COORDINATOR, address, ())
        with pytest.raises(ConfigError, match="is not on loopback"):
            PLAINTEXT.bind(None, address)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"ssl_tls_version": [b"TLSv1.2"], "x509_common_name": [b"eve"]}, "speaks TLSv1.2, and"),
        ({"x509_common_name": [b"eve"]}, "speaks no TLS, and"),
        ({"ssl_tls_version": [b"TLSv1.3"]}, "the connection is 's"),
        ({"ssl_tls_version": [b"TLSv1.3"], "x509_common_name": [b"eve", b"bob"]}, "is 's, and"),
    ],
)
def test_what_grpc_let_in_is_judged_once_more(
    kit: Path, known: dict[str, list[bytes]], said: str
) -> None:
    """A process that imported gRPC before secureps also speaks TLS 1.2."""

    class Context:
        def auth_context(self) -> dict[str, list[bytes]]:
            return known

    with pytest.raises(Unsigned, match=said):
        tls_of(kit, COORDINATOR).check("eve", Context())


def test_no_secret_is_shown() -> None:
    key = identity.TlsKey.generate()
    for secret in (key, Credentials(b"a", b"b", key.to_bytes()), Identity.generate()):
        assert "hidden" in repr(secret)
        with pytest.raises(TypeError, match="never pickled"):
            secret.__reduce__()


# --- keys and certificates of one's own ---------------------------------------------


def pem_of(key: ec.EllipticCurvePrivateKey, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def bring(folder: Path, pem: bytes) -> Path:
    """Prepares a kit with a TLS key that the party's organisation has made."""
    own = folder / "private" / "north"
    own.mkdir(0o700, parents=True)
    own.parent.chmod(0o700)
    (own / "tls.key").write_bytes(pem)
    (own / "tls.key").chmod(0o600)
    return folder


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_a_key_of_ones_own_is_certified_as_it_is(
    form: PrivateFormat, kit: Path, serve: Serve, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    own = bring(tmp_path / "own", pem_of(key, form))
    assert approve(kit, [make_keys(own, "client", "north", None)])
    address = serve(tls_of(kit, COORDINATOR))
    for _ in range(2):
        give(kit, own)
        shown = certificate_file(own, "north").read_bytes()
        assert identity.public_key_of(load_public(own).ca, "north", shown) == public
        assert ask(tls_of(own, "north"), address, "north") == Noted()
        renew(kit, ["north"])


def test_a_key_of_ones_own_is_of_the_curve_that_all_have(tmp_path: Path) -> None:
    own = bring(tmp_path / "own", pem_of(ec.generate_private_key(ec.SECP384R1())))
    with pytest.raises(KitError, match=r"tls\.key is damaged: this is no private key of P-256"):
        make_keys(own, "client", "north", None)


def test_a_key_of_ones_own_is_replaced_by_another_of_ones_own(kit: Path, tmp_path: Path) -> None:
    own = bring(tmp_path / "own", pem_of(ec.generate_private_key(ec.SECP256R1())))
    approve(kit, [make_keys(own, "client", "north", None)])
    give(kit, own)
    later = identity.TlsKey.generate()
    bring(tmp_path / "later", later.to_bytes()).joinpath("private/north").rename(
        own / "private" / "north" / "next"
    )
    request = rotate(own, "north")
    assert request is not None
    approve(kit, [request])
    give(kit, own)
    assert rotate(own, "north") is None
    assert load_credentials(own, "north", load_public(own).ca).key == later.to_bytes()


WAVE = 100
TIMEOUT = 1.0
"""Seconds that a handshake gets here."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinatorServer]:
    hasten(monkeypatch, server_handshake_timeout_ms=(10_000, TIMEOUT * 1000))
    link = tls_of(kit_of_two(tmp_path / "kit"), COORDINATOR)
    made = CoordinatorServer(link, EchoServer(), "127.0.0.1:0", lambda *_: None)
    made.start()
    yield made
    made.stop(0)


@pytest.fixture
def time_request(server: CoordinatorServer, tmp_path: Path) -> Callable[[], float]:
    """Returns the seconds of a request over a new connection."""

    def asked() -> float:
        began, addresses = time.monotonic(), {COORDINATOR: f"127.0.0.1:{server.port}"}
        link = tls_of(tmp_path / "kit", "honest")
        transport = GrpcTransport(link, "honest", lambda _: bytes(64), addresses, PATIENCE)
        with closing(transport):
            assert transport.call(COORDINATOR, Heartbeat("honest")).result(PATIENCE) == Noted()
        return time.monotonic() - began

    return asked


@pytest.mark.parametrize("way", WAYS)
def test_who_leaves_its_handshake_holds_nobody_up(
    server: CoordinatorServer, time_request: Callable[[], float], way: str
) -> None:
    time_request()
    waves = []
    for _ in range(3):
        begun = [Begun(server.port, way) for _ in range(WAVE)]
        assert time_request() < PATIENCE / 2
        assert not any(each.ended(0.0) for each in begun[-10:]), "they were held open meanwhile"
        over = time.monotonic() + PATIENCE
        assert all(each.ended(over - time.monotonic()) for each in begun)
        waves.append(resident())
    assert waves[-1] - waves[0] < 8 << 20, "what is left of a handshake goes with it"
    time_request()


IDLE, AGE = 0.8, 1.6
"""Seconds here: a minute and ten where nobody tests."""


class Watched(EchoServer):
    """A server that ends the streams of revoked parties, as executors do."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers = Watchers(lambda _: None)

    def subscribe(
        self, sender: str, message: Subscribe, deliver: Callable[[Any], None]
    ) -> Callable[[], None]:
        self.watchers.begin(sender, deliver)
        self.subscribed.put(sender)
        return lambda: self.watchers.end(sender, deliver)


class World:
    def __init__(self, kit: Path) -> None:
        self.kit, self.echo = kit, Watched()
        self.roster: Roster = load_public(kit).roster
        self.identities = {name: load_private(kit, name) for name in ("eve", "honest")}
        check = authenticator(lambda: self.roster)
        link = tls_of(kit, COORDINATOR)
        self.server = CoordinatorServer(link, self.echo, "127.0.0.1:0", check)
        self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"

    def transport(self, name: str) -> GrpcTransport:
        addresses = {COORDINATOR: self.address}
        return GrpcTransport(tls_of(self.kit, name), name, self.sign(name), addresses, PATIENCE)

    def sign(self, name: str) -> Callable[[bytes], bytes]:
        return partial(self.identities[name].sign, REQUEST_DOMAIN)

    def revoke(self) -> None:
        revoke(self.kit, ["eve"])
        self.roster = load_public(self.kit).roster
        self.echo.watchers.keep_to(self.roster)

    def line(self) -> HalfOpen:
        return HalfOpen(self.server.port, partial(secured, self.kit, "eve", COORDINATOR))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    hasten(
        monkeypatch,
        max_connection_idle_ms=(60_000, IDLE * 1000),
        max_connection_age_ms=(600_000, AGE * 1000),
    )
    made = World(kit_of_two(tmp_path / "kit"))
    yield made
    made.server.stop(0)


@pytest.mark.slow
def test_its_stream_ends_and_every_call_is_refused(world: World) -> None:
    lost: queue.Queue[SecurepsError] = queue.Queue()
    with closing(world.transport("eve")) as eve, closing(world.transport("honest")) as honest:
        eve.watch(Subscribe("eve", ()), lambda _: None, lost.put)
        assert world.echo.subscribed.get(timeout=PATIENCE) == "eve"
        assert eve.call(COORDINATOR, Heartbeat("eve")).result(PATIENCE) == Noted()
        world.revoke()
        assert isinstance(lost.get(timeout=PATIENCE), UnknownParty)
        refused = eve.call(COORDINATOR, Heartbeat("eve")).exception(PATIENCE)
        assert isinstance(refused, UnknownParty)
        assert honest.call(COORDINATOR, Heartbeat("honest")).result(PATIENCE) == Noted()


@pytest.mark.slow
def test_its_connection_ends_soon_if_it_is_quiet(world: World) -> None:
    with closing(world.line()) as line:
        world.revoke()
        assert line.closed(PATIENCE)


@pytest.mark.slow
def test_its_connection_ends_whatever_it_says(world: World) -> None:
    """It calls all the time; every call is refused, and none keeps the connection open."""
    method = framing.COORDINATOR_TELL
    metadata = sign_request("eve", COORDINATOR, world.sign("eve"), method, b"", b"")
    with closing(world.line()) as line:
        world.revoke()
        until = time.monotonic() + PATIENCE
        while not line.over and time.monotonic() < until:
            with suppress(OSError):
                line.begin(method, metadata, 100)
            line.closed(0.1)
        assert line.over


@pytest.mark.slow
def test_who_is_honest_goes_on_over_another_connection(world: World) -> None:
    """Its stream of orders stays, and calls are answered at any time."""
    lost: queue.Queue[SecurepsError] = queue.Queue()
    with closing(world.transport("honest")) as honest:
        honest.watch(Subscribe("honest", ()), lambda _: None, lost.put)
        assert world.echo.subscribed.get(timeout=PATIENCE) == "honest"
        until = time.monotonic() + 2 * AGE
        while time.monotonic() < until:
            assert honest.call(COORDINATOR, Heartbeat("honest")).result(PATIENCE) == Noted()
        assert lost.empty()
