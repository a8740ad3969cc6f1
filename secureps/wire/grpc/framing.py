"""The wire format of gRPC at both ends: methods, claims, frames, errors, and TLS.

    /secureps.Coordinator/Tell    unary: envelopes in, as many envelopes out
    /secureps.Coordinator/Watch   Subscribe in, a stream of orders out, in bundles
    /secureps.Shard/Tell          unary: any message without a payload
    /secureps.Shard/Put           a frame in (PutBlock), an envelope out
    /secureps.Shard/Get           GetBlock or GetSum in, a frame out (Payload)

A single envelope is sent as it is. Several are a bundle: a zero byte, with which no envelope
begins, and each envelope after its length (uint32, little endian). Each refused one is answered by
a Refusal.

A frame is a stream of pieces of at most 1 MiB: envelope length (uint32), payload length (uint64),
both little endian, the envelope, and the payload from the message's offset to its end. A Put's
first piece ends with the envelope, so that a shard judges the envelope before it takes any payload;
a Get's first piece also has the beginning of the payload.

A request's metadata is a signed claim, which names the sender, the server and the run. The
signature covers these, the method, and the digest of the envelope. So a recorded request is useless
at another server or in another run. TLS 1.3 hides requests from recording, and rejects replayed
records (RFC 8446, E.2; 0-RTT is not used). Without TLS, on loopback, a process that may listen can
replay a request: it counts as the aggregator (docs/threat-model.md).

A payload may take any time while it moves. A call that ends early continues in the next one.

Connections use mutual TLS 1.3, or plaintext on one machine. Under TLS both ends show a certificate
of the kit's CA. The caller checks the server's certified name, and the server compares the name in
the caller's certificate with the signer of the request.
"""

from __future__ import annotations

import math
import os
import re
import struct
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import grpc

from secureps.buffers import Buffers
from secureps.crypto.identity import Credentials, check_name, tls_name
from secureps.errors import (
    Busy,
    ConfigError,
    Conflict,
    InternalError,
    Malformed,
    Oversized,
    PeerError,
    SecurepsError,
    Unreachable,
    Unsigned,
    from_wire,
)
from secureps.messages.encoding import DIGEST_BYTES, payload_digest
from secureps.messages.format import FORMAT
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
from secureps.messages.run import is_address, is_on_loopback
from secureps.wire.msgpack import decode, encode
from secureps.wording import printable

# --- claims ------------------------------------------------------------------------

REQUEST_DOMAIN = b"secureps-request"

_PARTY = "secureps-party"
_TO = "secureps-to"
_FORMAT = "secureps-format"
_RUN = "secureps-run-bin"
_DIGEST = "secureps-digest-bin"
_SIGNATURE = "secureps-signature-bin"
_FORMAT_NUMBER = re.compile(r"[1-9][0-9]{0,5}")

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The sender's statement about a request.

    Args:
        run: id of the party's run; empty before the party knows it.
        digest: of the envelope.
        format: the party's FORMAT. It is not signed, because a forged one only gets a refusal.
    """

    party: str
    to: str
    run: bytes
    digest: bytes
    signature: bytes = b""
    format: int = FORMAT

    def signed(self, method: str) -> bytes:
        """Returns the bytes to sign: each part after its length, so that parts cannot be shifted.

        They include gRPC's `method`, so that a claim is valid for one method only.
        """
        names = (method.encode(), self.party.encode(), self.to.encode())
        parts = (*names, self.run, self.digest)
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)

    def envelope(self, data: bytes) -> bytes:
        """Returns the envelope `data`; Unsigned if its digest is not the one that was signed."""
        if payload_digest(data) != self.digest:
            raise Unsigned(f"these are not the bytes that {self.party} signed")
        return data


def sign_request(
    party: str, to: str, sign: Callable[[bytes], bytes], method: str, run: bytes, envelope: bytes
) -> Metadata:
    """Makes the metadata of a request; `sign` signs bytes under REQUEST_DOMAIN (Ed25519)."""
    claim = Claim(party, to, run, payload_digest(envelope))
    return (
        (_PARTY, party),
        (_TO, to),
        (_FORMAT, str(FORMAT)),
        (_RUN, run),
        (_DIGEST, claim.digest),
        (_SIGNATURE, sign(claim.signed(method))),
    )


def read_claim(metadata: Iterable[Any] | None) -> Claim:
    """Reads the claim in a request's metadata; Unsigned if there is none, or Malformed."""
    found: dict[str, Any] = dict(metadata or ())
    party, to = found.get(_PARTY), found.get(_TO)
    binary: list[Any] = [found.get(key) for key in (_RUN, _DIGEST, _SIGNATURE)]
    if not (
        isinstance(party, str)
        and isinstance(to, str)
        and all(isinstance(part, bytes) for part in binary)
    ):
        raise Unsigned("a request without a party's name and signature")
    run, digest, signature = binary
    if len(digest) != DIGEST_BYTES:
        raise Malformed(f"a request's digest has {len(digest)} bytes, not {DIGEST_BYTES}")
    if len(run) not in (0, DIGEST_BYTES):
        raise Malformed(f"the id of a request's run has {len(run)} bytes, not {DIGEST_BYTES}")
    format = found.get(_FORMAT)
    if not isinstance(format, str) or _FORMAT_NUMBER.fullmatch(format) is None:
        raise Malformed(f"{format!r:.80} is no number of a format")
    check_name(party)
    check_name(to)
    return Claim(party, to, run, digest, signature, int(format))


