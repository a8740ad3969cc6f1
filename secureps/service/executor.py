"""The executor runs any role's machine: it journals what the machine decides, then performs it.

Theory of operation. The executor is the same for every role, and the only place where decisions
become I/O. `service.environment` gives it a transport, a loop, a meter and the role's worker. It
handles one event at a time on the loop; payloads and tasks are dealt with beside the loop. `Calls`
repeats this party's requests to servers until they are answered, `Watchers` has the streams of
orders to other parties, and `DiskFaults` what is wrong with the disk.

What happens to one request:

    admitted    `request` and `_admit`: before the worker stores a payload, `Machine.inspect` judges
                its header
    handled     `_drain` gives all waiting events to `Machine.handle`, one after another
    journalled  `_commit` writes their records in one transaction (group commit)
    performed   `_act` and `_perform` answer requests, send orders and calls, and begin tasks
    finished    `_finish_work` gives a task's result to the machine, as another event

What survives a kill is the journal: nothing is said before its record is durable. `_start` folds
the journal (`replay`), and `Machine.resume` says what to do again. `compact_if_due` replaces old
records by the machine's state. Other parties repeat their requests.

Guards. `_accept_reply` checks the type of an answer and the digest of its payload, because a server
may send anything. `_drain` ends the party after a fault of our own, because the machine's state may
have records that the journal lacks. While the disk is full, `_commit` performs nothing and asks
senders to wait; nothing is dropped. If two processes use one kit, `Watchers.begin` ends the older
one's stream. After a halt `_unless_halted` lets no task begin.

Look first at `_perform` for a new effect, `Calls` for retries, and `service.process` for how a
process puts an executor together.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, assert_never

from secureps.crypto.roster import Roster
from secureps.errors import (
    ClientError,
    DamagedStore,
    DiskFailed,
    InternalError,
    KitError,
    Malformed,
    NotReady,
    OperatorError,
    PeerError,
    SecurepsError,
    UnknownParty,
    Unreachable,
)
from secureps.exhaustion import is_disk_fault, name_limit
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import AnyOrder
from secureps.messages.records import RosterFollowed, RunPinned
from secureps.messages.requests import Payload, PutBlock, Reply, Request, Subscribe
from secureps.messages.run import COORDINATOR, Task
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    CallOff,
    Defer,
    Effect,
    Event,
    Failed,
    Foldable,
    Halt,
    Locate,
    Machine,
    Order,
    Record,
    Say,
    Step,
    TaskResult,
    Tick,
    Unfolds,
    Viewed,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.permissions import check_answer
from secureps.service.environment import Environment, Worker
from secureps.service.log_lines import LogLines, log_fields
from secureps.service.logs import complain, tell
from secureps.store.journal import Journal
from secureps.tracebacks import describe_error, find_place
from secureps.wire.transport import Cancel, Deliver, settle

T = TypeVar("T")

PAYLOADS_IN_FLIGHT = 4
"""Calls with a payload that a party has open at a time; they bound its memory."""

AGAIN_SECONDS = 1.0
"""Seconds until a failed disk operation is repeated, and that senders are asked to wait."""

LONGEST_BACKOFF = 5.0

NOTICES = (4, 40, 400)
"""Numbers of failed tries (some seconds, minutes, half an hour) that are logged.

