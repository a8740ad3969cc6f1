"""The conventions of both ends of gRPC: methods, metadata, pieces of payload, errors.

    /secureps.Coordinator/Tell    unary: envelopes in, as many envelopes out
    /secureps.Coordinator/Watch   Subscribe in, a stream of orders out, one or several at a time
    /secureps.Shard/Tell          unary: any message without a payload
    /secureps.Shard/Put           a frame in (PutBlock), an envelope out
    /secureps.Shard/Get           GetBlock or GetSum in, a frame out (Payload)

A single envelope is sent as it is. Several are a bundle: a zero byte, with which no envelope
begins, and each envelope after its length (uint32, little endian). A Refusal answers each one that
is refused.

A frame is a stream of pieces of at most 1 MiB: envelope length (uint32), payload length
(uint64), both little endian, the envelope, and then the payload. A Put's first piece ends with
the envelope, so that a shard judges it before it takes any payload; a Get's first piece also has
the beginning of the payload. The payload is sent from its message's offset to its end.

A request's metadata names its sender, signed (`wire.grpc.authentication`).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import grpc

from secureps.buffers import Buffers
from secureps.errors import (
    Busy,
    Conflict,
    InternalError,
    Malformed,
    Oversized,
    PeerError,
    SecurepsError,
    Unreachable,
    from_wire,
)
from secureps.messages.orders import MESSAGE_LIMIT
from secureps.messages.requests import (
    AskRun,
    AskStatus,
    Follow,
    GetBlock,
    GetSum,
    Join,
    Missing,
    Payload,
    PutBlock,
    Refusal,
    Subscribe,
)
from secureps.wire.grpc.authentication import Claim, Metadata
from secureps.wire.grpc.pacing import LONGEST, Pace
from secureps.wire.msgpack import decode, encode
from secureps.wording import printable

COORDINATOR_SERVICE = "secureps.Coordinator"
SHARD_SERVICE = "secureps.Shard"
COORDINATOR_TELL = f"/{COORDINATOR_SERVICE}/Tell"
WATCH = f"/{COORDINATOR_SERVICE}/Watch"
SHARD_TELL = f"/{SHARD_SERVICE}/Tell"
PUT = f"/{SHARD_SERVICE}/Put"
GET = f"/{SHARD_SERVICE}/Get"

NOT_TOLD = (PutBlock, GetBlock, GetSum, Subscribe)
"""Requests that have a method of their own."""
ALONE = (Join, AskRun, AskStatus, Follow)
"""Requests that are in no bundle: their answers may be long."""
BESIDE = (Missing,)
"""Requests that a shard answers only after others have ended: these do not wait for them."""
BUNDLED, BUNDLE_LENGTH = 64, 128 << 10
"""The most envelopes of a bundle, and bytes that it has where another envelope joins it: a receipt
with a key's correction has 34 KB."""

HEADER_LIMIT = 64 << 10
"""Bytes of the envelope of a frame."""
PIECE = LONGEST + HEADER_LIMIT
"""Bytes of the longest piece of a frame: its envelope and a piece of payload."""
STREAM_BUFFER = 256 << 10
CONNECTION_BUFFER = 256 << 10
"""Bytes that a server's gRPC holds of an upload that waits for its turn, and of its connection."""
REQUEST_LIMIT = 1 << 20
"""Bytes of the envelope of any other request. Orders and answers go up to `MESSAGE_LIMIT`: what a
coordinator sends is many times what any one party sends to it."""
SENT_LIMIT = MESSAGE_LIMIT + BUNDLE_LENGTH + HEADER_LIMIT
"""Bytes of the longest gRPC message that a server sends; what it takes in is a PIECE at most."""
TEXT_LIMIT = 1000
"""Characters of an error's text that are sent."""
RETRY_LIMIT = 3600.0
"""Seconds: the longest time that a sender is asked to wait."""

_REFUSAL = "secureps-refusal-bin"
_ANOTHER_CA = "who is there is certified by another CA; check kit and address"
_TLS_FAILED = {
    "Hostname Verification": ("who is there is certified as another party; check it", False),
    "WRONG_VERSION_NUMBER": ("who is there speaks no TLS; check it, and insecure", False),
    "unable to get local issuer": (_ANOTHER_CA, False),
    "INVALID_SIGNATURE": (_ANOTHER_CA, False),  # of certificates that do not name their CA's key
    "CERTIFICATE_VERIFY_FAILED": ("its certificate is not good, or over: have it renewed", True),
    "andshake failed": ("TLS could not be agreed on", True),
}
"""Meanings of gRPC's texts, and whether the failure may pass by itself."""
_PREFIX = struct.Struct("<IQ")
_LENGTH = struct.Struct("<I")
_BUNDLE = b"\0"

