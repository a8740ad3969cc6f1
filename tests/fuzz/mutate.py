"""Bytes that are nearly right: honest ones with a few changes, some of which know their form.

Blind to what a decoder does with them. Text stays text in half of the cases, JSON and MessagePack
stay what they are, and a line stays a line: what is no JSON at all is found out at the first byte.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import msgspec

WORDS = (
    *(b"\0", b"\xff", b"\x7f", b"\x80", b"\n", b'"', b"\\", b"0", b"-1", b"1e999", b"NaN"),
    *(b"Infinity", b"true", b"null", b"[]", b"{}", b"[" * 3000, b"9" * 5000, b"\xed\xa0\x80"),
    *((2**bits - 1).to_bytes(8, "little") for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64)),
    *((2**bits).to_bytes(8, "little") for bits in (7, 15, 31, 32, 40, 53, 63)),
    *("é".encode(), "\u2028".encode(), b"../", b"/etc/passwd", b"%00", b"= ", b"]\n["),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0),
    *(1e308, -1e308, 5e-324, float("nan"), float("inf"), "", "x", "\ud800", "\0", "x" * 5000),
    *("00", "0" * 64, "FF" * 32, " 00", [], {}, [[]], [{}], {"": None}, [0] * 300),
)
LONGEST = 1 << 20
"""Bytes of what is made: as long as a request may be."""


def mutated(random: Random, corpus: Sequence[bytes]) -> bytes:
    """One of the corpus, changed in 1 to 4 places."""
    data = random.choice(corpus)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        data = random.choice(_CHANGES)(random, data, corpus)
    return data[:LONGEST]


def _flip(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return random.randbytes(1)
    at, changed = random.randrange(len(data)), bytearray(data)
    changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


def _word(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A word that is at the edge of something, over what is there or between it."""
    at, word = random.randrange(len(data) + 1), random.choice(WORDS)
    return data[:at] + word + data[at + random.choice((0, 1, len(word))) :]


def _cut(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return random.choice((data[:at], data[end:], data[:at] + data[end:]))


def _again(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """A piece twice, or moved."""
    at, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    to = random.randrange(len(data) + 1)
    return data[:to] + data[at : min(end, at + 4096)] + data[to:]


def _splice(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = random.choice(corpus)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _digits(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Another character of the same kind: a digit for a digit, a letter for a letter."""
    places = [at for at in range(min(len(data), 4096)) if data[at : at + 1].isalnum()]
    if not places:
        return data
    at = random.choice(places)
    kinds = b"0123456789", b"abcdefABCDEF", bytes(range(97, 123))
    kind = next((kind for kind in kinds if data[at] in kind), kinds[0])
    return data[:at] + bytes((random.choice(kind),)) + data[at + 1 :]


def _lines(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return data
    at, to = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(to, lines[at])
        case 2:
            lines[at], lines[to] = lines[to], lines[at]
        case _:
            head, equals, _value = lines[at].partition(b"=")
            value = json.dumps(random.choice(VALUES)).encode()
            lines[at] = head + equals + b" " + value + b"\n"
    return b"".join(lines)


def _value(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    """Another value somewhere in a message, or in a JSON text or a line of it, in its layout."""
    if data.startswith(b"\x92"):
        with suppress(ValueError, TypeError, OverflowError, RecursionError, msgspec.DecodeError):
            return msgspec.msgpack.encode(_other(random, msgspec.msgpack.decode(data)))
    tag, colon, text = data.partition(b":{")
    with suppress(ValueError, RecursionError):
        return _written(random, data, _other(random, json.loads(data)))
    if colon and tag.isalpha():  # the canonical form of a record: its class and its fields
        with suppress(ValueError, RecursionError):
            made = _other(random, json.loads(b"{" + text))
            return tag + b":" + json.dumps(made, sort_keys=True, separators=(",", ":")).encode()
    lines = data.splitlines()
    if len(lines) > 1:
        at = random.randrange(len(lines))
        with suppress(ValueError, RecursionError):
            made = _other(random, json.loads(lines[at]))
            lines[at] = json.dumps(made, separators=(",", ":")).encode()
            return b"\n".join(lines) + b"\n"
    return _word(random, data, (data,))


def _written(random: Random, data: bytes, plain: Any) -> bytes:
    if b'\n "' in data:
        return (json.dumps(plain, indent=1, sort_keys=random.random() < 0.9) + "\n").encode()
    return json.dumps(plain, separators=(",", ":")).encode()


def _other(random: Random, plain: Any) -> Any:
    """The same but for one place."""
    inner = list(plain) if isinstance(plain, dict) else range(len(plain)) if _list(plain) else ()
    if not inner or random.random() < 0.15:
        return random.choice(VALUES)
    key = random.choice(list(inner))
    changed = dict(plain) if isinstance(plain, dict) else list(plain)
    match random.randrange(8):
        case 0:
            del changed[key]
        case 1 if isinstance(changed, dict):
            changed[random.choice(("extra", "", key + "x"))] = changed[key]
        case 1 if isinstance(changed, list):
            changed.insert(random.randrange(len(changed) + 1), changed[key])
        case 2:
            changed[key] = changed[random.choice(list(inner))]
        case _:
            changed[key] = _other(random, changed[key])
    return changed


def _list(plain: Any) -> bool:
    return isinstance(plain, list)


Change = Callable[[Random, bytes, Sequence[bytes]], bytes]
_CHANGES: tuple[Change, ...] = (
    *(_flip, _flip, _word, _word, _cut, _again, _splice, _digits, _lines),
    *(_value, _value, _value),
)
