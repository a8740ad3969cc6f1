"""Looks for a secret in bytes: each of its words alone, however it may have got there."""

import base64
import re
from collections.abc import Iterator

import numpy as np
import zstandard
from numpy.typing import NDArray

WORD = 8
"""Bytes: one coefficient of a BFV key, a quarter of an Ed25519 key."""

ZSTD = b"\x28\xb5\x2f\xfd"
"""How a zstd frame begins: SEAL's own streams are compressed so."""

_FRAME_LIMIT = 4 << 20
_BITS = 22
_URLSAFE = bytes.maketrans(b"-_", b"+/")
_HEX = re.compile(rb"[0-9a-fA-F]{16,}")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{11,}")


class Needles:
    """The words of a secret, little endian.

    A word of a key modulo a prime of 54 bits turns up by chance once in 2^41 places (8192
    words of 54 bits), so that 30 MB give a false alarm in one of 70,000 runs.
    """

    def __init__(self, secret: bytes) -> None:
        self.words: NDArray[np.uint64] = np.unique(np.frombuffer(secret, "<u8"))
        self._maybe = np.zeros(1 << _BITS, dtype=bool)
        self._maybe[self._low(self.words)] = True

    def found(self, haystack: bytes) -> set[int]:
        """Those words that are in it: at any byte, in text, or in a compressed frame."""
        return {word for layer in layers(haystack) for word in self._in(layer)}

    def _in(self, layer: bytes) -> Iterator[int]:
        for offset in range(WORD):
            count = (len(layer) - offset) // WORD
            if count <= 0:
                return
            words = np.frombuffer(layer, "<u8", count, offset)
            words = words[self._maybe[self._low(words)]]
            yield from (int(word) for word in np.intersect1d(words, self.words))

    @staticmethod
    def _low(words: NDArray[np.uint64]) -> NDArray[np.intp]:
        return (words & np.uint64((1 << _BITS) - 1)).astype(np.intp)


def layers(haystack: bytes) -> Iterator[bytes]:
    """The bytes, and what becomes of them when text and compression are undone."""
    yield haystack
    at = haystack.find(ZSTD)
    while at >= 0:
        yield inflated(haystack[at : at + _FRAME_LIMIT])
        at = haystack.find(ZSTD, at + 1)
    yield b"\0".join(
        bytes.fromhex(digits[: len(digits) // 2 * 2].decode())
        for run in _HEX.findall(haystack)
        for digits in (run, run[1:])
    )
    yield b"\0".join(
        _base64(run[start:]) for run in _BASE64.findall(haystack) for start in range(4)
    )


def inflated(frame: bytes) -> bytes:
    """What a zstd frame holds, as far as it is one: a stream may cut it with other bytes."""
    whole, decompress = [], zstandard.ZstdDecompressor().decompressobj()
    try:
        for start in range(0, len(frame), 1024):
            whole.append(decompress.decompress(frame[start : start + 1024]))
            if decompress.eof:
                break
    except zstandard.ZstdError:
        pass
    return b"".join(whole)


def _base64(run: bytes) -> bytes:
    run = run[:-1] if len(run) % 4 == 1 else run
    return base64.b64decode(run.translate(_URLSAFE) + b"=" * (-len(run) % 4))
