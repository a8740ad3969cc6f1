"""One canonical form of every frozen record: for digests, signatures and journals.

`to_plain` / `from_plain` turn a record into JSON's values and back by its type hints
alone; `canonical` is the byte string that is hashed and signed. What must not live
here: the wire (protobuf is in `wire.protobuf`), and any knowledge of single messages.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from blake3 import blake3

from secureps.errors import Malformed, Oversized

T = TypeVar("T")

DIGEST_BYTES = 32
"""Length of every digest: 256 bits, of BLAKE2b (RFC 7693) or of BLAKE3 where it is a payload's."""


def digest(domain: str, *parts: bytes | memoryview) -> bytes:
    """BLAKE2b-256 of length-prefixed parts under a domain tag, so that no two uses collide."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (domain.encode(), *parts):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def payload_digest(payload: bytes | memoryview) -> bytes:
    """BLAKE3 of a payload's bytes as they lie: what block headers and receipts carry.

    A view has to be one of single bytes. Source: https://github.com/BLAKE3-team/BLAKE3-specs
    """
    return blake3(payload).digest()


def payload_hasher() -> blake3:
    """`payload_digest` for bytes that come in pieces: `update` with each, then `digest`."""
    return blake3()


def file_digest(data: bytes) -> bytes:
    """BLAKE2b-256 of a file that people keep: the public keys of a kit, a model of version 0.

    Python alone can make it: b2sum --length=256 does, and hashlib.
    """
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


_SURROGATE = re.compile("[\ud800-\udfff]")
"""What JSON may escape, and no text has: it could be neither digested nor sent."""
_SCALARS = frozenset({str, bool, int, float})


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields of a record class, and whether `to_plain` writes them where they are None."""
    return tuple((f.name, f.default is not None) for f in dataclasses.fields(kind))


def to_plain(value: Any) -> Any:
    """A record as dicts, lists, strings and numbers; bytes become hexadecimal text.

    A field that is None by default is left out where it is None: what a record says without
    it stays the same bytes, and the same digest, as before there was such a field.
    """
    kind = type(value)
    if kind in _SCALARS or value is None:
        return value
    if isinstance(value, bytes | memoryview):
        return value.hex()
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if dataclasses.is_dataclass(kind):
        given = ((name, getattr(value, name), kept) for name, kept in _fields(kind))
        return {name: to_plain(each) for name, each, kept in given if kept or each is not None}
    if isinstance(value, (str, int, float)):
        return value
    raise Malformed(f"a {type(value).__name__} has no place in a record")


def dataclasses_of(*modules: types.ModuleType) -> dict[str, type]:
    """Every dataclass that these modules define, by name."""
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and dataclasses.is_dataclass(kind)
        and kind.__module__ == module.__name__
    }


@functools.cache
def field_types(kind: type) -> dict[str, Any]:
    """The resolved type of every field of a record class."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


@functools.cache
def _omissible(kind: type) -> frozenset[str]:
    """Fields that `to_plain` leaves out where they are None."""
    return frozenset(name for name, kept in _fields(kind) if not kept)


def from_plain(kind: type[T], plain: Any) -> T:
    """The record of class `kind` that `to_plain` made; Malformed if it does not fit exactly."""
    return typing.cast(T, _read(kind, plain, kind.__name__))


def _read(kind: Any, plain: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        fields, omissible = field_types(kind), _omissible(kind)
        if (  # a field more or less would be in no digest, or in no signature
            not isinstance(plain, dict)
            or not fields.keys() - omissible <= plain.keys() <= fields.keys()
            or any(plain[name] is None for name in omissible & plain.keys())
        ):
            raise Malformed(f"{where}: expected exactly the fields {sorted(fields)}")
        return kind(**{n: _read(fields[n], each, f"{where}.{n}") for n, each in plain.items()})
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not isinstance(plain, list):
            raise Malformed(f"{where}: expected a list")
        item, *rest = typing.get_args(kind)
        if rest == [...]:
            return tuple(_read(item, x, f"{where}[{i}]") for i, x in enumerate(plain))
        if len(plain) != len(rest) + 1:
            raise Malformed(f"{where}: expected {len(rest) + 1} items")
        return tuple(_read(k, x, where) for k, x in zip((item, *rest), plain))
    if origin is typing.Literal:
        if plain not in typing.get_args(kind):
            raise Malformed(f"{where}: expected one of {typing.get_args(kind)}")
        return plain
    if origin in (types.UnionType, typing.Union):
        # a payload may be a view of its bytes; what is read back is bytes
        (inner,) = (k for k in typing.get_args(kind) if k not in (type(None), memoryview))
        return None if plain is None else _read(inner, plain, where)
    if kind is bytes:
        if not isinstance(plain, str):
            raise Malformed(f"{where}: expected hexadecimal text")
        try:
            read = bytes.fromhex(plain)
        except ValueError:
            read = None
        if read is None or read.hex() != plain:  # one text for the same bytes
            raise Malformed(f"{where}: expected hexadecimal text")
        return read
    if kind is float and isinstance(plain, int | float) and not isinstance(plain, bool):
        try:
            number = float(plain)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):  # `canonical` would have no text for it
            raise Malformed(f"{where}: expected a finite number")
        return number
    if type(plain) is not kind:
        raise Malformed(f"{where}: expected {kind.__name__}, got {type(plain).__name__}")
    if kind is str and not plain.isascii() and _SURROGATE.search(plain):
        raise Malformed(f"{where}: expected text, and half of a character is none")
    return plain


_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(record: Any) -> bytes:
    """The one byte string of a record: its class name and its fields, sorted, no spaces."""
    return f"{type(record).__name__}:{_JSON.encode(to_plain(record))}".encode()


def field_texts(record: Any) -> dict[str, str]:
    """`canonical` of a record in pieces: the text of each field that is written."""
    return {name: _JSON.encode(plain) for name, plain in to_plain(record).items()}


def joined(kind: type, texts: Mapping[str, str]) -> bytes:
    """`canonical` of a record of class `kind` with these texts of fields."""
    fields = ",".join(f'"{name}":{texts[name]}' for name in sorted(texts))
    return f"{kind.__name__}:{{{fields}}}".encode()


def to_file(record: Any) -> bytes:
    """A record as people keep and compare it: JSON text, one line to a field."""
    return (json.dumps(to_plain(record), indent=1, sort_keys=True) + "\n").encode()


def from_file(kind: type[T], data: bytes, noun: str, most: int, tool: str) -> T:
    """The record of class `kind` that `to_file` wrote; no signature in it is verified.

    Args:
        noun: what it is, for errors.
        most: bytes of the largest.
        tool: what writes such files, for errors.

    Raises:
        Malformed: any other bytes, be it by a space.
        Oversized: more than `most` bytes.
    """
    if len(data) > most:
        raise Oversized(f"a {noun} of {len(data)} bytes; at most {most}")
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed(f"this is not a {noun} in JSON") from None
    record = from_plain(kind, plain)
    if to_file(record) != data:  # what people compare is what was signed
        raise Malformed(f"this {noun} was edited: it is not as {tool} wrote it")
    return record


def signed_part(record: Any) -> bytes:
    """`canonical` of a record with its own `signature` field left empty: what is signed."""
    return canonical(dataclasses.replace(record, signature=b""))
