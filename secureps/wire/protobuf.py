"""Messages as protobuf bytes and back: the only importer of `secureps_pb2`.

One protobuf message per dataclass, with the same name and the same field names; what is
sent by itself travels in an `Envelope`. Nothing here knows a single message: both
directions walk the dataclass's type hints. Decoding is strict: the bytes must be exactly
those that `encode` would make of what was read, so that unknown fields, repeated fields
and other spellings of the same message are refused. Payloads go beside their message
(see `wire.grpc.framing`). What must not live here: gRPC, signatures, and what messages mean.

After a change of `secureps.proto`, run `make proto`, which is

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. secureps/wire/secureps.proto
    sed -i '1i # mypy: ignore-errors' secureps/wire/secureps_pb2.pyi
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, EncodeError, Message

from secureps.errors import Malformed, Oversized
from secureps.messages import (
    acts,
    charge,
    envelope_keys,
    evaluation,
    following,
    moves,
    orders,
    requests,
    run,
    scaling,
    schema,
    steps,
    submission,
)
from secureps.messages.encoding import DIGEST_BYTES, dataclasses_of, field_types
from secureps.messages.orders import MESSAGE_LIMIT
from secureps.wire import secureps_pb2

PAYLOAD = "payload"
"""The one field that never travels inside its message."""

SIGNATURE_BYTES = 64
"""Ed25519 (RFC 8032)."""

_DIGESTS = (
    *("run", "digest", "base", "state", "layout", "holders", "roster", "committee"),
    *("blocks", "root", "commitments", "model", "sums", "opened", "chain"),
)
SIZES = dict.fromkeys(_DIGESTS, DIGEST_BYTES) | {"nonce": 32, "signature": SIGNATURE_BYTES}
"""Length of bytes fields with these names; empty means "none" and passes too."""

INFINITE = frozenset({"MemberStatus", "Figure"})
"""Messages that only report, where infinity is a figure (an epsilon where nothing protects)."""


KINDS: dict[str, type] = dataclasses_of(
    *(acts, moves, scaling, charge, envelope_keys, schema, steps, submission, run, evaluation),
    *(following, requests, orders),
)
"""Every dataclass that crosses the wire, by name."""

_ENVELOPE = secureps_pb2.Envelope.DESCRIPTOR
_BODY: dict[str, str] = {
    field.message_type.name: field.name for field in _ENVELOPE.oneofs_by_name["body"].fields
}


class _Field(NamedTuple):
    name: str
    leaf: type
    many: bool
    optional: bool
    nested: bool
    check: Callable[[Any], bool]


def encode(message: Any) -> bytes:
    """The envelope of a message, without its payload.

    Raises:
        Malformed: it has no place on the wire, or a field is of another type or length
            than it says, or NaN or infinite.
        Oversized: more than MESSAGE_LIMIT bytes.
    """
    name = type(message).__name__
    if name not in _BODY or KINDS[name] is not type(message):
        raise Malformed(f"a {name} is not sent by itself")
    envelope = secureps_pb2.Envelope()
    body = getattr(envelope, _BODY[name])
    body.SetInParent()
    try:
        _write(message, body)
        data = envelope.SerializeToString(deterministic=True)
    except (TypeError, ValueError, AttributeError, EncodeError) as error:
        raise Malformed(f"{name} does not fit its wire form: {error}") from None
    if len(data) > MESSAGE_LIMIT:
        raise Oversized(f"{name} takes {len(data)} bytes; at most {MESSAGE_LIMIT} are allowed")
    return data


def decode(data: bytes) -> Any:
    """The message that `encode` made into `data`; a payload field comes back empty.

    Raises:
        Malformed: anything else than exactly the bytes of one message; digests and
            signatures of a wrong length; numbers that are NaN or infinite.
        Oversized: more than MESSAGE_LIMIT bytes.
    """
    if len(data) > MESSAGE_LIMIT:
        raise Oversized(f"a message of {len(data)} bytes; at most {MESSAGE_LIMIT} are allowed")
    envelope: Any = secureps_pb2.Envelope()
    try:
        envelope.ParseFromString(data)
    except (DecodeError, ValueError):
        raise Malformed("these bytes are no secureps message") from None
    field = envelope.WhichOneof("body")
    if field is None:
        raise Malformed("an envelope without a message of this version of secureps")
    body = getattr(envelope, field)
    message = _read(KINDS[body.DESCRIPTOR.name], body)
    envelope.DiscardUnknownFields()
    if envelope.SerializeToString(deterministic=True) != data:
        raise Malformed(
            f"{body.DESCRIPTOR.name}: unknown or repeated fields; is the sender's secureps newer?"
        )
    return message


@functools.cache
def _fields(kind: type) -> tuple[_Field, ...]:
    found = []
    for name, hint in field_types(kind).items():
        if name == PAYLOAD:
            continue
        origin, leaf = typing.get_origin(hint), hint
        many = origin is tuple
        optional = origin in (types.UnionType, typing.Union)
        if many or optional:
            leaf = next(k for k in typing.get_args(hint) if k is not type(None))
        nested = dataclasses.is_dataclass(leaf)
        found.append(_Field(name, leaf, many, optional, nested, _check(kind, name, leaf)))
    return tuple(found)


def _check(kind: type, name: str, leaf: type) -> Callable[[Any], bool]:
    if leaf is float:
        if kind.__name__ in INFINITE:
            return lambda value: not math.isnan(value)
        return math.isfinite
    if leaf is bytes and name in SIZES:
        size = SIZES[name]
        return lambda value: len(value) in (0, size)
    return lambda value: True


def _write(record: Any, target: Message) -> None:
    kind: type = type(record)
    for field in _fields(kind):
        value, good = getattr(record, field.name), True
        if field.many and field.nested:
            for item in value:
                _write(_of(item, field.leaf), getattr(target, field.name).add())
        elif field.many:
            good = all(map(field.check, value))
            getattr(target, field.name).extend(value)
        elif value is None and field.optional:
            continue
        elif field.nested:
            inner = getattr(target, field.name)
            inner.SetInParent()
            _write(_of(value, field.leaf), inner)
        else:
            good = field.check(value)
            setattr(target, field.name, value)
        if not good:
            raise ValueError(f"{field.name} has a wrong length, or is no finite number")


def _of(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _read(kind: type, source: Any) -> Any:
    values: dict[str, Any] = {}
    for field in _fields(kind):
        name, value, good = field.name, getattr(source, field.name), True
        if field.many and field.nested:
            value = tuple(_read(field.leaf, item) for item in value)
        elif field.many:
            value = tuple(value)
            good = all(map(field.check, value))
        elif field.optional and not source.HasField(name):
            value = None
        elif not field.nested:
            good = field.check(value)
        elif source.HasField(name):
            value = _read(field.leaf, value)
        else:
            raise Malformed(f"{kind.__name__} lacks its {name}")
        if not good:
            raise Malformed(f"{kind.__name__}.{name}: a wrong length, or no finite number")
        values[name] = value
    return kind(**values)
