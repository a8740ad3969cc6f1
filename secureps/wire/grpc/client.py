"""The calling side of gRPC.

Small messages to a server go in one call at a time, and no thread waits for them. Messages that
come during a call go together in the next one (`framing.bundle`). A separate thread begins the
calls, so messages that a party sends at once go together too. A message whose answer waits for
other messages has its own call. A small pool of threads carries payloads in pieces, a payload on
each. A watch has a daemon thread at the watcher.

If memory or threads run out, gRPC silently lacks the threads that it could not start: then no call
ends, not even at its deadline, and no connection is made. `Liveness` notices that by calls to an
address where nobody answers.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from secureps.buffers import Buffers
from secureps.crypto.identity import check_name
from secureps.errors import Busy, InternalError, Oversized, SecurepsError, Unreachable
from secureps.exhaustion import name_limit
from secureps.messages.requests import (
    AskBlock,
    GetBlock,
    GetSum,
    Heartbeat,
    Payload,
    PutBlock,
    Stored,
    Subscribe,
)
from secureps.messages.run import COORDINATOR, split_addresses
from secureps.wire.grpc import framing
from secureps.wire.grpc.framing import PAYLOADS_AT_ONCE, Link, Metadata
from secureps.wire.msgpack import decode, encode
from secureps.wire.transport import (
    Cancel,
    Deliver,
    closed_error,
    error_for_sender,
    settle,
    start_future,
)

TURN = 0.5
"""Seconds between two changes of address, so that calls that fail together count once."""


class Addresses:
    """The present address of each server; used under a lock."""

    def __init__(
        self, given: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._known = {party: deque(split_addresses(several)) for party, several in given.items()}
        self._turned: dict[str, float] = {}
        self._clock = clock

    def address(self, party: str) -> str | None:
        known = self._known.get(party)
        return None if known is None else known[0]

    def has_several(self, party: str) -> bool:
        return len(self._known.get(party, ())) > 1

    def set(self, party: str, address: str) -> bool:
        """Sets an address; returns whether it has changed."""
        other = self.address(party) != address
        if other:
            self._known[party] = deque([address])
        return other

    def note_failure(self, party: str, error: SecurepsError) -> bool:
        """Notes a failed call; returns whether the server's next address is used now."""
        now = self._clock()
        soon = now - self._turned.get(party, -TURN) < TURN
        if not isinstance(error, Unreachable) or not self.has_several(party) or soon:
            return False
        self._turned[party] = now
        self._known[party].rotate(-1)
        return True


NOBODY = f"unix:{os.devnull}"
"""An address of this machine at which nobody answers, with any network."""

NOBODY_SECONDS = 5.0
"""Deadline in seconds of a call to nobody, which should be refused at once."""

LATE = 10.0
"""Seconds after which an open call to nobody shows a fault, also on a busy machine."""


