"""A party's way to the servers where messages travel in waves (`wire.transport.Transport`).

The transport collects what the party sends until `out` takes it. What its server sent comes all at
once by `take`: answers, and orders of the stream. An answer may come before its request, which then
gets it at once.

A wave costs seconds: a process, and two polls. So a party does not wait for foreseeable answers. It
takes a block as stored that travels before its receipt; the server hands the receipt to the
coordinator only once that is true (`wire.waves.relay`), and the party sends a lost block again
after its next subscription, as after a crash.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from secureps.errors import Malformed, SecurepsError, Unreachable
from secureps.messages.orders import Configure, Invite, Open, SealAgain, SendAgain
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
    Subscribe,
    Telemetry,
)
from secureps.messages.run import COORDINATOR
from secureps.wire.grpc.framing import error_in
from secureps.wire.msgpack import decode, encode
from secureps.wire.transport import Cancel, Deliver, closed, running, settle
from secureps.wire.waves.batch import Entry, Kind, about

REPEATED = (Join, AskRun, AskStatus, GetBlock)
"""Requests that change nothing, and that a party's next process repeats: the next wave has their
answers. Of all other requests it has only errors.
"""

WORK = (Invite, SealAgain, SendAgain)
"""Orders by which a client has something to do; all others can wait until it has."""


def foreseen(message: object) -> Reply | None:
    """The answer that a party takes for granted; None where it has to wait."""
    match message:
        case PutBlock(header):
            return Stored(header.digest)
        case AskBlock(header):
            return Stored(header.digest, 0)
        case Heartbeat() | Telemetry():
            return Noted()
    return None


def due(orders: Iterable[object]) -> bool:
    """Whether a client has work to do by these orders."""
    return any(isinstance(order, WORK) for order in orders)


def holder_due(orders: Iterable[object], begins: bool) -> bool:
    """Whether a key holder has work to do by these orders.

    Args:
        begins: it does not know the run yet, and has to announce its keys.
    """
    return any(
        isinstance(order, Open) or (begins and isinstance(order, Configure)) for order in orders
    )


Payloads = Mapping[bytes, bytes]
"""Payloads of answers by digest, beside batches: many parties get the same."""


@dataclass(eq=False)
class _Watch:
    about: bytes
    deliver: Deliver
    lost: Callable[[SecurepsError], None]


class WaveTransport:
    """A party's way to the servers; implements `wire.transport.Transport`.

    Args:
        one_wave: the process lives for one wave: it does not wait for foreseeable answers.
    """

    def __init__(self, one_wave: bool = False) -> None:
        self._one_wave = one_wave
        self._lock = threading.Lock()
        self._out: list[Entry] = []
        self._pending: defaultdict[bytes, deque[Future[Any]]] = defaultdict(deque)
        self._known: defaultdict[bytes, deque[Any]] = defaultdict(deque)
        self._watch: _Watch | None = None
        self._ahead: dict[bytes, list[Any]] = {}
        self._closed = False

    # --- Transport ----------------------------------------------------------------

    def call(self, to: str, message: Any) -> Future[Any]:
        future = running()
        settle_now = self._call(to, message, future)
        if settle_now is not None:
            settle(future, settle_now)
        return future

    def _call(self, to: str, message: Any, future: Future[Any]) -> Any:
        """Returns an answer that is known at once; None if it comes with a wave."""
        try:
            envelope = encode(message)
        except SecurepsError as error:
            return error
        name = about(to, envelope)
        with self._lock:
            if self._closed:
                return closed()
            if name in self._known:
                answer = self._known[name].popleft()
                if not self._known[name]:
                    del self._known[name]
                return answer
            payload = message.payload if isinstance(message, PutBlock) else b""
            tells = self._one_wave and not isinstance(message, REPEATED)
            kind = Kind.TELL if tells else Kind.CALL
            self._out.append(Entry(kind, to.encode(), envelope, payload))
            if self._one_wave and (answer := foreseen(message)) is not None:
                return answer
            self._pending[name].append(future)
            return None

    def watch(
        self, message: Subscribe, deliver: Deliver, lost: Callable[[SecurepsError], None]
    ) -> Cancel:
        envelope = encode(message)
        watch = _Watch(about(COORDINATOR, envelope), deliver, lost)
        with self._lock:
            if self._closed:
                return lambda: None
            self._watch, ahead, self._ahead = watch, self._ahead, {}
            if watch.about not in ahead:
                self._out.append(Entry(Kind.WATCH, envelope=envelope))
        for order in ahead.get(watch.about, ()):
            self._deliver(watch, order)
        return lambda: self._cancel(watch)

    def locate(self, party: str, address: str) -> None:
        """Does nothing: the carrier of batches knows where everyone is."""

    def belong(self, run: bytes) -> None:
        """Does nothing: a batch names the run."""

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pending = [future for futures in self._pending.values() for future in futures]
            self._pending.clear()
            watch = self._watch
        for future in pending:
            settle(future, closed())
        if watch is not None:
            self._cancel(watch)

    def _cancel(self, watch: _Watch) -> None:
        with self._lock:
            if self._watch is watch:
                self._watch = None
                self._out.append(Entry(Kind.UNWATCH))

    # --- waves --------------------------------------------------------------------

    def out(self) -> tuple[Entry, ...]:
        """Takes all that the party has sent since the last time."""
        with self._lock:
            said, self._out = tuple(self._out), []
            return said

    def take(self, entries: Iterable[Entry], payloads: Payloads) -> None:
        """Takes what the server has sent; Malformed or Oversized if it is no server's."""
        stream = b""
        for entry in entries:
            match entry.kind:
                case Kind.ANSWER:
                    self._answered(entry.name, _answer(entry, payloads))
                case Kind.STREAM:
                    stream = entry.name
                    self._begin(stream)
                case Kind.ORDER:
                    self._ordered(stream, decode(entry.envelope))
                case Kind.LOST:
                    self._ordered(stream, _error(entry))
                case _:
                    raise Malformed(f"a server's batch has no {entry.kind.name}")

    def _answered(self, name: bytes, answer: Any) -> None:
        with self._lock:
            waiting = self._pending.get(name)
            future = waiting.popleft() if waiting else None
            if waiting is not None and not waiting:
                del self._pending[name]
            if future is None and not self._closed:
                self._known[name].append(answer)
        if future is not None:
            settle(future, answer)

    def _begin(self, stream: bytes) -> None:
        with self._lock:
            if self._watch is None and not self._closed:
                self._ahead = {stream: []}

    def _ordered(self, stream: bytes, order: Any) -> None:
        with self._lock:
            watch = self._watch
            if watch is None and stream in self._ahead:
                self._ahead[stream].append(order)
        if watch is not None and watch.about == stream:
            self._deliver(watch, order)

    def _deliver(self, watch: _Watch, order: Any) -> None:
        if self._watch is not watch:
            return  # it was cancelled meanwhile
        if isinstance(order, SecurepsError):
            self._watch = None
            watch.lost(order)
        else:
            watch.deliver(order)


def _answer(entry: Entry, payloads: Payloads) -> Any:
    message = decode(entry.envelope)
    if isinstance(message, Refusal):
        return error_in(message)
    if not isinstance(message, Payload):
        return message
    payload = payloads.get(message.digest)
    if payload is None:
        return Unreachable("a payload was lost on its way")
    return dataclasses.replace(message, payload=payload)


def _error(entry: Entry) -> SecurepsError:
    message = decode(entry.envelope)
    if not isinstance(message, Refusal):
        raise Malformed(f"a stream ends with a Refusal, not with a {type(message).__name__}")
    return error_in(message)
