"""Sends a party's requests to servers, and tries again until they are answered or refused.

Few payloads are under way at a time, and the others queue; a payload in an answer is checked
against its digest and stored before the machine gets the answer.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from secureps.errors import (
    DamagedStore,
    Malformed,
    NotReady,
    PeerError,
    SecurepsError,
    UnknownParty,
    Unreachable,
)
from secureps.exhaustion import is_disk_fault
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import Payload, PutBlock, Reply, Request
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import BlockHeader
from secureps.roles.machine import Answered, Call, Event, Failed
from secureps.roles.permissions import check_answer
from secureps.service.environment import Environment
from secureps.service.logs import tell

T = TypeVar("T")

PAYLOADS_IN_FLIGHT = 4
"""Calls with a payload that a party has open at a time: they bound its memory."""

SMALL_IN_FLIGHT, SMALL_BYTES = 64, 1 << 16
"""As many with what others have sent, and a shard passes on, while all have so few bytes.

A row-block that moves brings hundreds of small ones: a few at a time would queue anew behind all
else on a link that is busy, each time.
"""

AGAIN_SECONDS = 1.0
"""Seconds until a disk that refused is tried once more, and that a sender is asked to wait."""

LONGEST_BACKOFF = 5.0
"""The most seconds between two tries."""

NOTICES = (4, 40, 400)
"""Numbers of failed tries (a few seconds, minutes, half an hour) at which the log says so.

Of each server it says at once, too, the first wait of more than LONGEST_BACKOFF, for another try
or for an answer that did not come.
"""


class Caller(Protocol):
    """The party whose requests `Calls` sends."""

    def later(self, action: Callable[[], None], delay: float = 0.0) -> None:
        """Runs an action on the party's thread, unless the party has ended by then."""

    def fetched(self, key: str) -> Future[bytes | memoryview]:
        """Reads the payload under a key; KeyError if it was deleted, since nobody needs it."""

    def kept(
        self, request: Request, payload: bytes | memoryview, digest: bytes
    ) -> Future[bytes | None]:
        """Checks and stores the payload that answers a request; see `Worker.keep`."""

    def heard(self, sender: str, event: Event) -> None:
        """Takes the outcome of a request: an event for the machine."""


@dataclass(eq=False, slots=True)
class _Open:
    """A call that is not answered: how often it was tried, and when last; not `live` once it is
    called off.
    """

    call: Call
    tried: int = 0
    dialled: float = 0.0
    live: bool = True


