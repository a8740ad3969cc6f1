"""The Protocols of parties' connections, and a network inside one process.

A `concurrent.futures.Future` ends with an answer or a SecurepsError.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from secureps.errors import Busy, InternalError, SecurepsError, Unreachable
from secureps.exhaustion import name_limit
from secureps.messages.requests import Subscribe
from secureps.messages.run import COORDINATOR, STANDBY

_LOG = logging.getLogger(__name__)

Deliver = Callable[[Any], None]
Cancel = Callable[[], None]


class Clock(Protocol):
    """Real or virtual time, in seconds; safe to use from any thread."""

    def now(self) -> float: ...

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        """Runs `action` once, `delay` >= 0 seconds from now; equal times keep their order."""


class Endpoint(Protocol):
    """The interface of a server; its methods return at once and are thread-safe."""

    run: bytes
    """Id of the server's run; empty before there is one."""

    def request(self, sender: str, message: Any) -> Future[Any]:
        """Returns the future answer to an authenticated sender's message."""

    def subscribe(self, sender: str, message: Subscribe, deliver: Deliver) -> Cancel:
        """Opens a stream of orders; returns a function that ends it. `deliver` returns at once.

        A SecurepsError in place of an order also ends the stream, and is sent to the watcher.
        """


class Transport(Protocol):
    """A party's connection to the servers."""

    def call(self, to: str, message: Any) -> Future[Any]:
        """Sends a request to a server; never blocks and never raises.

        The future fails with the server's SecurepsError, with Unreachable if there is no
        connection, it breaks, or no answer comes in time, and with Malformed or Oversized if the
        message cannot be sent. After an Unreachable the request may or may not have been performed.
        """

    def watch(
        self, message: Subscribe, deliver: Deliver, lost: Callable[[SecurepsError], None]
    ) -> Cancel:
        """Opens the coordinator's stream of orders, which keeps their sequence.

        `lost` is called once, after the last `deliver`, when the stream ends by itself. The
        returned function (or `close`) ends the stream without `lost`; a `deliver` that has begun
        may still finish.
        """

    def locate(self, party: str, address: str) -> None:
        """Sets a server's address; by default the transport finds the servers itself."""
        return

    def bind_run(self, run: bytes) -> None:
        """Binds the party's later requests to a run, by its id; by default nothing needs it."""
        return

    def close(self) -> None:
        """Ends all watches; open calls fail with Unreachable."""


# --- the network inside one process -----------------------------------------------

DelayOf = Callable[[str, str, Any], float]


def no_delay(sender: str, to: str, message: Any) -> float:
    return 0.0


class InProcessNetwork:
    """Servers and other parties in one process.

    `clock.call_later` delivers everything, so that calls do not recurse and virtual time works.
    `delay` gives the seconds of every message, reply, error and order.
    """

    def __init__(self, clock: Clock, delay: DelayOf = no_delay) -> None:
        self._clock = clock
        self._delay = delay
        self._lock = threading.RLock()  # a clock may deliver at once
        self._endpoints: dict[str, Endpoint] = {}
        self._links: dict[_Call | _Stream, None] = {}
        self._own: dict[str, dict[_Call | _Stream, None]] = {}

    def attach(self, party: str, endpoint: Endpoint) -> None:
        self._endpoints[party] = endpoint

    def detach(self, party: str) -> None:
        """Acts as if a party's process died: its calls fail, and its streams end."""
        served = self._endpoints.pop(party, None) is not None
        error = Unreachable(f"{party} is gone")
        with self._lock:
            own, others = tuple(self._own.get(party, ())), list[_Call | _Stream]()
            if served:  # no party calls a client
                others = [link for link in self._links if link.to == party]
        self._end(own, error, quiet=True)
        self._end(others, error, quiet=False)

    def transport(self, party: str, places: tuple[str, ...] = (COORDINATOR,)) -> Transport:
        """Makes a party's transport; the coordinator is at one of `places`."""
        return _InProcessTransport(self, party, places)

    def _call(self, call: _Call, message: Any) -> None:
        self._begin(call)
        wait = self._delay(call.sender, call.to, message)
        self._clock.call_later(wait, lambda: self._perform(call, message))

    def _perform(self, call: _Call, message: Any) -> None:
        endpoint = self._find_endpoint(call)
        if endpoint is not None:
            ask(endpoint, party_at(call.sender), message, functools.partial(self._reply, call))

    def _reply(self, call: _Call, result: Any) -> None:
        if call not in self._links:
            return  # its server is gone
        self._finish_later(self._delay(call.to, call.sender, result), call, result)

    def _watch(self, stream: _Stream, message: Subscribe) -> None:
        self._begin(stream)
        wait = self._delay(stream.sender, stream.to, message)
        self._clock.call_later(wait, lambda: self._subscribe(stream, message))

    def _subscribe(self, stream: _Stream, message: Subscribe) -> None:
        endpoint = self._find_endpoint(stream)
        if endpoint is None:
            return
        try:
            cancel = endpoint.subscribe(
                stream.sender, message, lambda order: self._order(stream, order)
            )
        except Exception as error:
            self._finish_later(0.0, stream, error_for_sender(error))
            return
        stream.cancel = cancel
        if stream not in self._links:  # the stream ended before `cancel` was set
            cancel()

    def _order(self, stream: _Stream, order: Any) -> None:
        wait = self._delay(stream.to, stream.sender, order)
        with self._lock:
            now = self._clock.now()
            stream.due = max(stream.due, now + wait)
            stream.waiting.append(order)
            self._clock.call_later(max(0.0, stream.due - now), lambda: self._deliver_oldest(stream))

    def _deliver_oldest(self, stream: _Stream) -> None:
        # Always the oldest order, so that rounded times never change the sequence.
        order = stream.waiting.pop(0)
        if isinstance(order, SecurepsError):
            self._finish(stream, order)
        elif stream in self._links:
            stream.deliver(order)

    def _begin(self, link: _Call | _Stream) -> None:
        with self._lock:
            self._links[link] = None
            self._own.setdefault(link.sender, {})[link] = None

    def _find_endpoint(self, link: _Call | _Stream) -> Endpoint | None:
        if link not in self._links:
            return None
        endpoint = self._endpoints.get(link.to)
        if endpoint is None:
            self._finish_later(0.0, link, Unreachable(f"{link.to} is not there"))
        return endpoint

    def _finish_later(self, wait: float, link: _Call | _Stream, result: Any) -> None:
        self._clock.call_later(wait, lambda: self._finish(link, result))

    def _finish(self, link: _Call | _Stream, result: Any) -> None:
        with self._lock:
            known = self._forget(link)
        if known:
            link.finish(result)

    def _forget(self, link: _Call | _Stream) -> bool:
        if link not in self._links:
            return False
        own = self._own[link.sender]
        del self._links[link], own[link]
        if not own:
            del self._own[link.sender]
        return True

    def _end(self, links: Iterable[_Call | _Stream], error: SecurepsError, quiet: bool) -> None:
        """Ends the links that are open; for `quiet` ones `lost` is not called."""
        with self._lock:
            ended = [link for link in links if self._forget(link)]
            for link in ended:
                link.quiet = quiet
        for link in ended:
            self._clock.call_later(0.0, functools.partial(link.finish, error))