The first wait for each server of more than LONGEST_BACKOFF is logged too.
"""


@dataclasses.dataclass(eq=False, slots=True)
class _Unanswered:
    """An unanswered call, its number of tries, and the time of the last one."""

    call: Call
    tried: int = 0
    dialled: float = 0.0


class Calls:
    """Sends a party's requests to servers, and repeats them until they are answered or refused.

    It sends few payloads at a time; the others queue. It checks a payload in an answer against its
    digest and stores the payload before the machine gets the answer. Used on the party's thread.
    """

    def __init__(self, party: str, around: Environment, caller: Executor) -> None:
        self._party = party
        self._around = around
        self._caller = caller
        self._unanswered: dict[_Unanswered, None] = {}
        self._queue: deque[_Unanswered] = deque()
        self._sending = 0
        self._lost: set[str] = set()
        self._slow: set[str] = set()

    def begin(self, call: Call) -> None:
        self._unanswered[each := _Unanswered(call)] = None
        self._try(each)

    def call_off(self, to: str) -> None:
        """Drops the requests to a server, or sends them to other servers that can answer."""
        for each in list(self._unanswered):
            call = each.call
            rest = tuple(other for other in call.others if other != to)
            if call.to != to:
                each.call = dataclasses.replace(call, others=rest)
                continue
            del self._unanswered[each]
            if rest:
                self.begin(dataclasses.replace(call, to=rest[0], others=rest[1:]))

    def _try(self, each: _Unanswered) -> None:
        if each not in self._unanswered:  # the request was called off
            return
        if each.call.attach is None:
            self._dial(each, each.call.message)
            return
        self._queue.append(each)
        self._pump()

    def _pump(self) -> None:
        while self._queue and self._sending < PAYLOADS_IN_FLIGHT:
            each = self._queue.popleft()
            if each in self._unanswered and each.call.attach is not None:
                self._sending += 1
                self._send_payload(each, each.call.attach)

    def _free_room(self) -> None:
        self._sending -= 1
        self._pump()

    def _send_payload(self, each: _Unanswered, key: str) -> None:
        def dial(fetched: Future[bytes | memoryview]) -> None:
            if each not in self._unanswered:
                self._free_room()
                return
            message, error = each.call.message, fetched.exception()
            if is_disk_fault(error):  # our own disk: retry until the disk works again
                self._free_room()
                self._caller.later(partial(self._try, each), AGAIN_SECONDS)
                return
            if isinstance(error, KeyError):  # the payload was settled meanwhile, or lost
                self._free_room()
                self._report_failure(each, Failed(message, DamagedStore(f"{key} is gone")))
                return
            assert isinstance(message, PutBlock)
            self._dial(each, dataclasses.replace(message, payload=fetched.result()))

        self._when_done(self._caller.fetch(key), dial)

    def _dial(self, each: _Unanswered, message: Request) -> None:
        each.dialled = self._around.loop.now()
        answer = self._around.transport.call(each.call.to, message)
        self._around.meter.on_call(message, answer)
        self._when_done(answer, partial(self._finish, each))

    def _finish(self, each: _Unanswered, future: Future[Reply]) -> None:
        call = each.call
        if call.attach is not None:
            self._free_room()
        error = future.exception()
        if error is not None and not isinstance(error, SecurepsError):
            raise error
        if each not in self._unanswered:
            return
        if isinstance(error, PeerError) and error.retry_after is not None:
            self._retry(each, error, error.retry_after)
            return
        if isinstance(error, UnknownParty) and call.to != COORDINATOR and call.attach is None:
            # The server may follow an older roster: only the coordinator knows whether this party
            # has left. An attached block is different: its author may have been revoked.
            self._retry(each, error, AGAIN_SECONDS)
            return
        self._note_recovery(call.to)
        if error is not None:
            self._report_failure(each, Failed(call.message, error))
        else:
            del self._unanswered[each]
            self._accept_reply(call.to, call.message, future.result())

    def _retry(self, each: _Unanswered, error: PeerError | UnknownParty, seconds: float) -> None:
        call, tried = each.call, each.tried
        self._around.meter.on_retry(call.to)
        waited = self._around.loop.now() - each.dialled
        long = max(seconds, waited) > LONGEST_BACKOFF and call.to not in self._slow
        if tried in NOTICES or long:
            self._notice(call.to, tried, error)
        if long:
            self._slow.add(call.to)
        delay = min(LONGEST_BACKOFF, seconds * 1.5 ** min(tried, 12))
        if call.others and isinstance(error, Unreachable | NotReady):
            # A server that is not ready may have lost its disk, and wait for the others itself.
            next, *rest = call.others
            each.call = dataclasses.replace(call, to=next, others=(*rest, call.to))
        each.tried += 1
        self._caller.later(partial(self._try, each), delay * self._around.jitter())

    def _report_failure(self, each: _Unanswered, event: Failed) -> None:
        del self._unanswered[each]
        self._caller.post(each.call.to, event)

    def _when_done(self, future: Future[T], action: Callable[[Future[T]], None]) -> None:
        """Runs an action on the party's thread when a future ends.

        The action must not refer to the future: the reference cycle would keep the payload in
        memory until a garbage collection.
        """
        future.add_done_callback(lambda done: self._caller.later(partial(action, done)))

    def _notice(self, to: str, tried: int, error: PeerError | UnknownParty) -> None:
        if isinstance(error, Unreachable):
            self._lost.add(to)
        known: dict[str, str | int] = {"peer": to, "tried": tried, "error": type(error).__name__}
        tell(self._party, "StillTrying", f"{error}; still trying", logging.WARNING, known)

    def _note_recovery(self, to: str) -> None:
        if to in self._lost:
            self._lost.discard(to)
            tell(self._party, "BackAgain", f"{to} answers again", logging.INFO, {"peer": to})

    def _accept_reply(self, to: str, request: Request, reply: Reply) -> None:
        try:
            check_answer(to, request, reply)  # a server may send anything, also other messages
        except Malformed as error:
            self._caller.post(to, Failed(request, error))
            return
        if not isinstance(reply, Payload):
            self._caller.post(to, Answered(request, reply))
            return
        # This finds damage on the way. The machine compares the digest itself with its records.
        if payload_digest(reply.payload) != reply.digest:
            damaged = Malformed(f"{to} sent a payload that does not have its digest")
            self._caller.post(to, Failed(request, damaged))
            return
        kept = self._caller.store(request, reply.payload, reply.digest)
        length = len(reply.payload)

        def finish(kept: Future[bytes | None]) -> None:
            error = kept.exception()
            if is_disk_fault(error):  # our own disk: retry until the disk works again
                again = partial(self._accept_reply, to, request, reply)
                self._caller.later(again, AGAIN_SECONDS)
            elif isinstance(error, SecurepsError):
                self._caller.post(to, Failed(request, error))
            elif error is not None:
                raise error
            else:
                bare = Payload(kept.result() or reply.digest)
                self._caller.post(to, Answered(request, bare, length))

        self._when_done(kept, finish)


def replay(machine: Machine, journal: Journal) -> Iterator[Record]:
    """Applies a journal's fold and records to a machine; yields each applied record."""
    fold = journal.fold
    if fold is not None:
        if not isinstance(machine, Unfolds):
            raise DamagedStore("its journal was compacted, and this party compacts none")
        machine.unfold(fold)
        yield from fold.records
    for at, record in journal.replay():
        machine.apply(at, record)
        yield record