# --- payloads ----------------------------------------------------------------------

SHORTEST, LONGEST = 32 << 10, 256 << 10
"""Bytes of a payload's first piece, which arrives on any link, and of its longest one."""
PAYLOADS_AT_ONCE = 8
"""The payloads that a party sends and receives at once."""

COORDINATOR_SERVICE = "secureps.Coordinator"
SHARD_SERVICE = "secureps.Shard"
COORDINATOR_TELL = f"/{COORDINATOR_SERVICE}/Tell"
WATCH = f"/{COORDINATOR_SERVICE}/Watch"
SHARD_TELL = f"/{SHARD_SERVICE}/Tell"
PUT = f"/{SHARD_SERVICE}/Put"
GET = f"/{SHARD_SERVICE}/Get"

OWN_METHOD = (PutBlock, GetBlock, GetSum, Subscribe)
"""Requests with their own gRPC method."""
ALONE = (Join, AskRun, AskStatus, Follow)
"""Requests that are never bundled, because their answers may be long."""
BESIDE = (Missing,)
"""Requests that a shard answers only after others have ended, so that no other waits for them."""
BUNDLED, BUNDLE_LENGTH = 64, 128 << 10
"""The most envelopes of a bundle, and the bytes from which no more envelope joins a bundle. A
receipt with a key's correction has 34 KB."""

HEADER_LIMIT = 64 << 10
"""The most bytes of a frame's envelope."""
PIECE = (1 << 20) + HEADER_LIMIT
"""The most bytes of a frame's piece that is taken: the envelope and a piece of payload."""
STREAM_BUFFER = 256 << 10
CONNECTION_BUFFER = 256 << 10
"""Bytes that a server's gRPC buffers of a waiting upload, and of its connection."""
REQUEST_LIMIT = 1 << 20
"""The most bytes of any other request. Orders and answers have at most `MESSAGE_LIMIT`, because a
coordinator's messages may tell of all parties."""
SENT_LIMIT = MESSAGE_LIMIT + BUNDLE_LENGTH + HEADER_LIMIT
"""The most bytes of a gRPC message from a server; messages to a server have at most PIECE."""
TEXT_LIMIT = 1000
"""The most characters of an error's text that are sent."""
RETRY_LIMIT = 3600.0
"""The most seconds that a sender can be asked to wait."""