class Calls:
    """The open requests of one party; to be used on its thread."""

    def __init__(self, party: str, around: Environment, caller: Caller) -> None:
        self._party = party
        self._around = around
        self._caller = caller
        self._open: dict[_Open, None] = {}
        """In the order in which they began."""
        self._queue: deque[_Open] = deque()
        self._flying = self._bytes = 0
        self._lost: set[str] = set()
        self._slow: set[str] = set()

    def begin(self, call: Call) -> None:
        """Sends a request, with the payload under its key `attach` if there is one."""
        self._open[each := _Open(call)] = None
        self._try(each)

    def call_off(self, to: str) -> None:
        """Forgets what is asked of a server, unless others can answer it: these are asked."""
        for each in list(self._open):
            call = each.call
            rest = tuple(other for other in call.others if other != to)
            if call.to != to:
                each.call = dataclasses.replace(call, others=rest)
                continue
            each.live = False
            del self._open[each]
            if rest:
                self.begin(dataclasses.replace(call, to=rest[0], others=rest[1:]))

    def _try(self, each: _Open) -> None:
        if not each.live:
            return
        if each.call.attach is None:
            self._dial(each, each.call.message)
            return
        self._queue.append(each)
        self._pump()

    def _pump(self) -> None:
        while self._queue and self._has_room(self._queue[0].call):
            each = self._queue.popleft()
            if each.live and each.call.attach is not None:
                self._flying += 1
                self._bytes += _header(each.call).length
                self._send_payload(each, each.call.attach)

    def _has_room(self, call: Call) -> bool:
        header = _header(call)
        small = header.author != self._party and self._bytes + header.length <= SMALL_BYTES
        return self._flying < (SMALL_IN_FLIGHT if small else PAYLOADS_IN_FLIGHT)

    def _free_room(self, call: Call) -> None:
        self._flying -= 1
        self._bytes -= _header(call).length
        self._pump()

    def _send_payload(self, each: _Open, key: str) -> None:
        def dial(fetched: Future[bytes | memoryview]) -> None:
            if not each.live:
                self._free_room(each.call)
                return
            message, error = each.call.message, fetched.exception()
            if is_disk_fault(error):  # our own disk: it is read when the disk works again
                self._free_room(each.call)
                self._caller.later(partial(self._try, each), AGAIN_SECONDS)
                return
            if isinstance(error, KeyError):  # settled while it waited, or lost
                self._free_room(each.call)
                self._ended(each, Failed(message, DamagedStore(f"{key} is gone")))
                return
            assert isinstance(message, PutBlock)
            self._dial(each, dataclasses.replace(message, payload=fetched.result()))

        self._then(self._caller.fetched(key), dial)

    def _dial(self, each: _Open, message: Request) -> None:
        each.dialled = self._around.loop.now()
        answer = self._around.transport.call(each.call.to, message)
        self._around.meter.called(message, answer)
        self._then(answer, partial(self._came_back, each))

    def _came_back(self, each: _Open, future: Future[Reply]) -> None:
        call = each.call
        if call.attach is not None:
            self._free_room(call)
        error = future.exception()
        if error is not None and not isinstance(error, SecurepsError):
            raise error
        if not each.live:
            return
        if isinstance(error, PeerError) and error.retry_after is not None:
            self._again(each, error, error.retry_after)
            return
        if isinstance(error, UnknownParty) and call.to != COORDINATOR and call.attach is None:
            # It may follow an older roster: whether this party has left, the coordinator says. Of a
            # block the author may be meant, who was revoked.
            self._again(each, error, AGAIN_SECONDS)
            return
        self._note_recovery(call.to)
        if error is not None:
            self._ended(each, Failed(call.message, error))
        else:
            del self._open[each]
            self._take_in(call.to, call.message, future.result())

    def _again(self, each: _Open, error: PeerError | UnknownParty, seconds: float) -> None:
        call, tried = each.call, each.tried
        self._around.meter.retried(call.to)
        waited = self._around.loop.now() - each.dialled
        long = max(seconds, waited) > LONGEST_BACKOFF and call.to not in self._slow
        if tried in NOTICES or long:
            self._notice(call.to, tried, error)
        if long:
            self._slow.add(call.to)
        delay = min(LONGEST_BACKOFF, seconds * 1.5 ** min(tried, 12))
        if call.others and isinstance(error, Unreachable | NotReady):
            # One that is not ready may have lost its disk, and waits for the others itself.
            next, *rest = call.others
            each.call = dataclasses.replace(call, to=next, others=(*rest, call.to))
        each.tried += 1
        self._caller.later(partial(self._try, each), delay * self._around.jitter())

    def _ended(self, each: _Open, event: Failed) -> None:
        del self._open[each]
        self._caller.heard(each.call.to, event)

    def _then(self, future: Future[T], action: Callable[[Future[T]], None]) -> None:
        """Runs an action on the party's thread when a future ends, which it must not refer to.

        A future keeps what it called: in a circle its payload would stay until a collection.
        """
        future.add_done_callback(lambda done: self._caller.later(partial(action, done)))

    def _notice(self, to: str, tried: int, error: PeerError | UnknownParty) -> None:
        if isinstance(error, Unreachable):
            self._lost.add(to)
        known: dict[str, str | int] = {"peer": to, "tried": tried, "error": type(error).__name__}
        tell(self._party, "StillTrying", f"{error}; still trying", logging.WARNING, known)

    def _note_recovery(self, to: str) -> None:
        """Logs once that a server that was unreachable answers again."""
        if to in self._lost:
            self._lost.discard(to)
            tell(self._party, "BackAgain", f"{to} answers again", logging.INFO, {"peer": to})

    def _take_in(self, to: str, request: Request, reply: Reply) -> None:
        try:
            check_answer(to, request, reply)  # a server may send anything, also other messages
        except Malformed as error:
            self._caller.heard(to, Failed(request, error))
            return
        if not isinstance(reply, Payload):
            self._caller.heard(to, Answered(request, reply))
            return
        # Damage on the way is told from a wrong answer, which the machine compares with records.
        if payload_digest(reply.payload) != reply.digest:
            damaged = Malformed(f"{to} sent a payload that does not have its digest")
            self._caller.heard(to, Failed(request, damaged))
            return
        kept = self._caller.kept(request, reply.payload, reply.digest)
        length = len(reply.payload)

        def finish(kept: Future[bytes | None]) -> None:
            error = kept.exception()
            if is_disk_fault(error):  # our own disk: it is kept when the disk works again
                again = partial(self._take_in, to, request, reply)
                self._caller.later(again, AGAIN_SECONDS)
            elif isinstance(error, SecurepsError):
                self._caller.heard(to, Failed(request, error))
            elif error is not None:
                raise error
            else:
                bare = Payload(kept.result() or reply.digest)
                self._caller.heard(to, Answered(request, bare, length))

        self._then(kept, finish)


def _header(call: Call) -> BlockHeader:
    """Of a call with a payload."""
    assert isinstance(call.message, PutBlock)
    return call.message.header
