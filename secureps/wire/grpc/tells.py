"""Small messages on their way to servers: one call at a time to each, and no thread that waits.

What is said to a server while a call to it is under way goes together in the next one
(`framing.bundle`), and so does what a party says in one breath: a thread of its own begins the
calls. Each message has an answer of its own. One whose answer waits for other messages has a call
of its own beside these.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from secureps.exhaustion import exhaustion
from secureps.wire.grpc import framing
from secureps.wire.transport import closed


@dataclass(frozen=True, slots=True)
class _Tell:
    """A message that waits; `alone` if it goes with no other."""

    envelope: bytes
    alone: bool
    future: Future[Any]


class Tells:
    """The small messages of one party.

    Args:
        begin: begins a call to a server with these bytes: a gRPC future, or an exception.
        failed: the SecurepsError behind an exception of a call, or a limit that the process met.
        settle: ends a message's future with its answer, or with such an error.
        clock: in seconds.
    """

    def __init__(
        self,
        begin: Callable[[str, bytes], Any],
        failed: Callable[[Exception, str], Exception],
        settle: Callable[[Future[Any], Any], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._begin, self._failed, self._settle = begin, failed, settle
        self._lock = threading.Lock()
        self._waiting: defaultdict[str, deque[_Tell]] = defaultdict(deque)
        self._clock = clock
        self._busy: dict[str, float] = {}
        """By server: when the call to it that is under way was begun, or was to be."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tell")

    def add(self, to: str, envelope: bytes, alone: bool, future: Future[Any]) -> None:
        """Sends a message when its turn comes; may be called from any thread."""
        with self._lock:
            self._waiting[to].append(_Tell(envelope, alone, future))
            if to in self._busy:
                return
            self._busy[to] = self._clock()
        try:
            self._thread.submit(self._next, to)
        except RuntimeError as error:  # else whoever comes later waits for a call that never ends
            failed = self._not_begun(error, to)
            while sent := self._taken(to):
                self._answer(sent, [failed] * len(sent))

    def longest(self) -> tuple[str, float]:
        """To whom the oldest call goes that is under way, and for how many seconds; ("", 0.0)."""
        with self._lock:
            to = min(self._busy, key=self._busy.__getitem__, default="")
            return to, self._clock() - self._busy[to] if to else 0.0

    def beside(self, to: str, envelope: bytes, future: Future[Any]) -> None:
        """Sends a message that others need not wait for; may be called from any thread."""
        tell = _Tell(envelope, True, future)
        try:
            self._thread.submit(self._begun_beside, to, tell)
        except RuntimeError as error:
            self._answer([tell], [self._not_begun(error, to)])

    def close(self) -> None:
        """Begins no more calls."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _not_begun(self, error: RuntimeError, to: str) -> Exception:
        return self._failed(error, to) if exhaustion(error) else closed()

    def _next(self, to: str) -> None:
        while sent := self._taken(to):
            try:
                self._send(to, sent, True)
                return
            except Exception as error:
                self._answer(sent, [self._failed(error, to)] * len(sent))

    def _begun_beside(self, to: str, tell: _Tell) -> None:
        try:
            self._send(to, [tell], False)
        except Exception as error:
            self._answer([tell], [self._failed(error, to)])

    def _taken(self, to: str) -> list[_Tell]:
        """What goes in the next call; if nothing does, there is none."""
        with self._lock:
            waiting, taken = self._waiting[to], list[_Tell]()
            while waiting and (not taken or _together([*taken, waiting[0]])):
                taken.append(waiting.popleft())
            if taken:
                self._busy[to] = self._clock()
            else:
                self._busy.pop(to, None)
            return taken

    def _send(self, to: str, sent: list[_Tell], in_turn: bool) -> None:
        """Begins a call; `in_turn`: the next messages to this server wait for its end."""
        call = self._begin(to, framing.bundle([each.envelope for each in sent]))
        call.add_done_callback(partial(self._ended, to, sent, in_turn))

    def _ended(self, to: str, sent: list[_Tell], in_turn: bool, call: Any) -> None:
        try:
            answers = framing.replies(call.result(), len(sent), to)
        except Exception as error:
            answers = [self._failed(error, to)] * len(sent)
        if in_turn:
            self._next(to)
        self._answer(sent, answers)

    def _answer(self, sent: Sequence[_Tell], answers: Sequence[Any]) -> None:
        for each, answer in zip(sent, answers, strict=True):
            self._settle(each.future, answer)


def _together(tells: Sequence[_Tell]) -> bool:
    """Whether these fit into one call."""
    envelopes = [each.envelope for each in tells]
    return framing.joins(envelopes) and not any(each.alone for each in tells)