_REFUSAL = "secureps-refusal-bin"
_ANOTHER_CA = (
    "who is there is certified by another CA; check kit and address. A proxy or balancer that "
    "opens TLS has to let this address pass, or you train inside Flower's engine (docs/flower.md)"
)
_PASSWORD = "the proxy wants name and password (407): https_proxy=http://NAME:PASSWORD@HOST:PORT"
_FAILED = {
    "response code 407": (_PASSWORD, None),  # a password that is tried again may lock an account
    "response code 5": ("the proxy cannot reach it: is it up, and open to the proxy?", True),
    "response code": ("the proxy refuses: its operator must allow CONNECT to this address", False),
    "Expected 'H'": ("there is no HTTP proxy; check https_proxy", None),
    "Hostname Verification": ("who is there is certified as another party; check it", False),
    "WRONG_VERSION_NUMBER": ("who is there speaks no TLS; check it, and insecure", False),
    "unable to get local issuer": (_ANOTHER_CA, False),
    "self signed certificate": (_ANOTHER_CA, False),  # it came with its own CA's
    "INVALID_SIGNATURE": (_ANOTHER_CA, False),  # the certificate does not name its CA's key
    "CERTIFICATE_VERIFY_FAILED": ("its certificate is not good, or over: have it renewed", True),
    "andshake failed": ("TLS could not be agreed on", True),
}
"""Meanings of gRPC's texts, and whether the failure may pass; None: it is this side's fault."""
_PROXY = re.compile(r"(?ai)(?:http://)?(?:([^/]*)@)?((?:\[[\da-f:.]+]|[\w.-]+):\d{1,5})/?")
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
    ("grpc.min_reconnect_backoff_ms", 10_000),  # this is in fact the timeout of connecting
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
)
FOLLOWING_OPTIONS = tuple(
    {
        **dict(CLIENT_OPTIONS),
        "grpc.keepalive_time_ms": 2_500,
        "grpc.keepalive_timeout_ms": 2_500,
        "grpc.http2.ping_timeout_ms": 2_500,  # also of keepalive pings; by default a minute
        "grpc.min_reconnect_backoff_ms": 3_000,
    }.items()
)
"""Options for a server with several addresses, which notice a paused server in seconds."""
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", PIECE),
    ("grpc.max_send_message_length", SENT_LIMIT),
    ("grpc.http2.max_pings_without_data", 0),
    # Compressed messages are refused unread: 15 KB of gzip may unpack to 16 MB.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # The server closes a connection that never finishes its handshake or carries no calls.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
    # An old connection takes no new calls, so that a revoked party, whose calls are refused, cannot
    # keep it open. Open calls go on to their end.
    ("grpc.max_connection_age_ms", 600_000),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    # Fixed buffers for waiting uploads, per stream and per connection; by default they grow to
    # megabytes for each client. The price is speed on long routes: 14 MB/s a stream instead of 38
    # at a round trip of 40 ms.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", STREAM_BUFFER),
    ("grpc.experimental.tcp_max_read_chunk_size", CONNECTION_BUFFER),
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a coin toss
)


# --- bundles ----------------------------------------------------------------------


def has_room(envelopes: Sequence[bytes]) -> bool:
    return len(envelopes) < BUNDLED and sum(map(len, envelopes)) < BUNDLE_LENGTH


def bundle(envelopes: Sequence[bytes]) -> bytes:
    if len(envelopes) == 1:
        return envelopes[0]
    return _BUNDLE + b"".join(_LENGTH.pack(len(each)) + each for each in envelopes)


def unbundle(data: bytes) -> list[bytes]:
    """Splits a bundle into envelopes; Malformed if the bytes are not from `bundle`."""
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


def frame_head(envelope: bytes, length: int) -> bytes:
    return _PREFIX.pack(len(envelope), length) + envelope


def pieces(payload: memoryview, head: bytes = b"") -> Iterator[bytes]:
    """Cuts a payload into pieces, each four times as long as the one before, up to LONGEST.

    So a payload moves on through a link that breaks after few bytes. The first piece follows the
    `head`.
    """
    start, length = 0, SHORTEST
    while head or start < len(payload):
        yield b"".join((head, payload[start : start + length]))
        head, start, length = b"", start + length, min(LONGEST, 4 * length)


def cut_payload(reply: Payload, request: GetBlock | GetSum) -> memoryview:
    """Returns a payload from the requested offset on; Malformed if that is beyond the end."""
    if not 0 <= request.offset <= len(reply.payload):
        raise Malformed(f"byte {request.offset} of {len(reply.payload)} is asked for")
    return memoryview(reply.payload)[request.offset :]