class Liveness:
    """Calls nobody again and again; `stalled` is called now and then, by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._channel: grpc.Channel | None = None
        self._call: Any = None
        self._begun = 0.0

    def stalled(self) -> str:
        """Returns a text if the last call has not ended, else begins the next one and returns "".

        Raises RuntimeError or MemoryError if there is no thread or memory for a call.
        """
        if self._call is not None and not self._call.done():
            seconds = self._clock() - self._begun
            return "" if seconds <= LATE else f"a call to nobody has not ended for {seconds:.0f} s"
        self.close()
        self._begun = self._clock()
        channel = grpc.insecure_channel(NOBODY, (("grpc.use_local_subchannel_pool", 1),))
        ask: Any = channel.unary_unary("/secureps/Nobody")
        try:
            self._call = ask.future(b"", timeout=NOBODY_SECONDS)
        except BaseException:  # leak the channel: closing it would wait for the call for ever
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))
            raise
        self._channel = channel
        return ""

    def close(self) -> None:
        channel, self._channel, self._call = self._channel, None, None
        if channel is not None:
            channel.close()


@dataclass(frozen=True, slots=True)
class _Tell:
    envelope: bytes
    alone: bool
    future: Future[Any]


_Turns = tuple[str, Future[Any] | None]
"""A queue: a server, and for a BESIDE message its own future, else None."""


class Tells:
    """The small messages of one party.

    Args:
        begin: begins a call to a server with these bytes; returns a gRPC future, or raises.
        to_error: turns a call's exception into a SecurepsError, unless it is an exhausted limit.
        settle: ends a message's future with its answer or error.
    """

    def __init__(
        self,
        begin: Callable[[str, bytes], Any],
        to_error: Callable[[Exception, str], Exception],
        settle: Callable[[Future[Any], Any], None],
    ) -> None:
        self._begin, self._to_error, self._settle = begin, to_error, settle
        self._lock = threading.Lock()
        self._waiting: defaultdict[_Turns, deque[_Tell]] = defaultdict(deque)
        self._busy: dict[_Turns, float] = {}
        """When each open call was begun, or was due."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tell")

    def add(self, to: str, message: Any, envelope: bytes, future: Future[Any]) -> None:
        """Queues a message for its server; a BESIDE message to a shard has its own queue."""
        beside = isinstance(message, framing.BESIDE) and to != COORDINATOR
        turns = (to, future if beside else None)
        tell = _Tell(envelope, isinstance(message, framing.ALONE), future)
        with self._lock:
            self._waiting[turns].append(tell)
            if turns in self._busy:
                return
            self._busy[turns] = time.monotonic()
        try:
            self._thread.submit(self._next, turns)
        except RuntimeError as error:  # otherwise later messages would wait for ever
            failed = self._to_error(error, to) if name_limit(error) else closed_error()
            while sent := self._take_next(turns):
                self._answer(sent, [failed] * len(sent))

    def longest(self) -> tuple[str, float]:
        """Returns the server of the oldest open call, and the call's age in seconds, or ("", 0)."""
        with self._lock:
            if not self._busy:
                return "", 0.0
            turns = min(self._busy, key=self._busy.__getitem__)
            return turns[0], time.monotonic() - self._busy[turns]

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self, turns: _Turns) -> None:
        to, _ = turns
        while sent := self._take_next(turns):
            try:
                call = self._begin(to, framing.bundle([each.envelope for each in sent]))
                call.add_done_callback(partial(self._finish, turns, sent))
                return
            except Exception as error:
                self._answer(sent, [self._to_error(error, to)] * len(sent))

    def _take_next(self, turns: _Turns) -> list[_Tell]:
        with self._lock:
            waiting, taken = self._waiting[turns], list[_Tell]()
            while waiting and (not taken or _fit_together([*taken, waiting[0]])):
                taken.append(waiting.popleft())
            if taken:
                self._busy[turns] = time.monotonic()
            else:
                del self._busy[turns], self._waiting[turns]
            return taken

    def _finish(self, turns: _Turns, sent: list[_Tell], call: Any) -> None:
        try:
            answers = framing.read_replies(call.result(), len(sent), turns[0])
        except Exception as error:
            answers = [self._to_error(error, turns[0])] * len(sent)
        self._next(turns)
        self._answer(sent, answers)

    def _answer(self, sent: Sequence[_Tell], answers: Sequence[Any]) -> None:
        for each, answer in zip(sent, answers, strict=True):
            self._settle(each.future, answer)


def _fit_together(tells: Sequence[_Tell]) -> bool:
    envelopes = [each.envelope for each in tells]
    return framing.has_room(envelopes) and not any(each.alone for each in tells)


PAYLOAD_SECONDS = 600.0
"""Seconds of a call with a payload, for a server that hangs. A server ends a call on which nothing
moves much sooner (`admission.STALLED`), and so does gRPC on a line that is dead."""
PAYLOAD_LIMIT = 1 << 30
"""The most bytes of a payload from a server."""
KEPT = 8 << 20
"""Bytes of buffers that are reused for later payloads."""
BEAT = 5.0
"""Seconds between two heartbeats to a watched coordinator with several addresses."""
ELSEWHERE = 10.0
"""Timeout of calls to such a coordinator, after which its next address is used."""
OVERDUE = 5.0
"""Seconds after its deadline by which a call must have ended, also on a busy machine."""
ASK_FROM = 64 << 10
"""Bytes of a payload from which the sender first asks how much of it the server has."""


