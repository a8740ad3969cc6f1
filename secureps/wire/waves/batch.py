"""Waves: parties whose messages travel in signed batches instead of connections.

Theory of operation. Under Flower's engine a client has no connection, and its process lives for one
message: a wave. `WaveTransport` has the answers and orders that came, and collects what the party
says. `Relay` stands in for the party at the servers: it performs its requests, and keeps its calls
and its stream of orders open while no process of the party runs. A `Batch` is the content of one
message. Others carry it: `flower.strategy` at the servers, `service.one_wave` at the party.

What happens in one wave:

    called     `WaveTransport.call` makes an entry of a request
    sealed     `take_sent` gives the entries to `seal_batch`, which signs them
    opened     `open_batch` verifies the signature before it reads the entries
    performed  `Relay.perform_batch` asks the servers. It hands over a receipt only when shards have
               stored all blocks of it in the batch.
    answered   `Relay.take_news` returns answers and orders for the next batch
    taken      the next process's `WaveTransport` has them before it asks

A batch in bytes, with numbers in little endian:

    head      MAGIC, format (uint16), sender, to, run, each behind its length (uint8), challenge
    entries   kind (uint8), lengths of name (uint8), envelope (uint32) and payload (uint64), and
              then these three; an envelope is of `wire.msgpack`
    signature 64 bytes, of the sender, over the digest of all before it

A wave costs seconds, so a party assumes that a block is stored which travels before its receipt
(`foresee_answer`). If the block was lost, the relay drops the receipt, and the party sends both
again after its next subscription.

What survives a kill: the party's own journal. A relay keeps its state in memory; after a kill of
the servers a party subscribes anew, and hears again what still matters.

Guards. A server's batch has a fresh challenge, which the party's answer repeats, so that a recorded
batch is useless in another wave. The signature stops carriers that would change a batch, and `most`
stops batches that would fill the memory. Look first at `Kind` for what a batch may have.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from secureps.crypto.identity import SIGNATURE_BYTES, check_name
from secureps.errors import ConfigError, Malformed, Oversized, PeerError, SecurepsError, Unreachable
from secureps.messages.encoding import DIGEST_BYTES, digest, payload_digest, payload_hasher
from secureps.messages.format import FORMAT, describe_peer_format
from secureps.messages.orders import (
    MESSAGE_LIMIT,
    AnyOrder,
    Configure,
    Invite,
    Open,
    SealAgain,
    SendAgain,
)
from secureps.messages.requests import (
    AskBlock,
    AskRun,
    AskStatus,
    GetBlock,
    Heartbeat,
    Join,
    Noted,
    Payload,
    PutBlock,
    Refusal,
    Reply,
    Stored,
    Submit,
    Subscribe,
    Telemetry,
    Welcome,
)
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import SubmissionId
from secureps.wire.grpc.framing import decode_refusal, encode_refusal
from secureps.wire.msgpack import decode, encode
from secureps.wire.transport import (
    Cancel,
    Clock,
    Deliver,
    InProcessNetwork,
    Transport,
    result_of,
    settle,
    start_future,
)

WAVE_DOMAIN = b"secureps-wave"
CHALLENGE_BYTES = 32
MOST_BYTES = 1 << 31
"""The most bytes of a server's batch; the limit of a party's batch follows from the plan."""

_MAGIC = WAVE_DOMAIN
_FORMAT = struct.Struct("<H")
_ENTRY = struct.Struct("<BBIQ")

Sign = Callable[[bytes], bytes]
Verify = Callable[[str, bytes, bytes], None]
"""(sender, signed bytes, signature): raises Unsigned or UnknownParty."""


class Kind(enum.IntEnum):
    """The kind of an entry; the first four come from a party, the others from its server."""

    CALL = 1
    """A request that needs an answer."""
    TELL = 2
    """A request that needs an answer only if it fails for good."""
    FIRST = 3
    """A request of the party's next process, which is answered with the next wave."""
    WATCH = 4
    """Opens the stream of orders."""
    ANSWER = 6
    """The answer to a request, or a Refusal (`name`: `request_digest` of the request)."""
    STREAM = 7
    """Names the stream of the orders that follow (`name`: `request_digest` of its Subscribe)."""
    ORDER = 8
    """One order of the stream."""
    LOST = 9
    """The end of the stream: a Refusal with the reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a batch.

    `name` is the party that a request is for, or in a server's entry a `request_digest`; `envelope`
    is the message without its payload, and may be empty.
    """

    kind: Kind
    name: bytes = b""
    envelope: bytes = b""
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Batch:
    """All entries of a message, in the wave of a `challenge`.

    `to` is empty if the server does not know the party yet, and `run` before the sender knows it.
    """

    sender: str
    to: str
    run: bytes
    challenge: bytes
    entries: tuple[Entry, ...]


