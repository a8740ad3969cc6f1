"""The canonical form of every record and state, for digests, signatures and journals.

Theory of operation. The room `messages` has what parties say and journal, as frozen dataclasses.
`requests` go to servers and `orders` come from the coordinator; `submission` has receipts and
blocks, `run` what a run is, and one module for each role has its records. Signed and journalled
bytes come from this module; messages travel as MessagePack (`wire.msgpack`).

What happens to one record:

    written   `to_plain` turns it into JSON values. A journal keeps them as text.
    signed    `signed_part` and `canonical` make the one byte string that is hashed and signed
    named     `digest` hashes byte strings under a domain; `payload_digest` hashes a payload
    read      `from_plain` reads it by the class's type hints, and refuses everything else

A state that is large writes and reads itself (`Packed`). `to_file` and `from_file` are for records
that people compare.

What outlives a version. Digests and signatures cover these bytes, so a field must not change its
text. A new field with the default None is left out while it is None, and FORMER gives a field's
earlier name. Any other change raises `messages.format.FORMAT`.

Guards. Each record has one form, so that nobody can change its bytes under the same digest:
`_read_record` refuses an extra field, and `_read_bytes` a second text for the same bytes. NaN and
infinity have no form. Two uses of `digest` never collide, because each has its own domain, and
every part its length before it.

Look first at `_reader` for the types that a field may have.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from blake3 import blake3

from secureps.errors import InternalError, Malformed, Oversized

T = TypeVar("T")

DIGEST_BYTES = 32
"""Length of every digest: BLAKE2b-256 (RFC 7693), or BLAKE3 for payloads."""


def digest(domain: str, *parts: bytes | memoryview) -> bytes:
    """Computes BLAKE2b-256 of length-prefixed parts under a domain, so that no two uses collide."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (domain.encode(), *parts):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def payload_digest(payload: bytes | memoryview) -> bytes:
    """Computes BLAKE3 of a payload, for block headers and receipts.

    A view must be of single bytes. Source: https://github.com/BLAKE3-team/BLAKE3-specs
    """
    return blake3(payload).digest()


def payload_hasher() -> blake3:
    return blake3()


def file_digest(data: bytes) -> bytes:
    """Computes BLAKE2b-256 of a file for people: a kit's public keys, a model of version 0.

    `b2sum --length=256` and hashlib compute the same.
    """
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def file_hasher() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


_SURROGATE = re.compile("[\ud800-\udfff]")
"""Surrogates, which JSON may escape, but which no text can digest or send."""
_SCALARS = frozenset({str, bool, int, float, type(None)})


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, bool], ...] | None:
    """Returns a record class's fields, and whether `to_plain` writes them if they are None.

    None for other classes, and for those that write themselves.
    """
    if hasattr(kind, "packed") or not dataclasses.is_dataclass(kind):
        return None
    return tuple((f.name, f.default is not None) for f in dataclasses.fields(kind))


class Packed(Protocol):
    """A state that writes itself, smaller than field by field."""

    def packed(self) -> Any:
        """Returns its plain values."""

    @classmethod
    def unpacked(cls, plain: Any) -> Packed:
        """Restores the state."""


def to_plain(value: Any) -> Any:
    """Turns a record into dicts, lists, strings and numbers; bytes become hexadecimal text.

    A field whose default is None is left out while it is None, so that a record without it keeps
    the bytes and digest that it had before the field existed. Dicts of a state become lists of
    pairs in their order; sets become sorted lists.
    """
    kind: type = type(value)
    if kind in _SCALARS:
        return value
    if kind is bytes or kind is memoryview:
        return value.hex()
    if kind is tuple or kind is list:
        return [item.hex() if type(item) is bytes else to_plain(item) for item in value]
    if (fields := _fields(kind)) is not None:
        given = [(name, getattr(value, name), kept) for name, kept in fields]
        return {name: to_plain(each) for name, each, kept in given if kept or each is not None}
    if hasattr(kind, "packed"):
        return value.packed()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(to_plain, value), key=json.dumps)
    raise Malformed(f"a {type(value).__name__} has no place in a record")