class GrpcTransport:
    """A party's connection to the servers over gRPC; implements `wire.transport.Transport`.

    Args:
        addresses: HOST:PORT by party, as far as known; `locate` adds others. If a party has several
            (HOST:PORT,HOST:PORT), an unreachable one is replaced by the next.
        timeout: seconds without an answer after which a call without a payload fails with
            Unreachable.
        beats: whether to send heartbeats to a watched coordinator with several addresses, and to
            watch its next address if one is not answered.
    """

    def __init__(
        self,
        link: Link,
        party: str,
        sign: Callable[[bytes], bytes],
        addresses: Mapping[str, str],
        timeout: float = 30.0,
        beats: bool = False,
    ) -> None:
        check_name(party)
        self._link = link
        self._party = party
        self._sign = sign
        self._timeout = timeout
        self._beats = beats
        self._lock = threading.Lock()
        self._addresses = Addresses(addresses)
        self._run = b""
        self._channels: dict[str, tuple[object, grpc.Channel]] = {}
        """The channel of each party, and the link's identity at its making."""
        self._retired: list[grpc.Channel] = []
        """Replaced channels, on which open calls still end."""
        self._ways: dict[str, str] = {}  # by address, the words of errors for a proxy on the way
        self._pending: set[Future[Any]] = set()
        self._watches: set[_Watch] = set()
        self._tells = Tells(self._tell, self._to_error, self._settle)
        self._liveness = Liveness()
        self._buffers = Buffers(KEPT)
        self._halves: dict[tuple[str, bytes], framing.PartialPayload] = {}
        """At most PAYLOADS_AT_ONCE partly received payloads, by server and request."""
        self._met: set[str] = set()
        """Servers that have answered; an impostor at their address is expected to go away."""
        self._taking: set[str] = set()
        """Servers that took the last block, and so have no part of the next one yet."""
        self._threads = ThreadPoolExecutor(PAYLOADS_AT_ONCE, thread_name_prefix="payload")
        self._closed = False

    def call(self, to: str, message: Any) -> Future[Any]:
        future = start_future()
        with self._lock:
            self._pending.add(future)
        try:
            envelope = encode(message)
            if isinstance(message, PutBlock):
                self._submit(self._put, future, to, message)
            elif isinstance(message, GetBlock | GetSum):
                self._submit(self._get, future, to, message)
            else:
                self._tells.add(to, message, envelope, future)
        except Exception as error:
            self._settle(future, self._to_error(error, to))
        return future

    def watch(
        self, message: Subscribe, deliver: Deliver, lost: Callable[[SecurepsError], None]
    ) -> Cancel:
        def ended(error: SecurepsError) -> None:
            self._dial_next(COORDINATOR, error)
            lost(error)

        watch = _Watch(deliver, ended, lambda: self._subscribe(message))
        with self._lock:
            if self._closed:
                return lambda: None
            self._watches = {known for known in self._watches if known.thread.is_alive()} | {watch}
            watch.thread.start()
            beats = self._beats and self._addresses.has_several(COORDINATOR)
        if beats:
            threading.Thread(target=self._beat, args=(watch,), name="beat", daemon=True).start()
        return watch.cancel

    def _beat(self, watch: _Watch) -> None:
        """Sends heartbeats while the coordinator is watched; a failed one changes its address.

        This finds a coordinator that hangs, whose gRPC threads still answer pings.
        """
        while not watch.over.wait(BEAT):
            with suppress(SecurepsError):
                self.call(COORDINATOR, Heartbeat(self._party)).result()

    def locate(self, party: str, address: str) -> None:
        with self._lock:
            if not self._addresses.set(party, address):
                return
            _, channel = self._channels.pop(party, (None, None))
        if channel is not None:
            channel.close()

    def bind_run(self, run: bytes) -> None:
        self._run = run

    def stalled(self) -> str:
        """Says which call is long past its deadline, else "". Raises as `Liveness.stalled`."""
        to, seconds = self._tells.longest()
        if seconds > self._timeout + OVERDUE:
            return f"a call to {self._name_server(to)} has not ended for {seconds:.0f} s"
        return self._liveness.stalled()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watches, self._watches = self._watches, set()
            pending = tuple(self._pending)
            channels = [*(made for _, made in self._channels.values()), *self._retired]
            self._channels = {}
        for watch in watches:
            watch.cancel()
        for future in pending:
            self._settle(future, closed_error())
        for channel in channels:
            channel.close()
        self._liveness.close()
        self._threads.shutdown(cancel_futures=True)
        self._tells.close()
        for watch in watches:
            watch.join()

    def _channel(self, to: str) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise closed_error()
            address = self._addresses.address(to)
            if address is None:
                raise Unreachable(f"nobody has told where {to} is")
            identity = self._link.identity()
            known, channel = self._channels.get(to, (None, None))
            if channel is not None and known is identity:
                return channel
            if channel is not None:
                self._retired.append(channel)
            several = self._addresses.has_several(to)
            options = framing.FOLLOWING_OPTIONS if several else framing.CLIENT_OPTIONS
            proxy, option = framing.find_way(address)
            self._ways[address] = f" through the proxy {proxy}" if proxy else ""
            channel = self._link.channel(to, address, (*options, option))
            self._channels[to] = (identity, channel)
            return channel

    def _dial_next(self, to: str, error: SecurepsError) -> None:
        """Uses a server's next address after a failure, if the server has several."""
        with self._lock:
            if not self._addresses.note_failure(to, error):
                return
            if to in self._channels:
                self._retired.append(self._channels.pop(to)[1])
            watches = tuple(self._watches) if to == COORDINATOR else ()
        for watch in watches:
            watch.drop()

    def _metadata(self, to: str, method: str, envelope: bytes) -> Metadata:
        return framing.sign_request(self._party, to, self._sign, method, self._run, envelope)

    def _submit(self, work: Callable[..., Any], future: Future[Any], to: str, *rest: Any) -> None:
        def run() -> None:
            try:
                result = work(to, *rest)
            except Exception as error:
                result = self._to_error(error, to)
            self._settle(future, result)

        with self._lock:
            if self._closed:
                raise closed_error()
            self._threads.submit(run)

    def _tell(self, to: str, data: bytes) -> Any:
        method = framing.COORDINATOR_TELL if to == COORDINATOR else framing.SHARD_TELL
        call: Any = self._channel(to).unary_unary(method)
        metadata = self._metadata(to, method, data)
        with self._lock:
            several = self._addresses.has_several(to)
        timeout = min(self._timeout, ELSEWHERE) if several else self._timeout
        begun = call.future(data, timeout=timeout, metadata=metadata)

        def note_met(ended: Any) -> None:
            if framing.is_answered(ended):
                self._met.add(to)

        begun.add_done_callback(note_met)
        return begun

    # --- payloads -----------------------------------------------------------------

    def _put(self, to: str, message: PutBlock) -> Any:
        """Sends a block; after a break it continues where the server's bytes end."""
        offset = 0
        if len(message.payload) > ASK_FROM and to not in self._taking:
            asked = self._ask(to, message)
            if asked.have is None:
                return asked
            offset = asked.have
        while True:
            try:
                reply = self._put_from(to, message, offset)
                self._taking.add(to)
            except Exception as error:
                self._taking.discard(to)
                if not _is_resumable(self._to_error(error, to)):
                    raise
                reply = self._ask(to, message)
                if reply.have is not None and reply.have <= offset:
                    raise
            if not isinstance(reply, Stored) or reply.have is None:
                return reply
            offset = reply.have

    def _ask(self, to: str, message: PutBlock) -> Stored:
        reply = self.call(to, AskBlock(message.header)).result()
        if not isinstance(reply, Stored):
            raise InternalError(f"{to} answered with a {type(reply).__name__}")
        return reply

    def _put_from(self, to: str, message: PutBlock, offset: int) -> Any:
        envelope = encode(dataclasses.replace(message, offset=offset))
        metadata = self._metadata(to, framing.PUT, envelope)
        method: Any = self._channel(to).stream_unary(framing.PUT)
        rest = memoryview(message.payload)[offset:]
        pieces = itertools.chain((framing.frame_head(envelope, len(rest)),), framing.pieces(rest))
        return decode(method(pieces, timeout=PAYLOAD_SECONDS, metadata=metadata))

    def _get(self, to: str, message: GetBlock | GetSum) -> Any:
        """Fetches a payload; after a break it continues where the received bytes end."""
        name = (to, encode(message))
        with self._lock:
            here = self._halves.pop(name, None) or framing.PartialPayload()
        while True:
            before = here.have
            try:
                return self._get_from(to, message, here)
            except Exception as error:
                failed = self._to_error(error, to)
                later = isinstance(failed, Busy)
                if not later and not _is_resumable(failed):
                    raise
                if later or here.have <= before:
                    with self._lock:
                        self._halves[name] = here
                        while len(self._halves) > PAYLOADS_AT_ONCE:
                            del self._halves[next(iter(self._halves))]
                    raise

    def _get_from(self, to: str, message: GetBlock | GetSum, here: framing.PartialPayload) -> Any:
        offset = here.have
        envelope = encode(dataclasses.replace(message, offset=offset))
        metadata = self._metadata(to, framing.GET, envelope)
        method: Any = self._channel(to).unary_stream(framing.GET)
        stream = method(envelope, timeout=PAYLOAD_SECONDS, metadata=metadata)
        try:
            answer, rest, begin = framing.open_frame(next(stream, b""))
            reply, length = decode(answer), offset + rest
            if not isinstance(reply, Payload):
                raise InternalError(f"{to} answered with a {type(reply).__name__}")
            if length > PAYLOAD_LIMIT:
                raise Oversized(f"{to} announces {length} bytes, more than {PAYLOAD_LIMIT}")
            here.begin(reply.digest, length, self._buffers)
            if here.have != offset:
                raise Unreachable(f"{to} replaced the payload during this download: ask anew")
            if begin:
                here.add(begin)
            for piece in stream:
                here.add(piece)
            return dataclasses.replace(reply, payload=here.whole())
        finally:
            stream.cancel()

    def _subscribe(self, message: Subscribe) -> Any:
        envelope = encode(message)
        metadata = self._metadata(COORDINATOR, framing.WATCH, envelope)
        call: Any = self._channel(COORDINATOR).unary_stream(framing.WATCH)
        return call(envelope, metadata=metadata)

    def _to_error(self, error: Exception, to: str) -> Exception:
        """Turns an error of a call into a SecurepsError; returns limits and our bugs unchanged.

        These end the process: at a limit gRPC may have lost a thread and never answer, and after a
        bug other parties would wait in vain.
        """
        if name_limit(error):
            return error
        if isinstance(error, grpc.RpcError):
            failed = framing.read_error(error, self._name_server(to), to in self._met)
            self._dial_next(to, failed)
            return failed
        if isinstance(error, ValueError | grpc.FutureCancelledError):
            # gRPC raises these if `locate` or `close` closed the channel
            return Unreachable(f"the connection to {to} was closed")
        return error

    def _name_server(self, to: str) -> str:
        address = self._addresses.address(to)
        return to if address is None else f"{to} at {address}{self._ways.get(address, '')}"

    def _settle(self, future: Future[Any], result: Any) -> None:
        with self._lock:
            known = future in self._pending
            self._pending.discard(future)
        if known:
            settle(future, result)


