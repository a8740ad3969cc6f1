"""Sealed envelopes: a few bytes for one key holder, carried by parties that must not read them.

They are HPKE (RFC 9180) of `cryptography`, single-shot in base mode. The KEM is X-Wing
(draft-connolly-cfrg-xwing-kem), a hybrid of ML-KEM-768 (FIPS 203) and X25519 (RFC 7748): an
attacker who recorded envelopes must break both, now or later with a quantum computer. The key
schedule is SHAKE256's (draft-ietf-hpke-pq), the cipher ChaCha20-Poly1305 (RFC 8439):

    sealed = ML-KEM's ciphertext (1088 bytes) | X25519's (32) | encrypted bytes | Poly1305 tag (16)

The KEM binds an envelope to its recipient's public key, and `info` binds it to `associated`, the
message that it came with. An envelope does not say who sealed it; that message does. Sealing draws
on the operating system, and no envelope is made twice, because it is journalled before it is sent.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from secureps.crypto.cipher import check_length, strip_tag
from secureps.crypto.secret import Secret
from secureps.errors import Malformed
from secureps.messages.encoding import digest

_X25519_BYTES = 32
_P: Final = 2**255 - 19
_MLKEM_PUBLIC_BYTES, _MLKEM_SEED_BYTES, _MLKEM_SEALED_BYTES = 1184, 64, 1088
PUBLIC_BYTES: Final = _MLKEM_PUBLIC_BYTES + _X25519_BYTES
SECRET_BYTES: Final = _MLKEM_SEED_BYTES + _X25519_BYTES
OVERHEAD: Final = _MLKEM_SEALED_BYTES + _X25519_BYTES + 16
"""The difference between an envelope's length and its content's."""

_PUBLIC_TAG = b"secureps-envelope-public-key-2\n"
_SECRET_TAG = b"secureps-envelope-SECRET-key-2\n"
_DOMAIN = "secureps-envelope-2"
_SUITE = Suite(KEM.MLKEM768_X25519, KDF.SHAKE256, AEAD.CHACHA20_POLY1305)
_PROBE = X25519PrivateKey.from_private_bytes(bytes(range(_X25519_BYTES)))
"""A key that everybody knows. Its exchange with a point of low order is zero, as any key's is."""


@dataclass(frozen=True, repr=False)
class EnvelopePublicKey:
    """A hybrid public key, under which anybody can seal for its holder.

    Args:
        key: 1184 bytes of ML-KEM-768, then 32 of X25519.

    Raises:
        Malformed: wrong length; not a key of ML-KEM; a point of low order, with which every
            exchange gives a secret that everybody knows; or a point in another encoding than honest
            parties use (RFC 7748, section 5, accepts it).
    """

    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != PUBLIC_BYTES:
            raise Malformed(
                f"an envelope's public key has {PUBLIC_BYTES} bytes, not {len(self.key)}"
            )
        _hybrid(self.key)

    @classmethod
    def from_bytes(cls, data: bytes) -> EnvelopePublicKey:
        return cls(strip_tag("an envelope public key", data, _PUBLIC_TAG, PUBLIC_BYTES))

    def to_bytes(self) -> bytes:
        """1247 bytes: a tag, then the key."""
        return _PUBLIC_TAG + self.key

    def __repr__(self) -> str:
        return f"EnvelopePublicKey({digest('secureps-envelope-key', self.key).hex()})"


@functools.lru_cache(256)
def _hybrid(key: bytes) -> MLKEM768X25519PublicKey:
    """Parses a key (Malformed); cached, because a party parses its few holders' keys often."""
    point = key[_MLKEM_PUBLIC_BYTES:]
    x25519 = X25519PublicKey.from_public_bytes(point)
    try:
        _PROBE.exchange(x25519)
    except ValueError:
        raise Malformed(
            "this X25519 public key is a point of low order, under which nothing is secret: "
            "no honest party's key is one"
        ) from None
    if int.from_bytes(point, "little") >= _P:
        raise Malformed("this X25519 public key is written in a way that no honest party uses")
    try:
        mlkem = MLKEM768PublicKey.from_public_bytes(key[:_MLKEM_PUBLIC_BYTES])
    except ValueError:  # a coefficient is not below the modulus: FIPS 203, section 7.2
        raise Malformed("this is no public key of ML-KEM-768") from None
    return MLKEM768X25519PublicKey(mlkem, x25519)


class EnvelopeKey(Secret):
    """A hybrid secret key of 96 uniform bytes: the seed of ML-KEM-768's key, then X25519's."""

    __slots__ = ("_hybrid", "_secret", "public")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise Malformed(f"an envelope's secret key has {SECRET_BYTES} bytes, not {len(secret)}")
        mlkem = MLKEM768PrivateKey.from_seed_bytes(secret[:_MLKEM_SEED_BYTES])
        x25519 = X25519PrivateKey.from_private_bytes(secret[_MLKEM_SEED_BYTES:])
        points = mlkem.public_key().public_bytes_raw(), x25519.public_key().public_bytes_raw()
        self._secret = secret
        self._hybrid = MLKEM768X25519PrivateKey(mlkem, x25519)
        self.public = EnvelopePublicKey(b"".join(points))

    @classmethod
    def from_os(cls) -> EnvelopeKey:
        return cls(os.urandom(SECRET_BYTES))

    @classmethod
    def from_bytes(cls, data: bytes) -> EnvelopeKey:
        return cls(strip_tag("an envelope secret key", data, _SECRET_TAG, SECRET_BYTES))

    def to_bytes(self) -> bytes:
        """127 secret bytes: a tag, then the key."""
        return _SECRET_TAG + self._secret


def seal(recipient: EnvelopePublicKey, plaintext: bytes, associated: bytes) -> bytes:
    """Seals an envelope of len(plaintext) + OVERHEAD bytes that only `recipient` can open.

    Args:
        associated: the message that the envelope belongs to; it is not part of the envelope, and
            must be the same at opening.
    """
    return _SUITE.encrypt(plaintext, _hybrid(recipient.key), info=digest(_DOMAIN, associated))


def open(key: EnvelopeKey, sealed: bytes, associated: bytes, size: int) -> bytes:
    """Opens an envelope: the `size` bytes that were sealed for this key with this `associated`.

    Raises:
        Oversized: longer than an envelope of `size` bytes.
        Malformed: shorter, altered, for another recipient, or with other `associated`.
    """
    check_length("an envelope", sealed, size + OVERHEAD)
    try:
        return _SUITE.decrypt(sealed, key._hybrid, info=digest(_DOMAIN, associated))
    except InvalidTag:  # a point of low order fails here, too
        raise Malformed(
            "an envelope does not open: it was altered, or is for another key or another receipt"
        ) from None
