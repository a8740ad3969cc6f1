"""The servers' side of waves: performs the requests in parties' batches, and gathers their answers.

A `Relay` keeps every party's calls and its stream of orders open while no process of the party
runs. It performs a batch in order, and hands on a receipt only once shards have stored all blocks
of it that came in the same batch.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from secureps.errors import Malformed, PeerError, SecurepsError, Unreachable
from secureps.messages.orders import AnyOrder
from secureps.messages.requests import (
    Heartbeat,
    Noted,
    Payload,
    PutBlock,
    Submit,
    Subscribe,
    Welcome,
)
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import SubmissionId
from secureps.wire.grpc.framing import refusal
from secureps.wire.msgpack import decode, encode
from secureps.wire.transport import Cancel, Clock, Endpoint, ask, outcome, running, settle, told
from secureps.wire.waves.batch import Entry, Kind, about

AGAIN = 2.0
"""The most seconds until the relay repeats a request to a server that was not ready."""

_PARTYS = (Kind.CALL, Kind.TELL, Kind.FIRST, Kind.WATCH, Kind.UNWATCH)


@dataclass(eq=False)
class _Asked:
    """A request that is under way; a `quiet` one is answered only if it fails."""

    to: str
    about: bytes
    quiet: bool
    future: Future[Any] = field(default_factory=running)


@dataclass(eq=False)
class _Stream:
    about: bytes
    orders: list[Any] = field(default_factory=list)
    cancel: Cancel | None = None
    over: bool = False


@dataclass(eq=False)
class _Batch:
    rest: deque[tuple[Entry, Any]]
    first: _Asked | None = None
    blocks: defaultdict[SubmissionId, list[_Asked]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def waits_for(self) -> Future[Any] | None:
        """The next block that has to be stored before the receipt that comes next goes on."""
        _, message = self.rest[0]
        if not isinstance(message, Submit):
            return None
        blocks = (each.future for each in self.blocks[message.receipt.id])
        return next((future for future in blocks if not future.done()), None)

    def stored(self, id: SubmissionId) -> bool:
        return all(each.future.exception() is None for each in self.blocks[id])


@dataclass(eq=False)
class _Party:
    """The open requests and the stream of one party; `going`: a thread performs its batches."""

    asked: list[_Asked] = field(default_factory=list)
    stream: _Stream | None = None
    batches: deque[_Batch] = field(default_factory=deque)
    going: bool = False


class Relay:
    """Performs the batches of parties; thread-safe.

    With a `clock` it repeats requests. `heard` is told which party has news, and returns at once.
    """

    def __init__(
        self, clock: Clock | None = None, heard: Callable[[str], None] = lambda party: None
    ) -> None:
        self._clock, self._heard = clock, heard
        self._lock = threading.RLock()
        self._endpoints: dict[str, Endpoint] = {}
        self._parties: defaultdict[str, _Party] = defaultdict(_Party)

    def attach(self, server: str, endpoint: Endpoint) -> None:
        with self._lock:
            self._endpoints[server] = endpoint

    def detach(self, server: str) -> None:
        """Acts as if a server's process died: requests to it fail, and its streams end."""
        error = Unreachable(f"{server} is gone")
        with self._lock:
            self._endpoints.pop(server, None)
            parties = list(self._parties.items())
        for name, party in parties:
            for asked in [each for each in party.asked if each.to == server]:
                self._answer(name, asked, error)
            if server == COORDINATOR and party.stream is not None:
                self._order(name, party.stream, error)

    # --- what parties say ---------------------------------------------------------

    def came(self, party: str, entries: Iterable[Entry]) -> None:
        """Performs a party's batch in order, after its earlier ones; Malformed if it is none."""
        batch = _Batch(deque((entry, _message(entry)) for entry in entries))
        if strange := [entry.kind.name for entry, _ in batch.rest if entry.kind not in _PARTYS]:
            raise Malformed(f"a party's batch has no {strange[0]}")
        with self._lock:
            self._parties[party].batches.append(batch)
        self._go_on(party)

    def _go_on(self, party: str) -> None:
        """Performs a party's entries, up to a receipt whose blocks are not stored yet."""
        with self._lock:
            known = self._parties[party]
            if known.going:
                return
            known.going = True
        while True:
            with self._lock:
                while known.batches and not known.batches[0].rest:
                    known.batches.popleft()
                batch = known.batches[0] if known.batches else None
                under_way = None if batch is None else batch.waits_for()
                if batch is None or under_way is not None:
                    known.going = False
                    break
                entry, message = batch.rest.popleft()
            self._perform(party, batch, entry, message)

        def stored(block: Future[Any]) -> None:
            self._go_on(party)
            self._heard(party)

        if under_way is not None:
            under_way.add_done_callback(stored)

    def _perform(self, party: str, batch: _Batch, entry: Entry, message: Any) -> None:
        match entry.kind:
            case Kind.WATCH:
                self._watch(party, entry, batch.first)
            case Kind.UNWATCH:
                self._unwatch(party)
            case _ if not isinstance(message, Submit) or batch.stored(message.receipt.id):
                self._begin(party, batch, entry, message)
            case _:
                pass  # it is asked for again: the party has it in its outbox

    def _begin(self, party: str, batch: _Batch, entry: Entry, message: Any) -> None:
        to = entry.name.decode("ascii", errors="replace")
        asked = _Asked(to, about(to, entry.envelope), entry.kind is Kind.TELL)
        with self._lock:
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
        with self._lock:
            endpoint = self._endpoints.get(asked.to)
        if endpoint is None:
            self._answer(party, asked, Unreachable(f"{asked.to} is not there"))
            return

        def answered(result: Any) -> None:
            waits = isinstance(result, PeerError) and result.retry_after is not None
            if waits and patient and self._clock is not None:
                again = functools.partial(self._ask, party, asked, message, True)
                self._clock.call_later(min(AGAIN, result.retry_after), again)
            else:
                self._answer(party, asked, result)

        ask(endpoint, party, message, answered)

    def _answer(self, party: str, asked: _Asked, result: Any) -> None:
        with self._lock:
            if asked.future.done():
                return
            settle(asked.future, result)
        self._heard(party)

    def beat(self, party: str) -> None:
        """Sends a heartbeat for a party that has no process."""
        with self._lock:
            endpoint = self._endpoints.get(COORDINATOR)
        if endpoint is not None:
            endpoint.request(party, Heartbeat(party))

    # --- streams ------------------------------------------------------------------

    def _watch(self, party: str, entry: Entry, first: _Asked | None) -> None:
        """Opens a stream once the party's first request is answered: it has joined then."""
        stream = _Stream(about(COORDINATOR, entry.envelope))
        self._unwatch(party)
        with self._lock:
            self._parties[party].stream = stream
        try:
            message = decode(entry.envelope)
            if not isinstance(message, Subscribe):
                raise Malformed(f"a stream begins with Subscribe, not {type(message).__name__}")
        except SecurepsError as error:
            self._order(party, stream, error)
            return
        if first is None:
            self._subscribe(party, stream, message)
            return

        def joined(done: Future[Any]) -> None:
            if done.exception() is None and isinstance(done.result(), Welcome | Noted):
                self._subscribe(party, stream, message)

        first.future.add_done_callback(joined)

    def _subscribe(self, party: str, stream: _Stream, message: Subscribe) -> None:
        with self._lock:
            endpoint = self._endpoints.get(COORDINATOR)
            if stream.over:
                return
        if endpoint is None:
            self._order(party, stream, Unreachable("the coordinator is not there"))
            return
        try:
            cancel = endpoint.subscribe(
                party, message, functools.partial(self._order, party, stream)
            )
        except Exception as error:
            self._order(party, stream, told(error))
            return
        with self._lock:
            stream.cancel, over = cancel, stream.over
        if over:  # it ended before there was anything to cancel
            cancel()

    def _order(self, party: str, stream: _Stream, order: AnyOrder | SecurepsError) -> None:
        cancel = None
        with self._lock:
            if stream.over:
                return
            stream.orders.append(order)
            if isinstance(order, SecurepsError):
                stream.over, cancel = True, stream.cancel
        if cancel is not None:
            cancel()
        self._heard(party)

    def _unwatch(self, party: str) -> None:
        with self._lock:
            stream, self._parties[party].stream = self._parties[party].stream, None
            if stream is None or stream.over:
                return
            stream.over = True
        if stream.cancel is not None:
            stream.cancel()

    # --- what parties hear --------------------------------------------------------

    def answered(self, party: str) -> bool:
        """Whether every request whose answer a party waits for has ended."""
        with self._lock:
            known = self._parties[party]
            told = all(each.quiet or each.future.done() for each in known.asked)
            return told and not known.going and not known.batches

    def orders(self, party: str) -> tuple[Any, ...]:
        with self._lock:
            stream = self._parties[party].stream
            return () if stream is None else tuple(stream.orders)

    def refused(self, party: str) -> bool:
        """Whether a request of a party was refused, and the party has not heard so."""
        with self._lock:
            done = [each for each in self._parties[party].asked if each.future.done()]
        return any(_lasts(outcome(each.future)) for each in done)

    def goes(self, party: str) -> tuple[tuple[Entry, ...], dict[bytes, bytes]]:
        """Takes all news of a party, and the payloads of answers, by digest."""
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
            answer = outcome(asked.future)
            if isinstance(answer, Payload):
                payloads[answer.digest] = bytes(answer.payload)
            if not asked.quiet or _lasts(answer):
                entries.append(answering(asked.about, answer))
        if stream is not None:
            entries.append(Entry(Kind.STREAM, stream.about))
            entries += map(_ordering, orders)
        return tuple(entries), payloads