def dataclasses_of(*modules: types.ModuleType) -> dict[str, type]:
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
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def from_plain(kind: type[T], plain: Any) -> T:
    """Reads a record or state written by `to_plain`; Malformed if it does not fit `kind`."""
    read: Reader = _reader(typing.cast(Any, kind))
    return typing.cast(T, read(plain, kind.__name__))


Where = str | tuple[Any, str]
"""The path of a field, for errors: its record's path, and the rest."""
Reader = Callable[[Any, Where], Any]
"""Reads a plain value of one type; Malformed if it does not fit."""


def _build_error(where: Where, text: str) -> Malformed:
    parts = list[str]()
    while not isinstance(where, str):
        where, part = where
        parts.append(part)
    return Malformed(f"{where}{''.join(reversed(parts))}: {text}")


@functools.cache
def _reader(kind: Any) -> Reader:
    """Builds the reader of a type; cached, because journals have many records of each."""
    if hasattr(kind, "unpacked"):
        return functools.partial(_read_packed, kind)
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        fields = {name: (_reader(each), f".{name}") for name, each in field_types(kind).items()}
        required = frozenset(name for name, kept in _fields(kind) or () if kept)
        return functools.partial(_read_record, kind, fields, required)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[1:] != (...,):
        return functools.partial(_read_items, tuple(map(_reader, arguments)))
    if origin in (tuple, list, set, frozenset):
        return functools.partial(_read_list, origin, _reader(arguments[0]))
    if origin in (dict, collections.Counter, collections.abc.Mapping):
        made = dict if origin is collections.abc.Mapping else origin
        pair = tuple(map(_reader, (*arguments, int)[:2]))
        return functools.partial(_read_pairs, made, functools.partial(_read_items, pair))
    if origin is typing.Literal:
        return functools.partial(_read_one_of, arguments)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (each for each in arguments if each is not type(None))
        return functools.partial(_read_or_none, _reader(inner))
    if kind is bytes:
        return _read_bytes
    if kind is float:
        return _read_float
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return functools.partial(_read_word, kind)
    if kind in (str, int, bool, None, type(None)):
        return functools.partial(_read_exactly, kind or type(None))
    raise InternalError(f"a {kind} has no place in a record")


def _read_record(
    kind: type,
    fields: Mapping[str, tuple[Reader, str]],
    required: frozenset[str],
    plain: Any,
    where: Where,
) -> Any:
    if former := getattr(kind, "FORMER", None):
        plain = _apply_new_names(plain, former)
    if (  # an extra or missing field would be in no digest or signature
        not isinstance(plain, dict)
        or not (fields.keys() == plain.keys() or fields.keys() >= plain.keys() >= required)
        or any(plain[name] is None for name in plain.keys() - required)
    ):
        raise _build_error(where, f"expected exactly the fields {sorted(fields)}")
    read = dict[str, Any]()
    for name, each in plain.items():
        reader, part = fields[name]
        read[name] = reader(each, (where, part))
    return kind(**read)


def _apply_new_names(plain: Any, former: Mapping[str, str]) -> Any:
    """Applies new names of fields, because ledgers, audit logs and checkpoints outlive names."""
    if not isinstance(plain, dict) or not former.keys() & plain.keys():
        return plain
    # If a field has both its old and its new name, renaming would lose one of the two values: leave
    # the record as it is, so that its reader refuses it.
    if plain.keys() & set(former.values()):
        return plain
    return {former.get(name, name): each for name, each in plain.items()}


def _read_packed(kind: type[Packed], plain: Any, where: Where) -> Packed:
    try:
        return kind.unpacked(plain)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise _build_error(where, f"this is no such state: {error}") from None


def _read_list(made: type, item: Reader, plain: Any, where: Where) -> Any:
    if not isinstance(plain, list):
        raise _build_error(where, "expected a list")
    return made([item(each, (where, f"[{i}]")) for i, each in enumerate(plain)])


