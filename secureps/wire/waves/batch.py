"""A batch: the content of one message of a wave, as bytes that its sender has signed.

    head      MAGIC, format (uint16), sender, to, run, each behind its length (uint8), challenge
    entries   kind (uint8), lengths of name (uint8), envelope (uint32) and payload (uint64), and
              then these three
    signature 64 bytes, of the sender, over the digest of all before it

Numbers are little endian. An envelope is that of `wire.msgpack`. A server's batch has a fresh
challenge, which the party's answer repeats: a recorded batch is useless in another wave.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from secureps.crypto.identity import check_name
from secureps.errors import ConfigError, Malformed, Oversized
from secureps.messages.encoding import DIGEST_BYTES, digest, payload_digest, payload_hasher
from secureps.messages.format import FORMAT, other_peer
from secureps.messages.orders import MESSAGE_LIMIT
from secureps.wire.msgpack import SIGNATURE_BYTES

WAVE_DOMAIN = b"secureps-wave"
CHALLENGE_BYTES = 32
MOST_BYTES = 1 << 31
"""Bytes of a server's batch that a party takes; a server's own limit follows from the plan."""

_MAGIC = WAVE_DOMAIN
_FORMAT = struct.Struct("<H")
_ENTRY = struct.Struct("<BBIQ")

Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], None]
"""(sender, signed bytes, signature): raises Unsigned or UnknownParty."""


class Kind(enum.IntEnum):
    """The kind of an entry; the first five come from a party, the others from its server."""

    CALL = 1
    """A request whose answer is wanted."""
    TELL = 2
    """A request of which only an error is to be said that trying again does not mend."""
    FIRST = 3
    """What the party's next process will ask first: it is answered with the next wave."""
    WATCH = 4
    """The stream of orders that is to be open from now on."""
    UNWATCH = 5
    """The stream is closed."""
    ANSWER = 6
    """The answer to a request, or a Refusal (`name`: `about` of the request)."""
    STREAM = 7
    """The orders that follow are those of this stream (`name`: `about` of its Subscribe)."""
    ORDER = 8
    """One order of the stream."""
    LOST = 9
    """The stream has ended: a Refusal says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a batch.

    Args:
        name: whom a request is for; or, 32 bytes, what an entry of the server's is about.
        envelope: the message without its payload; empty where there is none.
    """

    kind: Kind
    name: bytes = b""
    envelope: bytes = b""
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Batch:
    """All entries of a message.

    Args:
        sender, to: names of parties; `to` is empty where the server does not know yet who it is.
        run: id of the sender's run; empty before it knows.
        challenge: of the wave, CHALLENGE_BYTES.
    """

    sender: str
    to: str
    run: bytes
    challenge: bytes
    entries: tuple[Entry, ...]


def about(to: str, envelope: bytes) -> bytes:
    """Names a request to a server, so that any process of the party finds its answer."""
    return digest("secureps-wave-request", to.encode(), envelope)


def sealed(batch: Batch, sign: Sign) -> bytes:
    """Encodes a batch; `sign` signs with the sender's key, under WAVE_DOMAIN."""
    pieces, hasher = tuple(_pieces(batch)), payload_hasher()
    for piece in pieces:
        hasher.update(piece)
    return b"".join((*pieces, sign(hasher.digest())))  # one copy of all payloads


def _pieces(batch: Batch) -> Iterator[bytes | memoryview]:
    yield _MAGIC + _FORMAT.pack(FORMAT)
    for part in (batch.sender.encode(), batch.to.encode(), batch.run):
        yield bytes([len(part)]) + part
    yield batch.challenge
    for entry in batch.entries:
        lengths = (len(entry.name), len(entry.envelope), len(entry.payload))
        yield _ENTRY.pack(entry.kind, *lengths)
        yield from (entry.name, entry.envelope, entry.payload)


def opened(data: bytes, most: int, verify: Verify) -> Batch:
    """Reads a batch of at most `most` bytes; nothing in it is looked at before its signature holds.

    Raises:
        Oversized: longer, or an envelope in it is.
        Malformed: other bytes than `sealed` makes.
        ConfigError: the sender has another format.
        Unsigned, UnknownParty: as `verify`.
    """
    if len(data) > most:
        raise Oversized(f"a batch of {len(data)} bytes; at most {most} are allowed")
    if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + _FORMAT.size + SIGNATURE_BYTES:
        raise Malformed("these bytes are no batch of secureps")
    view = memoryview(data)[:-SIGNATURE_BYTES]
    (format,) = _FORMAT.unpack_from(view, len(_MAGIC))
    parts, at = list[bytes](), len(_MAGIC) + _FORMAT.size
    for _ in range(3):
        length = view[at] if at < len(view) else 0
        parts.append(bytes(view[at + 1 : at + 1 + length]))
        at += 1 + length
    challenge, at = bytes(view[at : at + CHALLENGE_BYTES]), at + CHALLENGE_BYTES
    if at > len(view):
        raise Malformed("a batch that is cut off")
    sender, to, run = _name(parts[0]), _name(parts[1], empty=True), parts[2]
    if len(run) not in (0, DIGEST_BYTES):
        raise Malformed(f"the id of a batch's run has {len(run)} bytes, not {DIGEST_BYTES}")
    if format != FORMAT:
        raise ConfigError(other_peer(sender, format, to or "this party"))
    verify(sender, payload_digest(view), bytes(data[-SIGNATURE_BYTES:]))
    return Batch(sender, to, run, challenge, tuple(_entries(view, at)))


def _name(data: bytes, empty: bool = False) -> str:
    name = data.decode("ascii", errors="replace")
    if name or not empty:
        check_name(name)
    return name


def _entries(view: memoryview, at: int) -> Iterator[Entry]:
    while at < len(view):
        if at + _ENTRY.size > len(view):
            raise Malformed("a batch whose last entry is cut off")
        kind, name, envelope, payload = _ENTRY.unpack_from(view, at)
        at += _ENTRY.size
        if envelope > MESSAGE_LIMIT:
            raise Oversized(f"a message of {envelope} bytes; at most {MESSAGE_LIMIT} are allowed")
        ends = (at + name, at + name + envelope, at + name + envelope + payload)
        if ends[2] > len(view) or kind not in tuple(Kind):
            raise Malformed("a batch with an entry that is cut off, or of no known kind")
        parts = bytes(view[at : ends[0]]), bytes(view[ends[0] : ends[1]]), view[ends[1] : ends[2]]
        yield Entry(Kind(kind), *parts)
        at = ends[2]