CLIENT_OPTIONS = (
    ("grpc.max_receive_message_length", SENT_LIMIT),
    ("grpc.max_send_message_length", PIECE),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # in truth: how long connecting may take
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # the environment is read by run/cli alone
)
FOLLOWING_OPTIONS = tuple(
    {
        **dict(CLIENT_OPTIONS),
        "grpc.keepalive_time_ms": 2_500,
        "grpc.keepalive_timeout_ms": 2_500,
        "grpc.http2.ping_timeout_ms": 2_500,  # of keepalive's pings too; a minute if unsaid
        "grpc.min_reconnect_backoff_ms": 3_000,
    }.items()
)
"""Options for a server that may be elsewhere: a paused one is noticed in seconds."""
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", PIECE),
    ("grpc.max_send_message_length", SENT_LIMIT),
    ("grpc.http2.max_pings_without_data", 0),
    # Nobody here compresses, and 15 KB of gzip are 16 MB: refused with UNIMPLEMENTED, unread.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Connections that say nothing, or have nothing under way, give their place back.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
    # No connection takes new calls for longer, whoever's it is: a revoked party's are refused, and
    # keep it open no more. Calls that are under way go on to their end.
    ("grpc.max_connection_age_ms", 600_000),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    # What gRPC holds of uploads that wait for their turn: fixed per stream and per connection.
    # Left alone both grow to megabytes, with the clients. The price is an upload's speed on
    # long ways: 14 MB/s a stream instead of 38 at a round trip of 40 ms.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", STREAM_BUFFER),
    ("grpc.experimental.tcp_max_read_chunk_size", CONNECTION_BUFFER),
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a coin toss
)


# --- bundles ----------------------------------------------------------------------


def joins(envelopes: Sequence[bytes]) -> bool:
    """Whether another envelope may join these in one call."""
    return len(envelopes) < BUNDLED and sum(map(len, envelopes)) < BUNDLE_LENGTH


def bundle(envelopes: Sequence[bytes]) -> bytes:
    """Joins one or several envelopes into one message."""
    if len(envelopes) == 1:
        return envelopes[0]
    return _BUNDLE + b"".join(_LENGTH.pack(len(each)) + each for each in envelopes)


def unbundled(data: bytes) -> list[bytes]:
    """The envelopes of a message; Malformed if `bundle` makes no such bytes."""
    if not data.startswith(_BUNDLE):
        return [data]
    found: list[bytes] = []
    at = len(_BUNDLE)
    while at < len(data) and len(found) < BUNDLED:
        length = int.from_bytes(data[at : at + _LENGTH.size], "little")
        at += _LENGTH.size + length
        found.append(data[at - length : at])
    if at != len(data) or len(found) < 2:
        raise Malformed(f"these {len(data)} bytes are no bundle of 2 to {BUNDLED} messages")
    return found


# --- frames -----------------------------------------------------------------------


def head(envelope: bytes, length: int) -> bytes:
    """The beginning of a frame whose payload has this length."""
    return _PREFIX.pack(len(envelope), length) + envelope


def pieces(payload: memoryview, pace: Pace, head: bytes = b"") -> Iterator[bytes]:
    """Cuts a payload into pieces at the `pace` of those before it, the first behind the `head`."""
    rest = pace.cut(payload)
    if head:
        yield b"".join((head, next(rest, b"")))
    for piece in rest:
        yield bytes(piece)


def part(reply: Payload, request: GetBlock | GetSum) -> memoryview:
    """The part of a payload that a request asks for; Malformed if it begins beyond the end."""
    if not 0 <= request.offset <= len(reply.payload):
        raise Malformed(f"byte {request.offset} of {len(reply.payload)} is asked for")
    return memoryview(reply.payload)[request.offset :]


def open_frame(first: bytes) -> tuple[bytes, int, memoryview]:
    """Splits a frame's first piece: (envelope, payload's length, begin of the payload).

    Raises Malformed or Oversized.
    """
    if len(first) < _PREFIX.size:
        raise Malformed("a frame without its head")
    size, length = _PREFIX.unpack_from(first)
    if size > HEADER_LIMIT:  # before any of it is decoded
        raise Oversized(f"the envelope of a frame has {size} bytes, more than {HEADER_LIMIT}")
    end = _PREFIX.size + size
    if end > len(first):
        raise Malformed("a frame whose envelope is cut off")
    return first[_PREFIX.size : end], length, memoryview(first)[end:]


def announced(claim: Claim, first: bytes) -> tuple[PutBlock, int]:
    """Reads the first piece of a Put: the signed PutBlock, and the length of the rest."""
    envelope, length, begin = open_frame(first)
    message = decode(claim.envelope(envelope))
    if not isinstance(message, PutBlock):
        raise Malformed(f"Put takes PutBlock, not {type(message).__name__}")
    if begin:
        raise Malformed("the first piece of a Put ends with its envelope")
    return message, length


