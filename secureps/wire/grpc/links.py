"""Makes connections: by mutual TLS 1.3, or in the clear between processes of one machine.

Under TLS both ends show a certificate of the kit's CA. The dialling party knows the server's
certified name; the server compares the name in the caller's certificate with the signer of the
request. References: RFC 8446; gRPC's authentication guide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from secureps.crypto.tls import Credentials, tls_name
from secureps.errors import ConfigError, Unsigned
from secureps.messages.run import on_loopback

Option = tuple[str, Any]


class Link(Protocol):
    """The connections of one party, at both ends."""

    def identity(self) -> object:
        """The identity of new connections: another object after a change."""

    def channel(self, to: str, address: str, options: Sequence[Option]) -> grpc.Channel:
        """A channel to a party at HOST:PORT; it connects by itself."""

    def bind(self, server: Any, listen: str) -> int:
        """Makes a server listen; returns its port, 0 if it cannot."""

    def check(self, party: str, context: Any) -> None:
        """Raises Unsigned unless the caller's connection is this party's."""


class Plaintext:
    """Connections without TLS on loopback alone, because anybody between reads all.

    Raises:
        ConfigError: on use, for an address that is not on loopback.
    """

    def identity(self) -> object:
        return None

    def channel(self, to: str, address: str, options: Sequence[Option]) -> grpc.Channel:
        _demand_loopback(address)
        return grpc.insecure_channel(address, options)

    def bind(self, server: Any, listen: str) -> int:
        _demand_loopback(listen)
        port: int = server.add_insecure_port(listen)
        return port

    def check(self, party: str, context: Any) -> None:
        """Accepts every caller: without TLS the connection says nothing about its other end."""


PLAINTEXT = Plaintext()


class Tls:
    """Mutual TLS 1.3.

    Args:
        credentials: returns the newest, and the very same object if nothing changed.
    """

    def __init__(self, credentials: Callable[[], Credentials]) -> None:
        self._credentials = credentials

    def identity(self) -> object:
        return self._credentials()

    def channel(self, to: str, address: str, options: Sequence[Option]) -> grpc.Channel:
        """Makes a channel on which `to` must show its own certificate, whatever its address is."""
        own = self._credentials()
        shown = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        name = ("grpc.ssl_target_name_override", tls_name(to))
        return grpc.secure_channel(address, shown, (*options, name))

    def bind(self, server: Any, listen: str) -> int:
        """Listens; once the credentials have changed, new connections use the new ones."""
        used = self._credentials()

        def fetch() -> Any:
            nonlocal used
            now = self._credentials()
            if now is used:
                return None
            used = now
            return _configuration(now)

        shown = grpc.dynamic_ssl_server_credentials(_configuration(used), fetch, True)
        port: int = server.add_secure_port(listen, shown)
        return port

    def check(self, party: str, context: Any) -> None:
        known = context.auth_context()
        version = _first(known, "ssl_tls_version")
        if version != "TLSv1.3":
            raise Unsigned(f"this connection speaks {version or 'no TLS'}, and not TLS 1.3")
        name = _first(known, "x509_common_name")
        if name != party:
            raise Unsigned(f"the connection is {name[:80]}'s, and the request {party}'s")


def _configuration(own: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration([(own.key, own.certificate)], own.authority)


def _first(known: Any, key: str) -> str:
    found = list(known.get(key, ()))
    return found[0].decode(errors="replace") if len(found) == 1 else ""


def _demand_loopback(address: str) -> None:
    if not on_loopback(address):
        raise ConfigError(
            f"without TLS nothing goes beyond this machine, and {address} is not on loopback: "
            "leave insecure out"
        )
