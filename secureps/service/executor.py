"""The executor: runs any machine over a transport, a loop, a journal and a worker.

Events are handled one at a time; the records of all events that waited together go into
the journal in one transaction (group commit) before any of their effects is performed.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, assert_never

from secureps.crypto.roster import Roster
from secureps.errors import (
    ClientError,
    DiskFailed,
    InternalError,
    KitError,
    Malformed,
    NotReady,
    PeerError,
    SecurepsError,
)
from secureps.exhaustion import exhaustion
from secureps.messages.encoding import payload_digest
from secureps.messages.records import RosterFollowed, RunPinned
from secureps.messages.requests import Payload, PutBlock, Reply, Request, Subscribe
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import (
    WORKER,
    Answer,
    Call,
    CallOff,
    Defer,
    Effect,
    Event,
    Failed,
    Halt,
    Locate,
    Machine,
    Order,
    Record,
    Say,
    Step,
    Task,
    TaskResult,
    Tick,
    Unwatched,
    Viewed,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.service.calls import Calls
from secureps.service.disk_faults import AGAIN_SECONDS, DiskFaults, refused
from secureps.service.environment import Environment
from secureps.service.log_lines import LogLines, facts
from secureps.service.logs import complain, tell
from secureps.service.open_requests import OpenRequests, Reception
from secureps.service.replay import compact_if_due, replayed
from secureps.service.watchers import Watchers
from secureps.service.worker import Worker
from secureps.store.journal import Journal
from secureps.tracebacks import told, where
from secureps.wire.transport import Cancel, Deliver

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class _Event:
    sender: str
    event: Event
    answer: Reception = None


class Executor:
    """Runs one machine; an `Endpoint` for other parties' requests, a `Caller` for its own.

    `halted` ends with the machine's Halt, or with the error after which the party must not go on.
    It has `begun` once it has read its journal. `roster` is the one that its machine goes by, once
    that is another than its kit's.
    """

    def __init__(
        self, party: str, machine: Machine, journal: Journal, around: Environment, worker: Worker
    ) -> None:
        self.halted: Future[Halt] = Future()
        self.run = b""
        self.begun = False
        self.roster: Roster | None = None
        self._party = party
        self.machine = machine
        self._around, self._loop, self._meter = around, around.loop, around.meter
        self._log_lines = LogLines()
        self._journal, self.worker = journal, worker
        self._inbox: deque[_Event] = deque()
        self._draining = False
        self._requests = OpenRequests(party)
        self._settle = self._requests.settle
        self._watchers = Watchers(lambda name: self._post(_Event(name, Unwatched(name))))
        self._troubles = DiskFaults(party)
        self._full: DiskFailed | None = None
        self._unread = False
        self._calls = Calls(party, around, self)
        self._tick: float | None = None
        self._cancel_watch: Callable[[], None] | None = None

    # --- life ---------------------------------------------------------------------

    def start(self) -> None:
        """Replays the journal and resumes the machine, as the first action on the loop."""
        self.later(self._start)

    def _start(self) -> None:
        for record in replayed(self.machine, self._journal):
            if self.halted.done():
                return  # a long journal does not keep a process that is to end
            self._meter.replayed(record)
            self.hear(record)
        self.begun = True
        self._commit([(_Event(self._party, Tick()), self.machine.resume(self._loop.now()))])

    def hear(self, record: Record) -> None:
        """Takes note of a record that is durable, on the loop: of the run and its roster."""
        self._log_lines.hear(record)
        if isinstance(record, RunPinned):
            self.run = record.run.id
            self._around.transport.belong(self.run)
        elif isinstance(record, RosterFollowed):
            self.roster = Roster.from_text(record.text)
            self._watchers.keep_to(self.roster)

    def stop(self) -> None:
        """Stops all effects, as if the process had died, but leaves its files open.

        Whoever waits for an answer, or asks from now on, gets Unreachable at once, and asks again
        when the party is back. May be called from any thread.
        """
        self._halt(Halt("stopped"))
        self._requests.stop()
        if self._cancel_watch is not None:
            self._cancel_watch()

    def _halt(self, end: Halt) -> None:
        with suppress(InvalidStateError):  # the first end counts
            self.halted.set_result(end)

    def fail(self, error: BaseException) -> None:
        """Ends the party with an error; may be called from any thread."""
        with suppress(InvalidStateError):
            self.halted.set_exception(error)

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """Wraps an action on the loop: it is skipped after a halt, and its error ends the party."""

        def guarded() -> None:
            if self.halted.done():
                return
            try:
                action()
            except Exception as error:
                self.fail(error)

        return guarded

    # --- Endpoint -----------------------------------------------------------------

    def request(self, sender: str, message: Request) -> Future[Reply]:
        """Takes a request of another party; may be called from any thread."""
        answer: Future[Reply] = Future()
        self._meter.asked(message, answer)
        if self._requests.begin(answer):
            self.later(partial(self._admit, sender, message, answer))
        return answer

    def subscribe(self, sender: str, message: Subscribe, deliver: Deliver) -> Cancel:
        """Opens a stream of orders to `sender`; returns what closes it.

        A refusal is the last message. If the same party opens another stream, the older one ends
        with an error: the process that had it would wait for ever.
        """

        def begin() -> None:
            self._watchers.begin(sender, deliver)
            self._post(_Event(sender, message))

        self.later(begin)
        return lambda: self.later(partial(self._watchers.end, sender, deliver))

    def _admit(self, sender: str, message: Request, answer: Future[Reply]) -> None:
        """Has the worker check and store a payload, which the machine never sees; then posts it."""
        if not isinstance(message, PutBlock):
            self._post(_Event(sender, message, answer))
            return
        bare = dataclasses.replace(message, payload=b"")
        event = _Event(sender, bare, answer)
        try:
            wanted = self.machine.inspect(sender, bare)
        except SecurepsError as error:
            self._settle(answer, error)
            return
        if not wanted:
            self._post(event)
            return

        def kept(done: Future[Any]) -> None:
            self.later(partial(self._kept, event, done))

        def taken(done: Future[Callable[[], None]]) -> None:
            if done.cancelled() or done.exception() is not None:
                kept(done)
            else:
                self._loop.write(self._alive(done.result())).add_done_callback(kept)

        # In its turn behind works that delete what is known no more: it may be the same block.
        self._beside(partial(self.worker.take, bare, message.payload)).add_done_callback(taken)

    def _kept(self, event: _Event, done: Future[Any]) -> None:
        error = done.exception()
        self._disk("payloads", error)
        if error is None:
            self._post(event)
        elif refused(error):  # not the sender's fault, and not the end of what it sends
            self._settle(event.answer, self._waits(error))
        elif isinstance(error, SecurepsError):
            self._settle(event.answer, error)
        else:
            raise error

    # --- the party's own disk -----------------------------------------------------

    def _waits(self, error: BaseException | None) -> NotReady:
        return NotReady(f"{self._party} waits for its own disk: {error}", AGAIN_SECONDS)

    def _disk(self, what: str, error: BaseException | None) -> None:
        """Notes that the disk failed or worked; exhausted limits of the process end it."""
        if error is not None and exhaustion(error):
            raise error
        if self._troubles.note(what, error):
            self._say_troubles()

    def trouble(self, text: str) -> None:
        """Shows what else is wrong in the status, or that it is over (""); from any thread."""
        self._troubles.beside = text
        self.later(self._say_troubles)

    def hangs(self, text: str) -> None:
        """Hears from the main thread that this party hangs, or goes on ("")."""
        self._meter.hangs(bool(text))
        self._troubles.hangs = text
        self.later(self._say_troubles)

    def _say_troubles(self) -> None:
        for effect in self.machine.troubled(self._troubles.said):
            self._perform(_Event(self._party, Tick()), effect)

    # --- Caller -------------------------------------------------------------------

    def later(self, action: Callable[[], None], delay: float = 0.0) -> None:
        """Runs an action on the loop, guarded; may be called from any thread."""
        self._loop.call_later(delay, self._guarded(action))

    def fetched(self, key: str) -> Future[bytes | memoryview]:
        """Has the worker read a payload; status and log say so while its disk refuses."""
        payload = self._beside(partial(self.worker.fetch, key))
        payload.add_done_callback(self._read)
        return payload

    def _read(self, done: Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if refused(error) or self._unread:
            self._unread = refused(error)
            self.later(partial(self._disk, "reads", error))

    def kept(
        self, request: Request, payload: bytes | memoryview, digest: bytes
    ) -> Future[bytes | None]:
        """Has the worker check and store a payload that answers a request."""
        return self._beside(partial(self.worker.keep, request, payload, digest))

    def heard(self, sender: str, event: Event) -> None:
        """Posts an event for the machine."""
        self._post(_Event(sender, event))

    # --- events -------------------------------------------------------------------

    def _meanwhile(self, event: _Event) -> Reply | SecurepsError:
        """Answers a request while nothing can be journalled: a view, or that it has to wait."""
        try:
            seen = None
            if isinstance(self.machine, Viewed):
                seen = self.machine.view(self._loop.now(), event.sender, event.event)
        except SecurepsError as error:
            return error
        return self._waits(self._full) if seen is None else seen

    def _post(self, event: _Event) -> None:
        if self._full is not None and event.answer is not None:
            self._settle(event.answer, self._meanwhile(event))
            return
        self._inbox.append(event)
        if not self._draining:
            self._draining = True
            self.later(self._drain)

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
                self._settle(item.answer, InternalError("an internal error; see the log"))
                kind = type(item.event).__name__
                raise InternalError(
                    f"{self._party} failed at {kind}: {told(error)} ({where(error)})"
                ) from error
        self._commit(handled)

    def _complain(self, item: _Event, error: SecurepsError) -> None:
        if item.answer is not None:
            self._settle(item.answer, error)
        elif isinstance(item.event, Subscribe):
            self._watchers.refuse(item.sender, error)
        else:
            complain(self._party, item.event, error)

    def _commit(self, handled: list[tuple[_Event, Step]]) -> None:
        records = [record for _, step in handled for record in step.records]
        if records:
            try:
                self._journal.append(self._loop.now(), records)
            except DiskFailed as error:
                self._draining = True  # no effect before it is durable, and no later event first
                self._full = error
                self._disk("journal", error)
                for item in (*(item for item, _ in handled), *self._inbox):
                    self._settle(item.answer, self._waits(error))
                self.later(partial(self._commit_again, handled), AGAIN_SECONDS)
                return
            self._full = None
            self._disk("journal", None)
            self._meter.journalled(records)
            for record in records:
                self.hear(record)
                if (line := self._log_lines.told(record)) is not None:
                    tell(self._party, type(record).__name__, line, fields=facts(record))
        self._meter.stands(self.machine, self._loop.now())
        self._act(handled)
        self._schedule_tick()
        self._compact()

    def _compact(self) -> None:
        """Compacts the journal if it has grown; all that the machine has folded is in it."""
        compact_if_due(self._party, self.machine, self._journal)

    def _act(self, handled: list[tuple[_Event, Step]]) -> None:
        """Performs the effects of what is journalled."""
        for item, step in handled:
            for effect in step.effects:
                self._perform(item, effect)
            if not any(_replies(effect) for effect in step.effects):
                text = f"{self._party} has no answer to a {type(item.event).__name__}"
                self._settle(item.answer, Malformed(text))  # nobody is left waiting

    def _commit_again(self, handled: list[tuple[_Event, Step]]) -> None:
        self._draining = False
        self._commit(handled)
        if self._inbox and not self._draining:
            self._drain()

    def _schedule_tick(self) -> None:
        wake = self.machine.wake()
        if wake is None or (self._tick is not None and self._tick <= wake):
            return
        self._tick = wake
        self.later(partial(self._ring, wake), wake - self._loop.now())

    def _ring(self, wake: float) -> None:
        if self._tick == wake:
            self._tick = None
            self._post(_Event(self._party, Tick()))

    # --- effects ------------------------------------------------------------------

    def _perform(self, item: _Event, effect: Effect) -> None:
        match effect:
            case Answer(message, attach, ticket):
                for answer in self._requests.deferred(ticket) if ticket else (item.answer,):
                    self._answer(item, answer, message, attach)
            case Defer(ticket):
                self._requests.defer(ticket, item.answer)
            case Order(to, message):
                self._watchers.tell(to, message)
            case Call():
                self._calls.begin(effect)
            case CallOff(to):
                self._calls.call_off(to)
            case Work(task):
                done = self._beside(partial(self._work, task), self.worker.seconds(task))
                done.add_done_callback(lambda f: self.later(partial(self._worked, task, f)))
            case Locate(party, address):
                self._around.transport.locate(party, address)
            case Watch():
                self._watch()
            case Say(text):
                tell(self._party, "Say", text)
            case Halt():
                self._halt(effect)
            case _:
                assert_never(effect)

    def _answer(
        self, item: _Event, answer: Reception, message: Reply | SecurepsError, attach: str | None
    ) -> None:
        if answer is None or attach is None:
            self._settle(answer, message)
            return

        def finish(done: Future[bytes | memoryview]) -> None:
            if done.cancelled() or self.halted.done():
                return  # `stop` has answered, or will
            if (error := done.exception()) is None:
                assert isinstance(message, Payload)
                payload = done.result()  # of differences no digest was known
                self._settle(answer, Payload(message.digest or payload_digest(payload), payload))
            elif isinstance(error, PeerError):
                complain(self._party, item.event, error)
                self._settle(answer, error)
            elif refused(error):
                self._settle(answer, self._waits(error))
            else:
                self._settle(answer, InternalError("a stored payload cannot be read"))
                self.later(partial(self.fail, error))

        self.fetched(attach).add_done_callback(finish)

    def _beside(self, action: Callable[[], T], seconds: float = 0.0) -> Future[T]:
        """Has the worker do something."""
        return self._loop.offload(self._alive(action), seconds)

    def _alive(self, action: Callable[[], T]) -> Callable[[], T]:
        """Wraps an action beside the loop: nothing is begun for a party that has ended."""

        def begin() -> T:
            if self.halted.done():
                raise self._requests.gone()
            return action()

        return begin

    def _work(self, task: Task) -> TaskResult | None:
        began, result = self._loop.now(), None
        try:
            return (result := self.worker.work(task))
        finally:
            self._meter.worked(task, self._loop.now() - began, result)

    def _worked(self, task: Task, done: Future[TaskResult | None]) -> None:
        error = done.exception()
        self._disk(type(task).__name__, error)
        if refused(error):
            again = partial(self._perform, _Event(self._party, Tick()), Work(task))
            self.later(again, AGAIN_SECONDS)
        elif isinstance(error, SecurepsError):
            self._post(_Event(WORKER, WorkFailed(task, error)))
        elif error is not None:
            raise error
        elif (outcome := done.result()) is not None:
            self._post(_Event(WORKER, outcome))

    # --- orders -------------------------------------------------------------------

    def _watch(self) -> None:
        if self._cancel_watch is not None:
            self._cancel_watch()
        live, subscription = [True], self.machine.subscription()

        def lost(error: SecurepsError) -> None:
            if live[0]:
                live[0] = False
                # The same again would be refused again, or taken over again, in turns.
                if isinstance(error, ClientError | KitError):
                    self.later(lambda: self._post(_Event(COORDINATOR, Failed(subscription, error))))
                    return
                tell(self._party, "WatchLost", f"the stream of orders broke: {error}")
                event = _Event(self._party, WatchLost())
                self.later(partial(self._post, event), 0.2 * self._around.jitter())

        def deliver(message: Event) -> None:
            self.later(partial(self._post, _Event(COORDINATOR, message)))

        cancel = self._around.transport.watch(subscription, deliver, lost)

        def end() -> None:
            live[0] = False
            cancel()

        self._cancel_watch = end
        if self._troubles.said:  # whoever is watched now may not have heard
            self._say_troubles()


def _replies(effect: Effect) -> bool:
    """Whether the request that is being handled is answered, or will be."""
    return isinstance(effect, Defer) or (isinstance(effect, Answer) and not effect.ticket)
