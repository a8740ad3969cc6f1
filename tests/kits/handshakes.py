"""TLS by Python's own stack: who begins a handshake and leaves it, and who ends it."""

import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import tls_name
from secureps.messages.run import COORDINATOR
from secureps.store.issuing import create_kit, issue
from secureps.wire.grpc import framing
from tests.kits.transport_kit import PATIENCE

WAYS = ("nothing", "a hello")
"""What is said before nothing more is."""


class Begun:
    """A connection whose handshake is begun in one of WAYS, and goes no further."""

    def __init__(self, port: int, way: str) -> None:
        self._line = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._line.sendall(hello() if way == "a hello" else b"")

    def ended(self, within: float) -> bool:
        """Whether the server closes it within so many seconds; what it says until then is lost."""
        self._line.settimeout(max(within, 0.001))
        try:
            while self._line.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        self.close()
        return True

    def close(self) -> None:
        self._line.close()


def secured(kit: Path, name: str, to: str, line: socket.socket) -> ssl.SSLSocket:
    """A connection to a server under TLS, by the kit of a party."""
    context = _context()
    context.load_verify_locations(kit / "public" / "tls" / "ca.pem")
    own = kit / "private" / name / "tls.key"
    context.load_cert_chain(kit / "public" / "tls" / f"{name}.pem", own)
    return context.wrap_socket(line, server_hostname=tls_name(to))


def hello() -> bytes:
    context, out = _context(), ssl.MemoryBIO()
    secured = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=tls_name("coordinator"))
    with suppress(ssl.SSLWantReadError):
        secured.do_handshake()
    return out.read()


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    return context


def kit_of_two(folder: Path) -> Path:
    """A kit with a coordinator and two clients, one honest."""
    create_kit(folder, CipherParameters("plain", 8, 14))
    issue(folder, "coordinator", COORDINATOR)
    for name in ("honest", "eve"):
        issue(folder, "client", name)
    return folder


def hasten(monkeypatch: pytest.MonkeyPatch, **milliseconds: tuple[int, float]) -> None:
    """A server's patience, by gRPC's name for it: what it is, to be sure, and what it is here."""
    options = dict(framing.SERVER_OPTIONS)
    for name, (known, wanted) in milliseconds.items():
        assert options[f"grpc.{name}"] == known
        options[f"grpc.{name}"] = int(wanted)
    monkeypatch.setattr(framing, "SERVER_OPTIONS", tuple(options.items()))
