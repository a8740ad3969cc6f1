"""Seeds, and the streams of random words derived from them.

seed --derive(labels)--> stream: the key is BLAKE2b-256 (RFC 7693, keyed and personalised) of the
length-prefixed labels; the words are the ChaCha20 key stream (RFC 8439) under that key with a zero
nonce. Each key serves one stream.
"""

from __future__ import annotations

import abc
import hashlib
import os
from collections.abc import Iterable
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms

from secureps.crypto.secret import Secret
from secureps.errors import InternalError, Malformed

SEED_BYTES = 32
_ZEROS = bytes(1 << 16)
BLOCK_WORDS = 16
STREAM_WORDS = 1 << 36
"""2^32 blocks, the range of RFC 8439's block counter."""

NO_PRIVACY = "unsafe seed: no privacy"
"""Stands in every output about a client or run whose randomness starts at an `UnsafeSeed`."""

Label = str | int | bytes


def fill(stream: CipherContext, out: npt.NDArray[Any]) -> None:
    """Fills an array with the next bytes of a key stream, piece by piece."""
    room = out.data.cast("B") if out.size else memoryview(b"")
    for start in range(0, out.nbytes, len(_ZEROS)):
        piece = room[start : start + len(_ZEROS)]
        stream.update_into(_ZEROS[: len(piece)], piece)


class Stream(Secret):
    """A stream of uniform words; requests for n and then m words give the same as one for n + m.

    Args:
        key, nonce: 32 bytes and 96 bits, together used for this stream alone.
        first: the word that it begins with.
    """

    __slots__ = ("_encryptor", "_key", "_left", "_nonce")

    def __init__(self, key: bytes, nonce: int = 0, first: int = 0) -> None:
        block, skipped = divmod(first, BLOCK_WORDS)
        counter = block.to_bytes(4, "little") + nonce.to_bytes(12, "little")
        self._encryptor = Cipher(algorithms.ChaCha20(key, counter), mode=None).encryptor()
        self._encryptor.update(bytes(4 * skipped))
        self._key, self._nonce, self._left = key, nonce, STREAM_WORDS - first

    def at(self, first: int) -> Stream:
        """Returns the same stream from word `first` on, 0 <= first < 2^36."""
        return Stream(self._key, self._nonce, first)

    def words(self, count: int) -> npt.NDArray[np.uint32]:
        """Returns the next words, uint32 (count,); InternalError at the end of the stream."""
        if not 0 <= count <= self._left:  # else the block counter would wrap, and noise repeat
            raise InternalError(f"a stream has {self._left} words left, not {count}")
        self._left -= count
        words = np.empty(count, np.dtype("<u4"))
        fill(self._encryptor, words)
        return words.astype(np.uint32, copy=False)

    def integer(self, bits: int = 63) -> int:
        """Returns a uniform integer in [0, 2^bits), 1 <= bits <= 64, from two words."""
        if not 1 <= bits <= 64:
            raise InternalError(f"an integer of {bits} bits is not to be had, only 1 to 64")
        low, high = self.words(2).tolist()
        return int(high << 32 | low) >> (64 - bits)


def public_stream(*labels: Label) -> Stream:
    """Returns a public stream, by unkeyed BLAKE2b, for draws that all members of a cohort share."""
    return _stream_of(b"", b"secureps-public", labels)


def _stream_of(key: bytes, person: bytes, labels: Iterable[Label]) -> Stream:
    hasher = hashlib.blake2b(digest_size=SEED_BYTES, key=key, person=person)
    for label in labels:  # one by one, because a label may be as long as a model
        hasher.update(_encode(label))
    return Stream(hasher.digest())


def _encode(label: Label) -> bytes:
    """Encodes a label's type, length and value: no two lists of labels encode alike."""
    if isinstance(label, bool) or not isinstance(label, (str, int, bytes)):
        raise Malformed(f"a {type(label).__name__} is no label for a stream")
    if isinstance(label, str):
        kind, value = b"s", label.encode()
    elif isinstance(label, int):
        kind, value = b"i", str(label).encode()
    else:
        kind, value = b"b", label
    return kind + len(value).to_bytes(8, "little") + value


class Seed(abc.ABC):
    """The start of all randomness: a `SecretSeed` or, in tests and on loopback, an `UnsafeSeed`."""

    __slots__ = ()

    private: ClassVar[bool]
    """True if noise from this seed protects anybody."""

    def __init_subclass__(cls) -> None:
        if cls.__module__ != __name__:
            raise TypeError("there are two kinds of seed; no other can be made")

    @abc.abstractmethod
    def _key(self) -> bytes: ...

    def derive(self, *labels: Label) -> Stream:
        """Returns the stream of these labels: text, bytes or whole numbers (else Malformed)."""
        return _stream_of(self._key(), b"secureps-stream", labels)


@final
class SecretSeed(Secret, Seed):
    """32 uniform secret bytes (else Malformed)."""

    __slots__ = ("_material",)

    private = True

    def __init__(self, material: bytes) -> None:
        if len(material) != SEED_BYTES:
            raise Malformed(f"a seed has {SEED_BYTES} bytes, not {len(material)}")
        self._material = bytes(material)

    @classmethod
    def from_os(cls) -> SecretSeed:
        return cls(os.urandom(SEED_BYTES))

    def _key(self) -> bytes:
        return self._material


@final
class UnsafeSeed(Seed):
    """A public number, >= 0 and below 2^64: runs repeat bit for bit, and noise protects nobody."""

    __slots__ = ("number",)

    private = False

    def __init__(self, number: int) -> None:
        if not 0 <= number < 1 << 64:
            raise Malformed(f"an unsafe seed is at least 0 and below 2^64, not {number}")
        self.number = number

    def __repr__(self) -> str:
        return f"UnsafeSeed({self.number}): no privacy"

    def _key(self) -> bytes:
        return b"secureps unsafe seed\0\0\0\0" + self.number.to_bytes(8, "little")