def _is_resumable(error: Exception) -> bool:
    return isinstance(error, Unreachable) and error.retry_after is not None


class _Watch:
    def __init__(
        self,
        deliver: Deliver,
        lost: Callable[[SecurepsError], None],
        subscribe: Callable[[], Any],
    ) -> None:
        self._deliver, self._lost, self._subscribe = deliver, lost, subscribe
        self._lock = threading.Lock()
        self._call: Any = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def cancel(self) -> None:
        self.over.set()
        self.drop()

    def drop(self) -> None:
        with self._lock:
            call = self._call
        if call is not None:
            call.cancel()

    def join(self) -> None:
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        error = self._deliver_all()
        if not self.over.is_set():
            self.over.set()
            self._lost(error)

    def _deliver_all(self) -> SecurepsError:
        """Delivers all orders of a stream; returns the error that ended it."""
        try:
            call = self._subscribe()
            with self._lock:
                self._call = call
                if self.over.is_set():  # `cancel` came before the call existed
                    call.cancel()
            for data in call:
                if self.over.is_set():
                    break
                for order in framing.unbundle(data):
                    self._deliver(decode(order))
            error: SecurepsError = Unreachable("the coordinator ended the stream")
        except grpc.RpcError as failure:
            error = framing.read_error(failure, COORDINATOR)
        except ValueError:
            error = Unreachable("the connection to the coordinator was closed")
        except Exception as failure:
            if name_limit(failure):
                raise  # as in `_to_error`: it ends the process
            error = error_for_sender(failure)
        if self._call is not None:
            self._call.cancel()
        return error