def compact_if_due(party: str, machine: Machine, journal: Journal) -> None:
    """Compacts a journal that has grown enough; logs if the disk refuses. Raises DamagedStore.

    All records that the machine has applied must be in the journal.
    """
    if not journal.is_due or not isinstance(machine, Foldable):
        return
    try:
        journal.compact(machine.make_fold())
    except DamagedStore:
        raise
    except OperatorError as error:
        tell(party, "Complaint", f"its journal is not compacted: {error}", logging.WARNING)


class Watchers:
    """The streams of orders to watching parties; `ended` is called for each closed stream."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._streams: dict[str, Deliver] = {}
        self._ended = ended

    def begin(self, party: str, deliver: Deliver) -> None:
        """Opens a stream, and ends the party's older one, whose watcher would wait for ever."""
        if (older := self._streams.get(party)) is not None:
            text = f"another process with {party}'s kit has taken its orders over: a kit is "
            older(KitError(f"{text}for one process at a time, end one of them"))
        self._streams[party] = deliver

    def end(self, party: str, deliver: Deliver) -> None:
        """Drops a stream that its watcher closed, unless a newer stream has replaced it."""
        if self._streams.get(party) is deliver:
            del self._streams[party]
            self._ended(party)

    def refuse(self, party: str, error: SecurepsError) -> None:
        if (deliver := self._streams.pop(party, None)) is not None:
            deliver(error)
            self._ended(party)

    def keep_to(self, roster: Roster) -> None:
        for party in [name for name in self._streams if name not in roster]:
            self.refuse(party, UnknownParty(f"{party} is on the roster no more"))

    def tell(self, party: str, order: AnyOrder) -> None:
        if (deliver := self._streams.get(party)) is not None:
            deliver(order)