def answering(name: bytes, answer: Any) -> Entry:
    """The entry of an answer or an error; its payload goes beside it."""
    try:
        data = refusal(answer) if isinstance(answer, SecurepsError) else encode(answer)
    except SecurepsError as error:
        data = refusal(error)
    return Entry(Kind.ANSWER, name, data)


def _ordering(order: AnyOrder | SecurepsError) -> Entry:
    if isinstance(order, SecurepsError):
        return Entry(Kind.LOST, envelope=refusal(order))
    return Entry(Kind.ORDER, envelope=encode(order))


def _lasts(answer: Any) -> bool:
    """Whether it is an error that a later try does not mend."""
    if isinstance(answer, PeerError):
        return answer.retry_after is None
    return isinstance(answer, SecurepsError)


def _message(entry: Entry) -> Any:
    """The message of an entry, a block with its payload; or the error of one that is none."""
    try:
        message = decode(entry.envelope)
        return _whole(message, entry.payload) if isinstance(message, PutBlock) else message
    except SecurepsError as error:
        return error


def _whole(message: PutBlock, payload: bytes | memoryview) -> PutBlock:
    if message.offset or len(payload) != message.header.length:
        raise Malformed(f"{len(payload)} bytes of a block; its header says {message.header.length}")
    return dataclasses.replace(message, payload=payload)
