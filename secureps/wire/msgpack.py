"""Messages as MessagePack and back; https://github.com/msgpack/msgpack/blob/master/spec.md

A message is an array of two: the name of its class, and a map of all its fields in their order. A
message within a message is such a map; tuples are arrays. A payload travels beside its message
(`wire.grpc.framing`), and the map has empty bytes in its place. Each message has one form; other
bytes for the same message are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from typing import Any

import msgspec

from secureps.crypto.identity import SIGNATURE_BYTES
from secureps.errors import Malformed, Oversized
from secureps.messages.encoding import DIGEST_BYTES
from secureps.messages.orders import MESSAGE_LIMIT, AnyOrder
from secureps.messages.requests import Refusal, Reply, Request

PAYLOAD = "payload"
"""The one field that never travels inside its message."""

_DIGESTS = (
    *("run", "digest", "base", "state", "layout", "holders", "roster", "committee"),
    *("blocks", "root", "commitments", "model", "sums", "opened", "chain"),
)
SIZES = dict.fromkeys(_DIGESTS, DIGEST_BYTES) | {
    "nonce": 32,
    "signature": SIGNATURE_BYTES,
    PAYLOAD: 0,
}
"""The length of bytes fields with these names; they may also be empty."""

INFINITE = frozenset({"MemberStatus", "Figure"})
"""Messages whose figures may be infinite, as an epsilon without protection."""

SENT: dict[str, type] = {
    kind.__name__: kind for kind in typing.get_args(Request | Reply | AnyOrder | Refusal)
}


def encode(message: Any) -> bytes:
    """Encodes a message without its payload.

    Raises:
        Malformed: it is not a message of its own, or a field has a wrong type or length, exceeds 64
            bits, or is NaN or infinite.
        Oversized: it has more than MESSAGE_LIMIT bytes.
    """
    kind: type = type(message)
    name = kind.__name__
    if SENT.get(name) is not kind:
        raise Malformed(f"a {name} is not sent by itself")
    if getattr(message, PAYLOAD, b""):
        message = dataclasses.replace(message, **{PAYLOAD: b""})
    try:
        given = _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed(f"{name} has no place in MessagePack: {error}") from None
    data = _encode(_decode(kind, given))  # decoding turns an int in a float field into a float
    if len(data) > MESSAGE_LIMIT:
        raise Oversized(f"{name} takes {len(data)} bytes; at most {MESSAGE_LIMIT} are allowed")
    return data


def decode(data: bytes) -> Any:
    """Decodes a message; its payload field is empty.

    Raises:
        Malformed: these are not exactly the bytes that `encode` makes of a message.
        Oversized: there are more than MESSAGE_LIMIT bytes.
    """
    if len(data) > MESSAGE_LIMIT:
        raise Oversized(f"a message of {len(data)} bytes; at most {MESSAGE_LIMIT} are allowed")
    try:
        name, body = _ENVELOPE.decode(data)
    except _UNREADABLE:
        raise Malformed("these bytes are no secureps message") from None
    if name not in SENT:
        raise Malformed(f"{name!r:.80} is no message of this version of secureps")
    message = _decode(SENT[name], body)
    if _encode(message) != data:
        raise Malformed(
            f"{name}: unknown, repeated or missing fields, or another spelling of a value; is the "
            "sender's secureps newer?"
        )
    return message


_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


def _convert(value: Any) -> Any:
    """Converts subclasses of str and float (NumPy's float64) for msgspec; refuses others."""
    for kind in (str, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a {type(value).__name__}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_convert)
_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_decoder = functools.cache(msgspec.msgpack.Decoder)


def _encode(message: Any) -> bytes:
    return _ENCODER.encode((type(message).__name__, message))


def _decode(kind: type, body: bytes | msgspec.Raw) -> Any:
    try:
        message = _decoder(kind).decode(body)
    except _UNREADABLE as error:
        what, _, where = str(error).partition(" - at `$")
        raise Malformed(f"{kind.__name__}{where.rstrip('`')}: {what}") from None
    _check_fields(message)
    return message


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _check_fields(message: Any) -> None:
    kind: type = type(message)
    for name in _names(kind):
        value, size = getattr(message, name), SIZES.get(name)
        for item in value if type(value) is tuple else (value,):
            of = type(item)
            if of is str:
                break  # so are all others of a tuple
            if of is bytes:
                good = size is None or not item or len(item) == size
            elif of is int:
                good = -(2**63) <= item < 2**63
            elif of is float:
                good = math.isfinite(item) or (kind.__name__ in INFINITE and item == item)
            elif item is None or of is bool:
                continue
            else:
                _check_fields(item)
                continue
            if not good:
                raise Malformed(
                    f"{kind.__name__}.{name}: a wrong length, or no finite number of 64 bits"
                )