Reception = Future[Reply] | None
"""The future that answers a request; None for an event that is no request."""


class DiskFaults:
    """The faults of a party's own disk, for log and status; for the party's thread.

    `beside` describes other trouble, and `hangs` an event or disk access that does not end.
    """

    def __init__(self, party: str) -> None:
        self._party = party
        self._known: dict[str, str] = {}
        self.beside = self.hangs = ""

    @property
    def text(self) -> str:
        return "; ".join(dict.fromkeys(self._known.values()))

    @property
    def said(self) -> str:
        """The text for status, to follow the party's name."""
        own = f"waits for its own disk: {self.text}" if self._known else ""
        return "; ".join(filter(None, (self.hangs, own, self.beside)))

    def note(self, what: str, error: BaseException | None) -> bool:
        """Notes that the disk failed or (None) did `what`; returns whether the text changed."""
        before = self.text
        if is_disk_fault(error):
            self._known[what] = str(error)
        else:
            self._known.pop(what, None)
        if self.text == before:
            return False
        if self.text:
            line = f"{self.text}: the disk of this process refuses; trying again until it works"
            tell(self._party, "Trouble", line, logging.WARNING, {"error": type(error).__name__})
        else:
            tell(self._party, "TroubleOver", "the disk works again; nothing was lost")
        return True


@dataclasses.dataclass(slots=True)
class _Event:
    sender: str
    event: Event
    answer: Reception = None