def _read_pairs(made: type, pair: Reader, plain: Any, where: Where) -> Any:
    """Reads a dict in its order, on which answers depend."""
    return made(dict(_read_list(list, pair, plain, where)))


def _read_word(kind: type[enum.Enum], plain: Any, where: Where) -> enum.Enum:
    try:
        return kind(plain)
    except ValueError:
        raise _build_error(where, f"expected one of {[each.value for each in kind]}") from None


def _read_items(items: tuple[Reader, ...], plain: Any, where: Where) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise _build_error(where, "expected a list")
    if len(plain) != len(items):
        raise _build_error(where, f"expected {len(items)} items")
    return tuple([item(each, where) for item, each in zip(items, plain)])


def _read_one_of(values: tuple[Any, ...], plain: Any, where: Where) -> Any:
    if plain not in values:
        raise _build_error(where, f"expected one of {values}")
    return plain


def _read_or_none(inner: Reader, plain: Any, where: Where) -> Any:
    return None if plain is None else inner(plain, where)


def _read_bytes(plain: Any, where: Where) -> bytes:
    if not isinstance(plain, str):
        raise _build_error(where, "expected hexadecimal text")
    try:
        read = bytes.fromhex(plain)
    except ValueError:
        read = None
    if read is None or read.hex() != plain:  # the same bytes have only one text
        raise _build_error(where, "expected hexadecimal text")
    return read


def _read_float(plain: Any, where: Where) -> float:
    if not isinstance(plain, int | float) or isinstance(plain, bool):
        raise _build_error(where, f"expected float, got {type(plain).__name__}")
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):  # JSON has no NaN or infinity
        raise _build_error(where, "expected a finite number")
    return number


def _read_exactly(kind: Any, plain: Any, where: Where) -> Any:
    if type(plain) is not kind:
        raise _build_error(where, f"expected {kind.__name__}, got {type(plain).__name__}")
    if kind is str and not plain.isascii() and _SURROGATE.search(plain):
        raise _build_error(where, "expected text, and half of a character is none")
    return plain


_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(record: Any) -> bytes:
    """Returns the one byte string of a record: its class name and sorted fields, without spaces."""
    return canonical_plain(type(record), to_plain(record))


def canonical_plain(kind: type, plain: Any) -> bytes:
    return f"{kind.__name__}:{_JSON.encode(plain)}".encode()


def field_texts(record: Any) -> dict[str, str]:
    return {name: _JSON.encode(plain) for name, plain in to_plain(record).items()}


def join_fields(kind: type, texts: Mapping[str, str]) -> bytes:
    fields = ",".join(f'"{name}":{texts[name]}' for name in sorted(texts))
    return f"{kind.__name__}:{{{fields}}}".encode()


def to_file(record: Any) -> bytes:
    return (json.dumps(to_plain(record), indent=1, sort_keys=True) + "\n").encode()


def from_file(kind: type[T], data: bytes, noun: str, most: int, tool: str) -> T:
    """Reads a record of class `kind` written by `to_file`, without verifying signatures.

    Args:
        noun: of the record, for errors.
        most: bytes of the largest file.
        tool: that writes such files, for errors.

    Raises:
        Malformed: bytes that `to_file` would not write, even by a space.
        Oversized: more than `most` bytes.
    """
    if len(data) > most:
        raise Oversized(f"a {noun} of {len(data)} bytes; at most {most}")
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed(f"this is not a {noun} in JSON") from None
    record = from_plain(kind, plain)
    if to_file(record) != data:  # people must compare the very bytes that were signed
        raise Malformed(f"this {noun} was edited: it is not as {tool} wrote it")
    return record


def signed_part(record: Any) -> bytes:
    """Returns the bytes to sign: `canonical` of the record with an empty `signature`."""
    return canonical(dataclasses.replace(record, signature=b""))
