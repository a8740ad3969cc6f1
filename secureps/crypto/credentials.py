"""A party's TLS credentials: its certificate, its key, and the CA that it trusts."""

from __future__ import annotations

from secureps.crypto.secret import Secret


class Credentials(Secret):
    """Three PEM texts: the CA's certificate, the party's, and its private key."""

    __slots__ = ("authority", "certificate", "key")

    def __init__(self, authority: bytes, certificate: bytes, key: bytes) -> None:
        self.authority, self.certificate, self.key = authority, certificate, key


def tls_name(party: str) -> str:
    """The name (DNS, RFC 5280) in a party's certificate: no address, and nobody resolves it."""
    return f"{party}.secureps"
