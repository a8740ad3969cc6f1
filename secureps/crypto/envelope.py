"""Sealed envelopes: a few bytes for one key holder, carried by parties that must not read them.

HPKE (RFC 9180) of `cryptography`, single-shot in its base mode. Its KEM is the hybrid of
ML-KEM-768 (FIPS 203) and X25519 (RFC 7748) that is known as X-Wing (draft-connolly-cfrg-xwing-kem):
whoever recorded envelopes must break both, now or with a quantum computer later. Its key schedule
is SHAKE256's (draft-ietf-hpke-pq), its cipher ChaCha20-Poly1305 (RFC 8439):

    sealed = ML-KEM's ciphertext (1088 bytes) | X25519's (32) | the bytes sealed | 16 of Poly1305

The KEM binds an envelope to its recipient's public key; `info` to `associated`, what it came with.
Who sealed it is for that to say: an envelope has no sender. Sealing draws on the operating system,
and no envelope is made twice: it is journalled before it is sent.
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
"""Bytes by which an envelope is longer than what is in it."""

KEY_OF_0_1: Final = b"secureps-envelope-public-key-1\n"
"""How a public key of X25519 alone began."""
_PUBLIC_TAG = b"secureps-envelope-public-key-2\n"
_SECRET_TAG = b"secureps-envelope-SECRET-key-2\n"
_DOMAIN = "secureps-envelope-2"
_SUITE = Suite(KEM.MLKEM768_X25519, KDF.SHAKE256, AEAD.CHACHA20_POLY1305)
_PROBE = X25519PrivateKey.from_private_bytes(bytes(range(_X25519_BYTES)))
"""A key that everybody knows: its exchange with a point of low order is zero, as any key's is."""


@dataclass(frozen=True, repr=False)
class EnvelopePublicKey:
    """A hybrid public key: whoever has it can seal for its holder.

    Args:
        key: 1184 bytes of ML-KEM-768, then 32 of X25519.

    Raises:
        Malformed: another length, no key of ML-KEM, a point of low order, with which every
            exchange gives a secret that everybody knows, or a point that is not written as honest
            parties write it (RFC 7748, section 5, has it accepted).
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
    """The key in these bytes; a party reads those of its few holders over and over.

    Raises:
        Malformed: as `EnvelopePublicKey`.
    """
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
    except ValueError:  # a coefficient beyond the modulus: FIPS 203, section 7.2
        raise Malformed("this is no public key of ML-KEM-768") from None
    return MLKEM768X25519PublicKey(mlkem, x25519)


class EnvelopeKey(Secret):
    """A hybrid secret key: whoever has it opens what was sealed for `public`.

    Args:
        secret: 96 uniform bytes: the seed of ML-KEM-768's key, 64, then X25519's key.
    """

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
    """An envelope of len(plaintext) + OVERHEAD bytes that only `recipient` opens.

    Args:
        associated: what the envelope belongs to; it is not in it, and must be the same at
            opening.
    """
    return _SUITE.encrypt(plaintext, _hybrid(recipient.key), info=digest(_DOMAIN, associated))


def open(key: EnvelopeKey, sealed: bytes, associated: bytes, size: int) -> bytes:
    """The `size` bytes that were sealed for this key with the same `associated`.

    Raises:
        Oversized: longer than an envelope of `size` bytes.
        Malformed: shorter, altered in any bit, for somebody else, or with other `associated`.
    """
    check_length("an envelope", sealed, size + OVERHEAD)
    try:
        return _SUITE.decrypt(sealed, key._hybrid, info=digest(_DOMAIN, associated))
    except InvalidTag:  # of a point of low order, too
        raise Malformed(
            "an envelope does not open: it was altered, or is for another key or another receipt"
        ) from None
