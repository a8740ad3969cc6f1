"""The executor: runs any machine over a transport, a loop, a journal and its hands.

Events are handled one at a time; the records of all events that waited together go into
the journal in one transaction (group commit) before any of their effects is performed.
What must not live here: any knowledge of a role or of a message beyond payloads.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from secureps.errors import InternalError, Malformed, PeerError, SecurepsError
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import Payload, PutBlock, Subscribe
from secureps.roles.machine import (
    COORDINATOR,
    HANDS,
    Answer,
    Answered,
    Call,
    Failed,
    Halt,
    Locate,
    Machine,
    Order,
    Say,
    Step,
    Tick,
    Unwatched,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.service.logs import tell
from secureps.service.narrator import facts, told
from secureps.service.surroundings import Surroundings
from secureps.store.journal import Journal

PAYLOADS_IN_FLIGHT = 4
"""Calls with a payload that a party has open at a time."""

LONGEST_BACKOFF = 5.0
"""Seconds between two tries, at most."""


class Hands(Protocol):
    """What a role does outside its machine: long work, and everything with payloads."""

    def work(self, task: Any) -> Any:
        """Does a task; returns the event that reports its end, or None."""

    def keep(self, request: Any, payload: bytes) -> None:
        """Checks and stores the payload that came with a PutBlock or answers a request."""

    def fetch(self, key: str) -> bytes:
        """The payload that a machine named by `key`."""

    def seconds(self, task: Any) -> float:
        """How long a task takes in virtual time."""


@dataclasses.dataclass(slots=True)
class _Event:
    sender: str
    event: Any
    answer: Future[Any] | None = None


class Executor:
    """Performs one machine. An `Endpoint`: servers hand requests to it.

    `halted` is done when the machine says so (its result is the Halt) or when something
    went wrong that must not go on (its exception).
    """

    def __init__(
        self,
        party: str,
        machine: Machine,
        journal: Journal,
        around: Surroundings,
        hands: Hands,
    ) -> None:
        self.halted: Future[Halt] = Future()
        self._party = party
        self.machine = machine
        self._journal = journal
        self._transport = around.transport
        self._loop = around.loop
        self._jitter = around.jitter
        self._meter = around.meter
        self.hands = hands
        self._inbox: deque[_Event] = deque()
        self._draining = False
        self._watchers: dict[str, Callable[[Any], None]] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self._flying = 0
        self._tick: float | None = None
        self._cancel_watch: Callable[[], None] | None = None

    # --- life ---------------------------------------------------------------------

    def start(self) -> None:
        """Folds the journal and resumes; the first thing on the loop."""
        self._loop.call_later(0.0, self._guarded(self._start))

    def _start(self) -> None:
        for at, record in self._journal.replay():
            self.machine.apply(at, record)
        step = self.machine.resume(self._loop.now())
        self._commit([(_Event(self._party, None), step)])

    def stop(self) -> None:
        """Performs nothing any more: as if the process had died, but for its open files."""
        if not self.halted.done():
            self.halted.set_result(Halt("stopped"))
        if self._cancel_watch is not None:
            self._cancel_watch()

    def _fail(self, error: BaseException) -> None:
        if not self.halted.done():
            self.halted.set_exception(error)

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """An action of this party on the loop: nothing after a halt, and no error gets lost."""

        def guarded() -> None:
            if self.halted.done():
                return
            try:
                action()
            except Exception as error:
                self._fail(error)

        return guarded

    # --- Endpoint -----------------------------------------------------------------

    def request(self, sender: str, message: Any) -> Future[Any]:
        """A request of another party; may be called from any thread."""
        answer: Future[Any] = Future()
        self._meter.asked(message, answer)
        action = partial(self._admit, sender, message, answer)
        self._loop.call_later(0.0, self._guarded(action))
        return answer

    def subscribe(
        self, sender: str, message: Subscribe, deliver: Callable[[Any], None]
    ) -> Callable[[], None]:
        """Opens a stream of orders to `sender`; returns what closes it."""

        def begin() -> None:
            self._watchers[sender] = deliver
            self._post(_Event(sender, message))

        def end() -> None:
            if self._watchers.get(sender) is deliver:
                del self._watchers[sender]
                self._post(_Event(sender, Unwatched(sender)))

        self._loop.call_later(0.0, self._guarded(begin))
        return lambda: self._loop.call_later(0.0, self._guarded(end))

    def _admit(self, sender: str, message: Any, answer: Future[Any]) -> None:
        """Payloads are checked and stored by the hands, the machine never sees them."""
        if not isinstance(message, PutBlock):
            self._post(_Event(sender, message, answer))
            return
        bare = dataclasses.replace(message, payload=b"")
        event = _Event(sender, bare, answer)
        try:
            wanted = self.machine.inspect(sender, bare)
        except SecurepsError as error:
            answer.set_exception(error)
            return
        if not wanted:
            self._post(event)
            return
        kept = self._loop.offload(partial(self.hands.keep, bare, message.payload), 0.0)
        kept.add_done_callback(lambda done: self._later(partial(self._kept, event, done)))

    def _kept(self, event: _Event, done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            self._post(event)
        elif isinstance(error, SecurepsError):
            assert event.answer is not None
            event.answer.set_exception(error)
        else:
            raise error

    # --- events -------------------------------------------------------------------

    def _later(self, action: Callable[[], None]) -> None:
        self._loop.call_later(0.0, self._guarded(action))

    def _post(self, event: _Event) -> None:
        self._inbox.append(event)
        if not self._draining:
            self._draining = True
            self._later(self._drain)

    def _drain(self) -> None:
        self._draining = False
        now = self._loop.now()
        handled: list[tuple[_Event, Step]] = []
        while self._inbox:
            item = self._inbox.popleft()
            try:
                handled.append((item, self.machine.handle(now, item.sender, item.event)))
            except SecurepsError as error:
                self._complain(item, error)
            except Exception as error:
                if item.answer is not None:
                    item.answer.set_exception(InternalError("an internal error; see the log"))
                raise InternalError(
                    f"{self._party} failed at {type(item.event).__name__}"
                ) from error
        self._commit(handled)

    def _complain(self, item: _Event, error: SecurepsError) -> None:
        if item.answer is not None:
            item.answer.set_exception(error)
        else:
            text = f"{type(item.event).__name__}: {error}"
            known = {"error": type(error).__name__}
            tell(self._party, "Complaint", text, logging.WARNING, known)

    def _commit(self, handled: list[tuple[_Event, Step]]) -> None:
        records = [record for _, step in handled for record in step.records]
        if records:
            self._journal.append(self._loop.now(), records)
            self._meter.journalled(records)
            for record in records:
                if (line := told(record)) is not None:
                    tell(self._party, type(record).__name__, line, fields=facts(record))
        self._meter.stands(self.machine, self._loop.now())
        for item, step in handled:
            for effect in step.effects:
                self._perform(item, effect)
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        wake = self.machine.wake()
        if wake is None or (self._tick is not None and self._tick <= wake):
            return
        self._tick = wake
        self._loop.call_later(wake - self._loop.now(), self._guarded(partial(self._ring, wake)))

    def _ring(self, wake: float) -> None:
        if self._tick == wake:
            self._tick = None
            self._post(_Event(self._party, Tick()))

    # --- effects ------------------------------------------------------------------

    def _perform(self, item: _Event, effect: Any) -> None:
        match effect:
            case Answer(message, attach):
                self._answer(item, message, attach)
            case Order(to, message):
                deliver = self._watchers.get(to)
                if deliver is not None:
                    deliver(message)
            case Call(to, message, attach):
                self._call(to, message, attach, 0)
            case Work(task):
                done = self._loop.offload(partial(self._work, task), self.hands.seconds(task))
                done.add_done_callback(lambda f: self._later(partial(self._worked, task, f)))
            case Locate(party, address):
                self._transport.locate(party, address)
            case Watch():
                self._watch()
            case Say(text):
                tell(self._party, "Say", text)
            case Halt():
                if not self.halted.done():
                    self.halted.set_result(effect)

    def _answer(self, item: _Event, message: Any, attach: str | None) -> None:
        answer = item.answer
        if answer is None:
            return
        if attach is None:
            answer.set_result(message)
            return
        fetched = self._loop.offload(partial(self.hands.fetch, attach), 0.0)

        def finish(done: Future[bytes]) -> None:
            error = done.exception()
            if error is None:
                answer.set_result(dataclasses.replace(message, payload=done.result()))
            else:
                answer.set_exception(InternalError("a stored payload cannot be read"))
                self._later(partial(self._fail, error))

        fetched.add_done_callback(finish)

    def _work(self, task: Any) -> Any:
        """On a worker: nothing is begun for a party that has ended."""
        if self.halted.done():
            return None
        began = self._loop.now()
        try:
            return self.hands.work(task)
        finally:
            self._meter.worked(task, self._loop.now() - began)

    def _worked(self, task: Any, done: Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, SecurepsError):
            self._post(_Event(HANDS, WorkFailed(task, error)))
        elif error is not None:
            raise error
        elif done.result() is not None:
            self._post(_Event(HANDS, done.result()))

    # --- calls --------------------------------------------------------------------

    def _call(self, to: str, message: Any, attach: str | None, tried: int) -> None:
        if attach is None:
            self._dial(to, message, attach, tried, self._ask(to, message))
            return
        self._queue.append(partial(self._send_payload, to, message, attach, tried))
        self._pump()

    def _pump(self) -> None:
        while self._queue and self._flying < PAYLOADS_IN_FLIGHT:
            self._flying += 1
            self._queue.popleft()()

    def _send_payload(self, to: str, message: Any, attach: str, tried: int) -> None:
        fetched = self._loop.offload(partial(self.hands.fetch, attach), 0.0)

        def dial() -> None:
            error = fetched.exception()
            if isinstance(error, KeyError):  # settled and forgotten while it waited
                self._flying -= 1
                self._pump()
                return
            full = dataclasses.replace(message, payload=fetched.result())
            self._dial(to, message, attach, tried, self._ask(to, full))

        fetched.add_done_callback(lambda _: self._later(dial))

    def _ask(self, to: str, message: Any) -> Future[Any]:
        answer = self._transport.call(to, message)
        self._meter.called(message, answer)
        return answer

    def _dial(
        self, to: str, message: Any, attach: str | None, tried: int, future: Future[Any]
    ) -> None:
        came_back = partial(self._came_back, to, message, attach, tried, future)
        future.add_done_callback(lambda _: self._later(came_back))

    def _came_back(
        self, to: str, message: Any, attach: str | None, tried: int, future: Future[Any]
    ) -> None:
        if attach is not None:
            self._flying -= 1
            self._pump()
        error = future.exception()
        if isinstance(error, PeerError) and error.retry_after is not None:
            delay = min(LONGEST_BACKOFF, error.retry_after * 1.5 ** min(tried, 12)) * self._jitter()
            self._meter.retried(to)
            if tried in (4, 40, 400):
                text = f"{to}: still trying: {error}"
                known: dict[str, str | int] = {
                    "peer": to,
                    "tried": tried,
                    "error": type(error).__name__,
                }
                tell(self._party, "StillTrying", text, logging.WARNING, known)
            again = partial(self._call, to, message, attach, tried + 1)
            self._loop.call_later(delay, self._guarded(again))
        elif isinstance(error, SecurepsError):
            self._post(_Event(to, Failed(message, error)))
        elif error is not None:
            raise error
        else:
            self._take_in(to, message, future.result())

    def _take_in(self, to: str, request: Any, reply: Any) -> None:
        if not isinstance(reply, Payload):
            self._post(_Event(to, Answered(request, reply)))
            return
        if payload_digest(reply.payload) != reply.digest:
            damaged = Malformed(f"{to} sent a payload that does not have its digest")
            self._post(_Event(to, Failed(request, damaged)))
            return
        kept = self._loop.offload(partial(self.hands.keep, request, reply.payload), 0.0)
        bare = dataclasses.replace(reply, payload=b"")

        def finish() -> None:
            error = kept.exception()
            if isinstance(error, SecurepsError):
                self._post(_Event(to, Failed(request, error)))
            elif error is not None:
                raise error
            else:
                self._post(_Event(to, Answered(request, bare)))

        kept.add_done_callback(lambda _: self._later(finish))

    def _watch(self) -> None:
        if self._cancel_watch is not None:
            self._cancel_watch()
        live = [True]

        def lost(error: SecurepsError) -> None:
            if live[0]:
                live[0] = False
                tell(self._party, "WatchLost", f"the stream of orders broke: {error}")
                again = partial(self._post, _Event(self._party, WatchLost()))
                self._loop.call_later(0.2 * self._jitter(), self._guarded(again))

        def deliver(message: Any) -> None:
            self._later(partial(self._post, _Event(COORDINATOR, message)))

        cancel = self._transport.watch(self.machine.subscription(), deliver, lost)

        def end() -> None:
            live[0] = False
            cancel()

        self._cancel_watch = end


def no_payload(request: Any, payload: bytes) -> None:
    """`Hands.keep` of a role that takes no payloads."""
    raise Malformed(f"no payload is expected with a {type(request).__name__}")