def request_digest(to: str, envelope: bytes) -> bytes:
    """Computes the name of a request, by which any process of the party finds the answer."""
    return digest("secureps-wave-request", to.encode(), envelope)


def seal_batch(batch: Batch, sign: Sign) -> bytes:
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


def open_batch(data: bytes, most: int, verify: Verify) -> Batch:
    """Reads a batch of at most `most` bytes; verifies the signature before it reads the entries.

    Raises:
        Oversized: the batch, or an envelope in it, is too long.
        Malformed: these bytes are not from `seal_batch`.
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
        raise ConfigError(describe_peer_format(sender, format, to or "this party"))
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


# --- transport ---------------------------------------------------------------------

REPEATED = (Join, AskRun, AskStatus, GetBlock)
"""Requests that change nothing and that the party's next process repeats: the next wave brings
their answers. For other requests it brings only errors.
"""

WORK = (Invite, SealAgain, SendAgain)
"""Orders that give a client work; other orders can wait for the next one of these."""


def foresee_answer(message: object) -> Reply | None:
    """Returns the answer that a party assumes; None if it has to wait for the answer."""
    match message:
        case PutBlock(header):
            return Stored(header.digest)
        case AskBlock(header):
            return Stored(header.digest, 0)
        case Heartbeat() | Telemetry():
            return Noted()
    return None


def has_work(orders: Iterable[object]) -> bool:
    return any(isinstance(order, WORK) for order in orders)


def has_holder_work(orders: Iterable[object], begins: bool) -> bool:
    """True if these orders give a key holder work; one that `begins` has to announce its keys."""
    return any(
        isinstance(order, Open) or (begins and isinstance(order, Configure)) for order in orders
    )


Payloads = Mapping[bytes, bytes]
"""Payloads of answers by digest; they travel beside batches, because many parties get the same."""


class WaveTransport(Transport):
    """A party's connection to the servers in one wave; its batches name the run.

    The process lives for the wave: the answers and orders that it gets are there from the start,
    and it assumes foreseeable answers. One thread uses it.

    Raises:
        Malformed, Oversized: these entries are no server's.
    """

    def __init__(self, entries: Iterable[Entry] = (), payloads: Payloads | None = None) -> None:
        self._out: list[Entry] = []
        self._answers: defaultdict[bytes, deque[Any]] = defaultdict(deque)
        """By `request_digest`: the next process repeats a request, and finds its answer here."""
        self._streams: defaultdict[bytes, list[Any]] = defaultdict(list)
        stream = b""
        for entry in entries:
            match entry.kind:
                case Kind.ANSWER:
                    self._answers[entry.name].append(_read_answer(entry, payloads or {}))
                case Kind.STREAM:
                    stream = entry.name
                    self._streams[stream] = []
                case Kind.ORDER:
                    self._streams[stream].append(decode(entry.envelope))
                case Kind.LOST:
                    self._streams[stream].append(_read_refusal(entry))
                case _:
                    raise Malformed(f"a server's batch may not contain {entry.kind.name}")

    def call(self, to: str, message: Any) -> Future[Any]:
        future = start_future()
        try:
            envelope = encode(message)
        except SecurepsError as error:
            settle(future, error)
            return future
        if known := self._answers[request_digest(to, envelope)]:
            settle(future, known.popleft())
            return future
        payload = message.payload if isinstance(message, PutBlock) else b""
        kind = Kind.CALL if isinstance(message, REPEATED) else Kind.TELL
        self._out.append(Entry(kind, to.encode(), envelope, payload))
        if (answer := foresee_answer(message)) is not None:
            settle(future, answer)
        return future

    def watch(
        self, message: Subscribe, deliver: Deliver, lost: Callable[[SecurepsError], None]
    ) -> Cancel:
        envelope = encode(message)
        orders = self._streams.pop(request_digest(COORDINATOR, envelope), None)
        if orders is None:
            self._out.append(Entry(Kind.WATCH, envelope=envelope))
        for order in orders or ():
            if isinstance(order, SecurepsError):
                lost(order)
                break
            deliver(order)
        return lambda: None

    def close(self) -> None:
        """There is no connection to close."""

    def take_sent(self) -> tuple[Entry, ...]:
        """Returns the entries that the party has sent since the last call."""
        said, self._out = tuple(self._out), []
        return said


def _read_answer(entry: Entry, payloads: Payloads) -> Any:
    message = decode(entry.envelope)
    if isinstance(message, Refusal):
        return decode_refusal(message)
    if not isinstance(message, Payload):
        return message
    payload = payloads.get(message.digest)
    if payload is None:
        return Unreachable("a payload was lost on its way")
    return dataclasses.replace(message, payload=payload)


def _read_refusal(entry: Entry) -> SecurepsError:
    message = decode(entry.envelope)
    if not isinstance(message, Refusal):
        raise Malformed(f"a stream ends with a Refusal, not with a {type(message).__name__}")
    return decode_refusal(message)


# --- relay -------------------------------------------------------------------------

AGAIN = 2.0
"""The most seconds until the relay repeats a request to an unready server."""

_PARTYS = (Kind.CALL, Kind.TELL, Kind.FIRST, Kind.WATCH)


@dataclass(eq=False)
class _Asked:
    """An open request; a `quiet` one is answered only if it fails."""

    to: str
    about: bytes
    quiet: bool
    future: Future[Any] = field(default_factory=start_future)


@dataclass(eq=False)
class _Stream:
    about: bytes
    orders: list[Any] = field(default_factory=list)
    cancel: Cancel | None = None


@dataclass(eq=False)
class _Batch:
    rest: deque[tuple[Entry, Any]]
    first: _Asked | None = None
    blocks: defaultdict[SubmissionId, list[_Asked]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def waits_for(self) -> Future[Any] | None:
        """Returns a block that must be stored before the next entry, if that is a receipt."""
        _, message = self.rest[0]
        if not isinstance(message, Submit):
            return None
        blocks = (each.future for each in self.blocks[message.receipt.id])
        return next((future for future in blocks if not future.done()), None)

    def stored(self, id: SubmissionId) -> bool:
        return all(each.future.exception() is None for each in self.blocks[id])


@dataclass(eq=False)
class _Party:
    """The open requests, the stream and the unfinished batches of a party."""

    asked: list[_Asked] = field(default_factory=list)
    stream: _Stream | None = None
    batches: deque[_Batch] = field(default_factory=deque)


class Relay:
    """Performs the batches of parties on the servers' network; thread-safe.

    `heard` is called with each party that has news.
    """

    def __init__(
        self, network: InProcessNetwork, clock: Clock, heard: Callable[[str], None]
    ) -> None:
        self._network, self._clock, self._heard = network, clock, heard
        self._lock = threading.RLock()
        self._parties: defaultdict[str, _Party] = defaultdict(_Party)

    # --- requests of parties ------------------------------------------------------

    def perform_batch(self, party: str, entries: Iterable[Entry]) -> None:
        """Performs a party's batch, after its earlier ones; Malformed if it is no party's."""
        batch = _Batch(deque((entry, _read_message(entry)) for entry in entries))
        if strange := [entry.kind.name for entry, _ in batch.rest if entry.kind not in _PARTYS]:
            raise Malformed(f"a party's batch has no {strange[0]}")
        with self._lock:
            self._parties[party].batches.append(batch)
        self._perform_next(party)

    def _perform_next(self, party: str) -> None:
        """Performs a party's entries up to a receipt whose blocks are not stored yet."""

        def stored(block: Future[Any]) -> None:
            self._perform_next(party)
            self._heard(party)

        with self._lock:
            batches = self._parties[party].batches
            while batches:
                batch = batches[0]
                if not batch.rest:
                    batches.popleft()
                elif (under_way := batch.waits_for()) is not None:
                    under_way.add_done_callback(stored)
                    return
                else:
                    self._perform(party, batch, *batch.rest.popleft())

    def _perform(self, party: str, batch: _Batch, entry: Entry, message: Any) -> None:
        match entry.kind:
            case Kind.WATCH:
                self._watch(party, entry, message, batch.first)
            case _ if not isinstance(message, Submit) or batch.stored(message.receipt.id):
                self._begin(party, batch, entry, message)
            case _:
                pass  # drop the receipt: the party has it in its outbox, and sends it again

    def _begin(self, party: str, batch: _Batch, entry: Entry, message: Any) -> None:
        to = entry.name.decode("ascii", errors="replace")
        asked = _Asked(to, request_digest(to, entry.envelope), entry.kind is Kind.TELL)
        self._parties[party].asked.append(asked)
        if isinstance(message, PutBlock):
            batch.blocks[message.header.id].append(asked)
        if entry.kind is Kind.FIRST:
            batch.first = asked
        if isinstance(message, SecurepsError):
            self._answer(party, asked, message)
        else:
            self._ask(party, asked, message, patient=entry.kind is Kind.FIRST)

    def _ask(self, party: str, asked: _Asked, message: Any, patient: bool) -> None:
        def answered(done: Future[Any]) -> None:
            result = result_of(done)
            # A server that is not there may never come: its Unreachable is an answer.
            unready = isinstance(result, PeerError) and not isinstance(result, Unreachable)
            if patient and unready and result.retry_after is not None:
                again = functools.partial(self._ask, party, asked, message, True)
                self._clock.call_later(min(AGAIN, result.retry_after), again)
            else:
                self._answer(party, asked, result)

        self._call(party, asked.to, message).add_done_callback(answered)

    def _call(self, party: str, to: str, message: Any) -> Future[Any]:
        return self._network.transport(party).call(to, message)

    def _answer(self, party: str, asked: _Asked, result: Any) -> None:
        settle(asked.future, result)
        self._heard(party)

    def beat(self, party: str) -> None:
        self._call(party, COORDINATOR, Heartbeat(party))

    # --- streams ------------------------------------------------------------------

    def _watch(self, party: str, entry: Entry, message: Any, first: _Asked | None) -> None:
        """Opens a stream once the party's first request is answered, so that it has joined."""
        stream = _Stream(request_digest(COORDINATOR, entry.envelope))
        self._unwatch(party)
        self._parties[party].stream = stream
        if isinstance(message, SecurepsError):
            self._order(party, stream, message)
            return
        if not isinstance(message, Subscribe):
            text = f"a stream begins with Subscribe, not {type(message).__name__}"
            self._order(party, stream, Malformed(text))
            return
        if first is None:
            self._subscribe(party, stream, message)
            return

        def joined(done: Future[Any]) -> None:
            if done.exception() is None and isinstance(done.result(), Welcome | Noted):
                self._subscribe(party, stream, message)

        first.future.add_done_callback(joined)

    def _subscribe(self, party: str, stream: _Stream, message: Subscribe) -> None:
        take = functools.partial(self._order, party, stream)
        with self._lock:
            if self._parties[party].stream is stream:  # it was not closed meanwhile
                stream.cancel = self._network.transport(party).watch(message, take, take)

    def _order(self, party: str, stream: _Stream, order: AnyOrder | SecurepsError) -> None:
        with self._lock:
            stream.orders.append(order)
        self._heard(party)

    def _unwatch(self, party: str) -> None:
        stream, self._parties[party].stream = self._parties[party].stream, None
        if stream is not None and stream.cancel is not None:
            stream.cancel()

    # --- news for parties ---------------------------------------------------------

    def is_answered(self, party: str) -> bool:
        """True if all requests for whose answers a party waits have ended."""
        with self._lock:
            known = self._parties[party]
            told = all(each.quiet or each.future.done() for each in known.asked)
            return told and not known.batches

    def orders(self, party: str) -> tuple[Any, ...]:
        with self._lock:
            stream = self._parties[party].stream
            return () if stream is None else tuple(stream.orders)

    def has_refusal(self, party: str) -> bool:
        """True if there is news for a party that one of its requests was refused."""
        with self._lock:
            done = [each for each in self._parties[party].asked if each.future.done()]
        return any(_is_final(result_of(each.future)) for each in done)

    def take_news(self, party: str) -> tuple[tuple[Entry, ...], dict[bytes, bytes]]:
        """Removes and returns a party's news, and the payloads of answers by digest."""
        with self._lock:
            known = self._parties[party]
            done = [each for each in known.asked if each.future.done()]
            known.asked = [each for each in known.asked if not each.future.done()]
            stream = known.stream
            orders = [] if stream is None else stream.orders
            if stream is not None:
                stream.orders = []
        entries, payloads = list[Entry](), dict[bytes, bytes]()
        for asked in done:
            answer = result_of(asked.future)
            if isinstance(answer, Payload):
                payloads[answer.digest] = bytes(answer.payload)
            if not asked.quiet or _is_final(answer):
                entries.append(make_answer(asked.about, answer))
        if stream is not None:
            entries.append(Entry(Kind.STREAM, stream.about))
            for order in orders:
                lost = isinstance(order, SecurepsError)
                data = encode_refusal(order) if lost else encode(order)
                entries.append(Entry(Kind.LOST if lost else Kind.ORDER, envelope=data))
        return tuple(entries), payloads


def make_answer(name: bytes, answer: Any) -> Entry:
    """Makes the entry of an answer or an error; its payload travels beside it."""
    try:
        data = encode_refusal(answer) if isinstance(answer, SecurepsError) else encode(answer)
    except SecurepsError as error:
        data = encode_refusal(error)
    return Entry(Kind.ANSWER, name, data)


def _is_final(answer: Any) -> bool:
    if isinstance(answer, PeerError):
        return answer.retry_after is None
    return isinstance(answer, SecurepsError)


def _read_message(entry: Entry) -> Any:
    """Reads an entry's message, a block with its payload; returns an error as a value."""
    try:
        message = decode(entry.envelope)
    except SecurepsError as error:
        return error
    if not isinstance(message, PutBlock):
        return message
    here, length = len(entry.payload), message.header.length
    if message.offset or here != length:
        return Malformed(f"{here} bytes of a block; its header says {length}")
    return dataclasses.replace(message, payload=entry.payload)