class Collected:
    """The received part of a payload; it may come over several connections."""

    def __init__(self) -> None:
        self.digest, self.have = b"", 0
        self._room = memoryview(b"")

    def begin(self, digest: bytes, length: int, buffers: Buffers) -> None:
        """Names the payload that comes; drops a part of another one."""
        if self.digest != digest or length != len(self._room):
            self.digest, self.have = digest, 0
            self._room = buffers.lend(max(1, length))[:length]

    def add(self, piece: bytes | memoryview) -> None:
        """Adds the next bytes; Malformed if there are none, Oversized if they are too many."""
        if not piece:
            raise Malformed("an empty piece of payload")
        end, length = self.have + len(piece), len(self._room)
        if end > length:
            raise Oversized(f"more than the announced {length} bytes of payload")
        self._room[self.have : end] = piece
        self.have = end

    def whole(self) -> memoryview:
        """The payload; Malformed if bytes are missing."""
        if self.have < len(self._room):
            missing = f"instead of the announced {len(self._room)}"
            raise Malformed(f"{self.have} bytes of payload {missing}")
        return self._room.toreadonly()


# --- errors -----------------------------------------------------------------------


def refuse(error: SecurepsError) -> tuple[grpc.StatusCode, str, Metadata]:
    """Makes (status, details, trailing metadata) of an error, for `error_of`."""
    status = grpc.StatusCode[type(error).status]
    return status, type(error).__name__, ((_REFUSAL, refusal(error)),)


def _text(error: SecurepsError) -> str:
    # An error may quote what a peer sent: no line of it ends another's log, or moves a cursor.
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]+", " ", str(error)[:TEXT_LIMIT])


def refusal(error: SecurepsError) -> bytes:
    """Encodes an error as a Refusal."""
    retry_after = error.retry_after if isinstance(error, PeerError) else None
    if retry_after is not None and not math.isfinite(retry_after):
        retry_after = None
    try:
        free = error.free if isinstance(error, Conflict) else 0
        return encode(Refusal(type(error).__name__, _text(error), retry_after, free))
    except SecurepsError:
        return encode(Refusal(InternalError.__name__, "an error that cannot be told", None))


def is_answered(call: Any) -> bool:
    """Whether the server itself ended a call, with an answer or a Refusal."""
    refused = any(key == _REFUSAL for key, _ in call.trailing_metadata() or ())
    return refused or call.code() is grpc.StatusCode.OK


def error_of(call: Any, to: str, met: bool = False) -> SecurepsError:
    """Makes a SecurepsError of a failed call; `to` names the server in words.

    A server that has been `met` is waited for, because an impostor in its place goes away again.
    """
    for key, value in call.trailing_metadata() or ():
        if key == _REFUSAL and isinstance(value, bytes):
            return _told_by(value, to)
    code = call.code()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if "larger than max" in (call.details() or ""):  # gRPC's own limit, not ours
            return Oversized(f"{to} takes no message of this length")
        return Busy(f"{to} has too much to do")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unreachable(f"{to} did not answer in time")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unreachable(f"{to} is another kind of server; check the address", None)
    told = call.details() or ""
    for words, (why, passes) in _TLS_FAILED.items():
        if words in told:
            text = f"no connection to {to}: {why}"
            return Unreachable(text) if passes or met else Unreachable(text, None)
    return Unreachable(f"no connection to {to} ({'' if code is None else code.name}; is it up?)")


def replies(data: bytes, count: int, to: str) -> list[Any]:
    """Decodes the answers to so many envelopes: messages, and SecurepsErrors; else Malformed."""
    found = unbundled(data)
    if len(found) != count:
        raise Malformed(f"{to} gave {len(found)} answers to {count} messages")
    answers = [decode(each) for each in found]
    return [error_in(each) if isinstance(each, Refusal) else each for each in answers]


def _told_by(data: bytes, to: str) -> SecurepsError:
    try:
        told = decode(data)
    except SecurepsError:
        told = None
    if not isinstance(told, Refusal):
        return InternalError(
            f"{to} answered with an error that cannot be read: all parties of a run need one "
            "version of secureps"
        )
    return error_in(told)


def error_in(refusal: Refusal) -> SecurepsError:
    """Makes the error that a Refusal names."""
    wait = refusal.retry_after
    if wait is not None:  # whoever answers for the server has nobody wait for ever
        wait = min(max(wait, 0.0), RETRY_LIMIT)
    error = from_wire(refusal.error, printable(refusal.text[:TEXT_LIMIT]), wait)
    if isinstance(error, Conflict):
        error.free = refusal.free
    return error
