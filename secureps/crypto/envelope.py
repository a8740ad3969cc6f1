"""Sealed envelopes: a few bytes for one key holder, carried by parties that must not read them.

X25519 (RFC 7748) between a key made for one envelope and the recipient's, HKDF-SHA256 (RFC
5869), ChaCha20-Poly1305 (RFC 8439); in outline the base mode of HPKE (RFC 9180):

    key    = HKDF(exchange(ephemeral, recipient), info = tag, ephemeral public, recipient public)
    sealed = ephemeral public (32 bytes) | ciphertext | 16 bytes of Poly1305

The nonce is zero, each key sealing once. Both public keys being part of the key, an
envelope opens for one recipient alone and no byte of it can change; `associated` binds it
to what it came with. Who sealed it is for that to say: an envelope has no sender.

What must not live here: what is inside (`crypto.sharing`), files, and signatures.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secureps.crypto.cipher import untagged
from secureps.crypto.secret import Secret
from secureps.errors import Malformed, Oversized

KEY_BYTES: Final = 32
OVERHEAD: Final = KEY_BYTES + 16
"""Bytes by which an envelope is longer than what is in it."""

_PUBLIC_TAG = b"secureps-envelope-public-key-1\n"
_SECRET_TAG = b"secureps-envelope-SECRET-key-1\n"
_INFO = b"secureps-envelope-1"
_NONCE = bytes(12)
_PROBE = X25519PrivateKey.from_private_bytes(bytes(range(KEY_BYTES)))
"""A key that everybody knows: its exchange with a point of low order is zero, as any key's is."""


@dataclass(frozen=True, repr=False)
class EnvelopePublicKey:
    """An X25519 public key: whoever has it can seal for its holder.

    Args:
        key: 32 bytes.

    Raises:
        Malformed: another length, or a point of low order, with which every exchange gives a
            secret that everybody knows.
    """

    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise Malformed(f"an X25519 public key has {KEY_BYTES} bytes, not {len(self.key)}")
        try:
            _PROBE.exchange(self._point)
        except ValueError:
            raise Malformed(
                "this X25519 public key is a point of low order, under which nothing is secret: "
                "no honest party's key is one"
            ) from None

    @cached_property
    def _point(self) -> X25519PublicKey:
        return X25519PublicKey.from_public_bytes(self.key)

    @classmethod
    def from_bytes(cls, data: bytes) -> EnvelopePublicKey:
        """Malformed or Oversized unless `data` is what `to_bytes` gives."""
        return cls(untagged("an envelope public key", data, _PUBLIC_TAG, KEY_BYTES))

    def to_bytes(self) -> bytes:
        """63 bytes: a tag, then the key."""
        return _PUBLIC_TAG + self.key

    def _sealing_key(self, ephemeral: X25519PrivateKey) -> ChaCha20Poly1305:
        public = ephemeral.public_key().public_bytes_raw()
        return _single_use(ephemeral.exchange(self._point), public, self.key)

    def __repr__(self) -> str:
        return f"EnvelopePublicKey({self.key.hex()})"


class EnvelopeKey(Secret):
    """An X25519 secret key: whoever has it opens what was sealed for `public`.

    Args:
        secret: 32 uniform bytes.
    """

    __slots__ = ("_secret", "public")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise Malformed(f"an X25519 secret key has {KEY_BYTES} bytes, not {len(secret)}")
        self._secret = X25519PrivateKey.from_private_bytes(secret)
        self.public = EnvelopePublicKey(self._secret.public_key().public_bytes_raw())

    @classmethod
    def from_os(cls) -> EnvelopeKey:
        """Fresh from the operating system's randomness."""
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def from_bytes(cls, data: bytes) -> EnvelopeKey:
        """Malformed or Oversized unless `data` is what `to_bytes` gives."""
        return cls(untagged("an envelope secret key", data, _SECRET_TAG, KEY_BYTES))

    def to_bytes(self) -> bytes:
        """63 secret bytes: a tag, then the key."""
        return _SECRET_TAG + self._secret.private_bytes_raw()

    def _opening_key(self, ephemeral: bytes) -> ChaCha20Poly1305:
        point = X25519PublicKey.from_public_bytes(ephemeral)
        return _single_use(self._secret.exchange(point), ephemeral, self.public.key)


def _single_use(shared: bytes, ephemeral: bytes, recipient: bytes) -> ChaCha20Poly1305:
    info = _INFO + ephemeral + recipient
    return ChaCha20Poly1305(HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(shared))


def seal(recipient: EnvelopePublicKey, plaintext: bytes, associated: bytes) -> bytes:
    """An envelope of len(plaintext) + OVERHEAD bytes that only `recipient` opens.

    Args:
        associated: what the envelope belongs to; it is not in it, and must be the same at
            opening.
    """
    ephemeral = X25519PrivateKey.generate()
    ciphertext = recipient._sealing_key(ephemeral).encrypt(_NONCE, plaintext, associated)
    return ephemeral.public_key().public_bytes_raw() + ciphertext


def open(key: EnvelopeKey, sealed: bytes, associated: bytes, size: int) -> bytes:
    """The `size` bytes that were sealed for this key with the same `associated`.

    Raises:
        Oversized: longer than an envelope of `size` bytes.
        Malformed: shorter, altered in any bit, for somebody else, or with other `associated`.
    """
    if len(sealed) > size + OVERHEAD:
        raise Oversized(f"an envelope has {len(sealed)} bytes, not {size + OVERHEAD}")
    if len(sealed) < size + OVERHEAD:
        raise Malformed(f"an envelope has {len(sealed)} bytes, not {size + OVERHEAD}")
    try:
        opening = key._opening_key(sealed[:KEY_BYTES])
        return opening.decrypt(_NONCE, sealed[KEY_BYTES:], associated)
    except (InvalidTag, ValueError):  # ValueError: a point of low order
        raise Malformed(
            "an envelope does not open: it was altered, or is for another key or another receipt"
        ) from None