class Executor:
    """Runs one machine; an `Endpoint` for other parties' requests.

    `halted` ends with the machine's Halt, or with the error that ended the party. `begun` is true
    once the journal is read. `roster` is the newest that the machine follows; None: the kit's.
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
        self._open: set[Future[Reply]] = set()
        """The unanswered requests of other parties."""
        self._stopped = False
        self._deferred: dict[str, list[Reception]] = {}
        """By ticket, the requests that are answered after a later event."""
        self._watchers = Watchers(lambda name: self._post(_Event(name, WatchLost())))
        self._troubles = DiskFaults(party)
        self._full: DiskFailed | None = None
        self._unread = False
        self._calls = Calls(party, around, self)
        self._tick: float | None = None
        self._cancel_watch: Callable[[], None] | None = None

    # --- life ---------------------------------------------------------------------

    def start(self) -> None:
        self.later(self._start)

    def _start(self) -> None:
        for record in replay(self.machine, self._journal):
            if self.halted.done():
                return  # a process that has to end does not read a long journal first
            self._meter.on_replay(record)
            self.hear(record)
        self.begun = True
        self._commit([(_Event(self._party, Tick()), self.machine.resume(self._loop.now()))])

    def hear(self, record: Record) -> None:
        """Learns the run and its roster from a durable record; called on the loop."""
        self._log_lines.hear(record)
        if isinstance(record, RunPinned):
            self.run = record.run.id
            self._around.transport.bind_run(self.run)
        elif isinstance(record, RosterFollowed):
            self.roster = Roster.from_text(record.text)
            self._watchers.keep_to(self.roster)

    def stop(self) -> None:
        """Stops all effects, as if the process had died, but leaves its files open; thread-safe.

        Present and later requests get Unreachable at once; their senders repeat them.
        """
        self._halt(Halt("stopped"))
        self._stopped = True
        for answer in tuple(self._open):
            self._settle(answer, self._stopping_error())
        if self._cancel_watch is not None:
            self._cancel_watch()

    def _halt(self, end: Halt) -> None:
        with suppress(InvalidStateError):  # the first end counts
            self.halted.set_result(end)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.halted.set_exception(error)

    def _guard(self, action: Callable[[], None]) -> Callable[[], None]:
        """Wraps an action on the loop: a halt skips it, and its error ends the party."""

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
        answer: Future[Reply] = Future()
        self._meter.on_request(message, answer)
        answer.add_done_callback(self._open.discard)
        self._open.add(answer)
        if self._stopped:  # checked after it is open: `stop` answers those that were open before
            self._settle(answer, self._stopping_error())
        self.later(partial(self._admit, sender, message, answer))
        return answer

    def _settle(self, answer: Reception, result: Reply | SecurepsError) -> None:
        """Answers a request, unless it is answered already; thread-safe."""
        if answer is not None:
            with suppress(InvalidStateError):
                settle(answer, result)

    def _stopping_error(self) -> Unreachable:
        return Unreachable(f"{self._party} is stopping")

    def subscribe(self, sender: str, message: Subscribe, deliver: Deliver) -> Cancel:
        """Opens a stream of orders to `sender`; returns a function that closes the stream."""

        def begin() -> None:
            self._watchers.begin(sender, deliver)
            self._post(_Event(sender, message))

        self.later(begin)
        return lambda: self.later(partial(self._watchers.end, sender, deliver))

    def _admit(self, sender: str, message: Request, answer: Future[Reply]) -> None:
        """Posts a request to the machine, after the worker has stored its payload, if any."""
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
            self.later(partial(self._finish_storing, event, done))

        def taken(done: Future[Callable[[], None]]) -> None:
            if done.cancelled() or done.exception() is not None:
                kept(done)
            else:
                self._loop.write(self._unless_halted(done.result())).add_done_callback(kept)

        # The worker takes it after earlier deletions, one of which may be of the same block.
        self._offload(partial(self.worker.take, bare, message.payload)).add_done_callback(taken)

    def _finish_storing(self, event: _Event, done: Future[Any]) -> None:
        error = done.exception()
        self._note_disk("payloads", error)
        if error is None:
            self._post(event)
        elif is_disk_fault(error):  # not the sender's fault: the sender tries again
            self._settle(event.answer, self._not_ready(error))
        elif isinstance(error, SecurepsError):
            self._settle(event.answer, error)
        else:
            raise error

    # --- the party's own disk -----------------------------------------------------

    def _not_ready(self, error: BaseException | None) -> NotReady:
        return NotReady(f"{self._party} waits for its own disk: {error}", AGAIN_SECONDS)

    def _note_disk(self, what: str, error: BaseException | None) -> None:
        """Notes that the disk failed or worked; raises at an exhausted limit of the process."""
        if error is not None and name_limit(error):
            raise error
        if self._troubles.note(what, error):
            self._say_troubles()

    def trouble(self, text: str) -> None:
        """Shows other trouble in the status; "" ends it. Thread-safe."""
        self._troubles.beside = text
        self.later(self._say_troubles)

    def hangs(self, text: str) -> None:
        """Shows in the status why this party hangs; "" says that the party works again."""
        self._meter.on_hang(bool(text))
        self._troubles.hangs = text
        self.later(self._say_troubles)

    def _say_troubles(self) -> None:
        for effect in self.machine.report_trouble(self._troubles.said):
            self._perform(_Event(self._party, Tick()), effect)

    # --- its own requests -----------------------------------------------------------

    def later(self, action: Callable[[], None], delay: float = 0.0) -> None:
        """Runs an action on the loop, guarded; may be called from any thread."""
        self._loop.call_later(delay, self._guard(action))

    def fetch(self, key: str) -> Future[bytes | memoryview]:
        """Has the worker read a payload; status and log tell while the disk refuses."""
        payload = self._offload(partial(self.worker.fetch, key))
        payload.add_done_callback(self._note_read)
        return payload

    def _note_read(self, done: Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if is_disk_fault(error) or self._unread:
            self._unread = is_disk_fault(error)
            self.later(partial(self._note_disk, "reads", error))

    def store(
        self, request: Request, payload: bytes | memoryview, digest: bytes
    ) -> Future[bytes | None]:
        return self._offload(partial(self.worker.keep, request, payload, digest))

    def post(self, sender: str, event: Event) -> None:
        self._post(_Event(sender, event))

    # --- events -------------------------------------------------------------------

    def _answer_while_full(self, event: _Event) -> Reply | SecurepsError:
        """Answers a request while the disk is full: by a view, or by asking to wait."""
        try:
            seen = None
            if isinstance(self.machine, Viewed):
                seen = self.machine.view(self._loop.now(), event.sender, event.event)
        except SecurepsError as error:
            return error
        return self._not_ready(self._full) if seen is None else seen

    def _post(self, event: _Event) -> None:
        if self._full is not None and event.answer is not None:
            self._settle(event.answer, self._answer_while_full(event))
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
            except Exception as error:
                # After our own fault the state may have records that the journal lacks: stop.
                if isinstance(error, SecurepsError) and not isinstance(error, InternalError):
                    self._complain(item, error)
                    continue
                self._settle(item.answer, InternalError("an internal error; see the log"))
                kind = type(item.event).__name__
                raise InternalError(
                    f"{self._party} failed at {kind}: {describe_error(error)} ({find_place(error)})"
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
                self._draining = True  # no effect and no later event before this is durable
                self._full = error
                self._note_disk("journal", error)
                for item in (*(item for item, _ in handled), *self._inbox):
                    self._settle(item.answer, self._not_ready(error))
                self.later(partial(self._retry_commit, handled), AGAIN_SECONDS)
                return
            self._full = None
            self._note_disk("journal", None)
            self._meter.on_records(records)
            for record in records:
                self.hear(record)
                if (line := self._log_lines.line(record)) is not None:
                    tell(self._party, type(record).__name__, line, fields=log_fields(record))
        self._meter.on_state(self.machine, self._loop.now())
        self._act(handled)
        self._schedule_tick()
        self._compact()

    def _compact(self) -> None:
        compact_if_due(self._party, self.machine, self._journal)

    def _act(self, handled: list[tuple[_Event, Step]]) -> None:
        for item, step in handled:
            for effect in step.effects:
                self._perform(item, effect)
            if not any(_settles_request(effect) for effect in step.effects):
                text = f"{self._party} has no answer to a {type(item.event).__name__}"
                self._settle(item.answer, Malformed(text))  # the sender must not wait for ever

    def _retry_commit(self, handled: list[tuple[_Event, Step]]) -> None:
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
                for answer in self._deferred.pop(ticket, ()) if ticket else (item.answer,):
                    self._answer(item, answer, message, attach)
            case Defer(ticket):
                self._deferred.setdefault(ticket, []).append(item.answer)
            case Order(to, message):
                self._watchers.tell(to, message)
            case Call():
                self._calls.begin(effect)
            case CallOff(to):
                self._calls.call_off(to)
            case Work(task):
                done = self._offload(partial(self._work, task), self.worker.seconds(task))
                done.add_done_callback(lambda f: self.later(partial(self._finish_work, task, f)))
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
                return  # `stop` answers it
            if (error := done.exception()) is None:
                assert isinstance(message, Payload)
                payload = done.result()  # differences come without a digest
                self._settle(answer, Payload(message.digest or payload_digest(payload), payload))
            elif isinstance(error, PeerError):
                complain(self._party, item.event, error)
                self._settle(answer, error)
            elif is_disk_fault(error):
                self._settle(answer, self._not_ready(error))
            else:
                self._settle(answer, InternalError("a stored payload cannot be read"))
                self.later(partial(self.fail, error))

        self.fetch(attach).add_done_callback(finish)

    def _offload(self, action: Callable[[], T], seconds: float = 0.0) -> Future[T]:
        return self._loop.offload(self._unless_halted(action), seconds)

    def _unless_halted(self, action: Callable[[], T]) -> Callable[[], T]:
        """Wraps an action that runs beside the loop: after a halt it does not begin."""

        def begin() -> T:
            if self.halted.done():
                raise self._stopping_error()
            return action()

        return begin

    def _work(self, task: Task) -> TaskResult | None:
        began, result = self._loop.now(), None
        try:
            return (result := self.worker.work(task))
        finally:
            self._meter.on_work(task, self._loop.now() - began, result)

    def _finish_work(self, task: Task, done: Future[TaskResult | None]) -> None:
        error = done.exception()
        self._note_disk(type(task).__name__, error)
        if is_disk_fault(error):
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
                # After a refusal, tell the machine instead of subscribing again, because the next
                # subscription would be refused too. Two processes with one kit would otherwise take
                # the stream from each other endlessly.
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
        if self._troubles.said:  # a coordinator that started anew has not heard of them
            self._say_troubles()


def _settles_request(effect: Effect) -> bool:
    return isinstance(effect, Defer) or (isinstance(effect, Answer) and not effect.ticket)
