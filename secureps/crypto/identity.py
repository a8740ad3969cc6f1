"""Ed25519 identities (RFC 8032), and the names and roles of parties.

A public key is refused unless it is the canonical encoding of a point whose order is not small.
Under the neutral element one signature is valid for every message, and under the other points of
order up to 8 for every eighth message or more, so an attacker could have such a key certified
without a secret (RFC 8032, section 5.1.3; Chalkias, Garillot and Nikolaenko, "Taming the many
EdDSAs", 2020, section 3). The library refuses a signature with S >= L (RFC 8032, section 5.1.7).
"""

from __future__ import annotations

import re
import typing
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from secureps.crypto.secret import Secret
from secureps.errors import Malformed, Unsigned
from secureps.messages.encoding import digest
from secureps.messages.run import COORDINATOR

KEY_BYTES = 32
SIGNATURE_BYTES = 64
Role = Literal["client", "holder", "shard", "coordinator", "observer"]
"""An observer reads the run's status and published models, and may send nothing."""
ROLES: tuple[Role, ...] = typing.get_args(Role)

_P: Final = 2**255 - 19
_ORDER_8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER: Final = frozenset({0, 1, _P - 1, _ORDER_8, _P - _ORDER_8})
"""The y of the eight points whose order divides 8, for either sign of x. No secret key has such a
public key: its scalar is 8 m with 0 < m < 2^252, so m is less than the base point's prime order."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def frame(domain: bytes, message: bytes) -> bytes:
    """Frames a message for signing, so that no message of one domain is a message of another."""
    return len(domain).to_bytes(8, "little") + domain + message


def check_identity_key(key: bytes) -> None:
    """Raises Malformed unless an honest party can have this Ed25519 public key."""
    if len(key) != KEY_BYTES:
        raise Malformed(f"an Ed25519 public key has {KEY_BYTES} bytes, not {len(key)}")
    y = int.from_bytes(key, "little") % 2**255  # the last bit is the sign of x
    if y >= _P:
        raise Malformed("this Ed25519 public key is written in a way that no honest party uses")
    if y in _SMALL_ORDER:
        raise Malformed(
            "this Ed25519 public key is a point of small order, under which signatures hold that "
            "nobody made: no honest party's key is one"
        )


@dataclass(frozen=True, repr=False)
class PublicIdentity:
    """An Ed25519 public key: 32 bytes that pass `check_identity_key`, otherwise Malformed."""

    key: bytes

    def __post_init__(self) -> None:
        check_identity_key(self.key)

    @cached_property
    def _public(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.key)

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits, for people to compare over another channel."""
        return digest("secureps-identity", self.key).hex()

    def verify(self, domain: bytes, message: bytes, signature: bytes) -> None:
        try:
            self._public.verify(signature, frame(domain, message))
        except InvalidSignature:
            raise Unsigned(f"a signature in {domain.decode(errors='replace')} is wrong") from None

    def __repr__(self) -> str:
        return f"PublicIdentity({self.key.hex()})"


class Identity(Secret):
    """An Ed25519 secret key, 32 bytes (else Malformed)."""

    __slots__ = ("_secret", "public")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise Malformed(f"an Ed25519 secret key has {KEY_BYTES} bytes, not {len(secret)}")
        self._secret = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = PublicIdentity(self._secret.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    def to_bytes(self) -> bytes:
        return self._secret.private_bytes_raw()

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """Signs a message: 64 bytes. The domain, signed too, is the kind of message."""
        return self._secret.sign(frame(domain, message))


def check_party(name: str, role: Role) -> None:
    """Raises Malformed unless a party of this role can have this name."""
    check_name(name)
    if role not in ROLES:
        raise Malformed(f"{name}: role {str(role)[:80]!r} is not one of {', '.join(ROLES)}")
    # All parties follow orders that the party of this name signs: no other role may have it.
    if name == COORDINATOR and role != "coordinator":
        raise Malformed(f"{name} is the coordinator's name: a {role} takes another one")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Malformed(
            f"{name[:80]!r} is no name: 1 to 63 of a-z 0-9 . _ -, the first a letter or digit"
        )