class _InProcessTransport(Transport):
    __slots__ = ("_closed", "_network", "_party", "_places")

    def __init__(self, network: InProcessNetwork, party: str, places: tuple[str, ...]) -> None:
        self._network = network
        self._party = party
        self._places = places
        self._closed = False

    def _turn(self, place: str, result: object) -> None:
        """Chooses another place of the coordinator if it was not reached at this one."""
        if isinstance(result, Unreachable) and place == self._places[0]:
            self._places = (*self._places[1:], place)

    def call(self, to: str, message: Any) -> Future[Any]:
        place = self._places[0] if to == COORDINATOR else to
        call = _Call(self, self._party, place)
        if self._closed:
            call.finish(closed_error())
        else:
            call.future.add_done_callback(lambda done: self._turn(place, done.exception()))
            self._network._call(call, message)
        return call.future

    def watch(
        self, message: Subscribe, deliver: Deliver, lost: Callable[[SecurepsError], None]
    ) -> Cancel:
        if self._closed:
            return lambda: None
        place = self._places[0]

        def ended(error: SecurepsError) -> None:
            self._turn(place, error)
            lost(error)

        stream = _Stream(self, self._party, deliver, ended, place)
        self._network._watch(stream, message)
        return lambda: self._network._end((stream,), closed_error(), quiet=True)

    def close(self) -> None:
        self._closed, network = True, self._network
        with network._lock:
            own = [link for link in network._own.get(self._party, ()) if link.owner is self]
        network._end(own, closed_error(), quiet=True)


def party_at(place: str) -> str:
    """Returns the party at a place: a standby speaks as the coordinator."""
    return COORDINATOR if place == STANDBY else place


def start_future() -> Future[Any]:
    """Makes a future that its holder cannot cancel."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(eq=False, slots=True)
class _Call:
    owner: _InProcessTransport
    sender: str
    to: str
    quiet: bool = False
    future: Future[Any] = field(default_factory=start_future)

    def finish(self, result: Any) -> None:
        settle(self.future, result)


@dataclass(eq=False, slots=True)
class _Stream:
    owner: _InProcessTransport
    sender: str
    deliver: Deliver
    lost: Callable[[SecurepsError], None]
    to: str = COORDINATOR
    quiet: bool = False
    cancel: Cancel | None = None
    waiting: list[Any] = field(default_factory=list)
    """Undelivered orders; a list, because a deque would be most of an idle stream's memory."""
    due: float = -math.inf

    def finish(self, error: SecurepsError) -> None:
        if self.cancel is not None:
            self.cancel()
        if not self.quiet:
            self.lost(error)


def closed_error() -> Unreachable:
    return Unreachable("this transport is closed", None)


def settle(future: Future[Any], result: Any) -> None:
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def result_of(done: Future[Any]) -> Any:
    """Returns the answer in an endpoint's future, or the SecurepsError to send back."""
    if done.cancelled():
        return Unreachable("the server stopped before it answered")
    error = done.exception()
    return done.result() if error is None else error_for_sender(error)


EXHAUSTED_SECONDS = 1.0
"""Seconds after which a sender repeats a request that met an exhausted limit."""


def error_for_sender(error: BaseException) -> SecurepsError:
    """Returns a SecurepsError as it is; hides the text of any other error from the sender."""
    known = isinstance(error, SecurepsError)
    # Not an InternalError, for which a client would drop its update.
    if name_limit(error) and (not known or isinstance(error, InternalError)):
        return Busy("no memory, thread or open file is left for this request", EXHAUSTED_SECONDS)
    if isinstance(error, SecurepsError):
        return error
    _LOG.error("a request ended in a bug", exc_info=error)
    return InternalError("a fault of the server's own; its operator's log says more")


def ask(endpoint: Endpoint, sender: str, message: Any, answered: Callable[[Any], object]) -> None:
    """Hands a message to a server; `answered` gets the answer, or the SecurepsError to send."""
    try:
        future = endpoint.request(sender, message)
    except Exception as error:
        answered(error_for_sender(error))
    else:
        future.add_done_callback(lambda done: answered(result_of(done)))