def open_frame(first: bytes) -> tuple[bytes, int, memoryview]:
    """Splits a frame's first piece: (envelope, payload's length, beginning of the payload).

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


def read_put(claim: Claim, first: bytes) -> tuple[PutBlock, int]:
    """Reads the first piece of a Put: the signed PutBlock, and the length of the rest."""
    envelope, length, begin = open_frame(first)
    message = decode(claim.envelope(envelope))
    if not isinstance(message, PutBlock):
        raise Malformed(f"Put takes PutBlock, not {type(message).__name__}")
    if begin:
        raise Malformed("the first piece of a Put ends with its envelope")
    return message, length


class PartialPayload:
    """The received part of a payload, which may come over several connections."""

    def __init__(self) -> None:
        self.digest, self.have = b"", 0
        self._room = memoryview(b"")

    def begin(self, digest: bytes, length: int, buffers: Buffers) -> None:
        """Prepares for a payload; drops the part of another payload."""
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
        """Returns the payload; Malformed if bytes are missing."""
        if self.have < len(self._room):
            missing = f"instead of the announced {len(self._room)}"
            raise Malformed(f"{self.have} bytes of payload {missing}")
        return self._room.toreadonly()


# --- errors -----------------------------------------------------------------------


def encode_error(error: SecurepsError) -> tuple[grpc.StatusCode, str, Metadata]:
    """Encodes an error as (status, details, trailing metadata), for `read_error`."""
    status = grpc.StatusCode[type(error).status]
    return status, type(error).__name__, ((_REFUSAL, encode_refusal(error)),)


def encode_refusal(error: SecurepsError) -> bytes:
    retry_after = error.retry_after if isinstance(error, PeerError) else None
    if retry_after is not None and not math.isfinite(retry_after):
        retry_after = None
    # An error may quote a peer's bytes, which could forge log lines or move a terminal's cursor.
    text = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]+", " ", str(error)[:TEXT_LIMIT])
    try:
        free = error.free if isinstance(error, Conflict) else 0
        return encode(Refusal(type(error).__name__, text, retry_after, free))
    except SecurepsError:
        return encode(Refusal(InternalError.__name__, "an error that cannot be told", None))


def is_answered(call: Any) -> bool:
    refused = any(key == _REFUSAL for key, _ in call.trailing_metadata() or ())
    return refused or call.code() is grpc.StatusCode.OK


def read_error(call: Any, to: str, met: bool = False) -> SecurepsError:
    """Makes a SecurepsError of a failed call; `to` describes the server.

    After a TLS failure the caller tries again if it has `met` the server before, because an
    impostor in the server's place may go away.
    """
    for key, value in call.trailing_metadata() or ():
        if key == _REFUSAL and isinstance(value, bytes):
            return _read_refusal(value, to)
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
    for words, (why, passes) in _FAILED.items():
        if words in told:
            text = f"no connection to {to}: {why}"
            if passes is None and not met:
                return ConfigError(text)
            return Unreachable(text) if passes or met else Unreachable(text, None)
    return Unreachable(f"no connection to {to} ({'' if code is None else code.name}; is it up?)")


def read_replies(data: bytes, count: int, to: str) -> list[Any]:
    """Decodes the answers to so many envelopes: messages, and SecurepsErrors; else Malformed."""
    found = unbundle(data)
    if len(found) != count:
        raise Malformed(f"{to} gave {len(found)} answers to {count} messages")
    answers = [decode(each) for each in found]
    return [decode_refusal(each) if isinstance(each, Refusal) else each for each in answers]


def _read_refusal(data: bytes, to: str) -> SecurepsError:
    try:
        told = decode(data)
    except SecurepsError:
        told = None
    if not isinstance(told, Refusal):
        return InternalError(
            f"{to} answered with an error that cannot be read: all parties of a run need one "
            "version of secureps"
        )
    return decode_refusal(told)


def decode_refusal(refusal: Refusal) -> SecurepsError:
    wait = refusal.retry_after
    if wait is not None:  # a malicious server must not make this party wait for ever
        wait = min(max(wait, 0.0), RETRY_LIMIT)
    error = from_wire(refusal.error, printable(refusal.text[:TEXT_LIMIT]), wait)
    if isinstance(error, Conflict):
        error.free = refusal.free
    return error


# --- links -------------------------------------------------------------------------


Option = tuple[str, Any]
DIRECT: Option = ("grpc.enable_http_proxy", 0)


class Plaintext:
    """Connections without TLS; all methods raise ConfigError for an address not on loopback.

    The methods do what those of `Tls` do.
    """

    def identity(self) -> object:
        return None

    def channel(self, to: str, address: str, options: Sequence[Option]) -> grpc.Channel:
        _demand_loopback(address)
        return grpc.insecure_channel(address, options)

    def bind(self, server: Any, listen: str) -> int:
        _demand_loopback(listen)
        port: int = server.add_insecure_port(listen)
        return port

    def check(self, party: str, context: Any) -> None:
        """Accepts every caller: without TLS the connection says nothing about its other end."""


PLAINTEXT = Plaintext()


class Tls:
    """Mutual TLS 1.3; `credentials` returns the same object while nothing changes."""

    def __init__(self, credentials: Callable[[], Credentials]) -> None:
        self._credentials = credentials

    def identity(self) -> object:
        """Returns the credentials of new connections: another object after a change."""
        return self._credentials()

    def channel(self, to: str, address: str, options: Sequence[Option]) -> grpc.Channel:
        """Makes a channel to HOST:PORT that connects by itself; `to` must show its certificate."""
        own = self._credentials()
        shown = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        name = ("grpc.ssl_target_name_override", tls_name(to))
        return grpc.secure_channel(address, shown, (*options, name))

    def bind(self, server: Any, listen: str) -> int:
        """Listens; returns its port, or 0. New connections use the newest credentials."""
        used = self._credentials()

        def fetch() -> Any:
            nonlocal used
            now = self._credentials()
            if now is used:
                return None
            used = now
            return _configuration(now)

        shown = grpc.dynamic_ssl_server_credentials(_configuration(used), fetch, True)
        port: int = server.add_secure_port(listen, shown)
        return port

    def check(self, party: str, context: Any) -> None:
        """Raises Unsigned unless the caller's connection is this party's."""
        known = context.auth_context()
        version = _read_single(known, "ssl_tls_version")
        if version != "TLSv1.3":
            raise Unsigned(f"this connection speaks {version or 'no TLS'}, and not TLS 1.3")
        name = _read_single(known, "x509_common_name")
        if name != party:
            raise Unsigned(f"the connection is {name[:80]}'s, and the request {party}'s")


Link = Plaintext | Tls
"""The connections of one party, at both ends."""


def _configuration(own: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration([(own.key, own.certificate)], own.authority)


def _read_single(known: Any, key: str) -> str:
    found = list(known.get(key, ()))
    return found[0].decode(errors="replace") if len(found) == 1 else ""


def find_way(address: str) -> tuple[str, Option]:
    """Finds the HOST:PORT of the proxy that the environment names for an address; "": none.

    Also returns gRPC's option for it, which may hold a password. gRPC may not read the environment
    itself: it sends loopback through a proxy, and silently passes by one that it cannot use.
    """
    known = urllib.request.getproxies_environment()
    url = known.get("grpc") or known.get("https") or known.get("http") or ""
    excepted = known.get("no_grpc") or known.get("no", "")
    if not url or is_on_loopback(address) or _is_listed(address, excepted):
        return "", DIRECT
    found = _PROXY.fullmatch(url.strip())
    if found is None or not is_address(found[2]):
        # its text is not shown, because it may hold a password
        right = "http://HOST:PORT, or http://NAME:PASSWORD@HOST:PORT with / and @ as %2F and %40"
        raise ConfigError(f"https_proxy names no HTTP proxy: write {right}")
    given = unquote_to_bytes(os.fsencode(found[1] or ""))  # a password may have bytes of Latin-1
    user = f"{quote(given, safe=':')}@" if given else ""
    return found[2], ("grpc.http_proxy", f"http://{user}{found[2]}")


def _is_listed(address: str, excepted: str) -> bool:
    """Tells whether no_proxy has an address: its host, a domain above it, or a network of it."""
    own = address.lower()
    named = own.rpartition(":")[0]
    host = named.strip("[]")
    for each in excepted.lower().replace(",", " ").split():
        name = each.removeprefix("*").removeprefix(".")
        if each == "*" or name in (own, named) or (name and f".{host}".endswith(f".{name}")):
            return True
        with suppress(ValueError):
            if ip_address(host) in ip_network(name, strict=False):
                return True
    return False


def _demand_loopback(address: str) -> None:
    if not is_on_loopback(address):
        raise ConfigError(
            f"without TLS nothing goes beyond this machine, and {address} is not on loopback: "
            "leave insecure out"
        )
