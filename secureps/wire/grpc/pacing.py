"""How fast a link is: how long its pieces are, how many payloads it carries at once, and stalls.

Nothing here has a limit on how long a payload takes: one that moves is left to move. What must
not live here: gRPC, and what is sent.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHORTEST, LONGEST = 32 << 10, 1 << 20
"""Bytes of the first piece on a link, and of any: measured best where nothing is slow."""
FAST, SLOW = 0.25, 2.0
"""Seconds: a piece that takes less is followed by a longer one, after more by a shorter."""
REMEMBERED = 256
"""Connections of which a server knows how long pieces go well: those of the newest payloads."""
LANES, FIRST_LANES = 8, 4
"""Payloads at once: at most, and before anything is known of the link."""


def next_length(length: int, seconds: float) -> int:
    """Bytes of the piece after one that took this long."""
    if seconds < FAST:
        return min(LONGEST, 2 * length)
    return length if seconds < SLOW else max(SHORTEST, length // 2)


class Pace:
    """How long the pieces of payloads are that one party sends, one after another or side by side.

    The first is short, so that something arrives whatever the link is; a payload begins as the one
    before it ended, and short again where one `broke`. Who does not hear of that needs a new one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._length = SHORTEST
        self._clock = clock

    def cut(self, payload: memoryview) -> Iterator[memoryview]:
        """A payload in pieces."""
        length, start = self._length, 0
        while start < len(payload):
            began = self._clock()
            yield payload[start : start + length]
            start += length
            length = next_length(length, self._clock() - began)
        self._length = length

    def broke(self) -> None:
        """A payload did not get through."""
        self._length = SHORTEST


class Paces:
    """The paces of a server's connections."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Pace] = OrderedDict()

    @contextmanager
    def of(self, peer: str) -> Iterator[Pace]:
        """A connection's, for one payload; what ends the context but its end was a break."""
        pace = self._known.setdefault(peer, Pace())
        self._known.move_to_end(peer)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        try:
            yield pace
        except BaseException:
            pace.broke()
            raise


class Lanes:
    """How many payloads are on their way at once; the others wait for one of them to end.

    On a slow link they would only share it: each would take longer, all of them together as long.
    """

    def __init__(self) -> None:
        self.open = FIRST_LANES
        self._taken = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for a lane, and has it; `close` ends the wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._taken < self.open)
            self._taken += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify()  # one lane is free, for one of those that wait

    def saw(self, seconds: float) -> None:
        """A payload moved on, after this long."""
        if seconds > SLOW:
            with self._changed:
                self.open = max(1, self.open - 1)

    def done(self, longest: float) -> None:
        """A payload is over; its longest wait was so long."""
        if longest < FAST:
            with self._changed:
                self.open = min(LANES, self.open + 1)
                self._changed.notify()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Progress:
    """Watches one payload: where nothing moves for `seconds`, `stalled` is called, once.

    Args:
        saw: is told how long each step took.
    """

    def __init__(
        self,
        seconds: float,
        stalled: Callable[[], object],
        saw: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.over = False
        """Whether it stalled."""
        self.longest = 0.0
        self._seconds = seconds
        self._stalled = stalled
        self._saw = saw
        self._clock = clock
        self._last = clock()
        self._ended = False
        self._timer = self._timed(seconds)

    def __enter__(self) -> Progress:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._timer.cancel()

    def moved(self) -> None:
        """Bytes went, or came."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        self.longest = max(self.longest, seconds)
        self._saw(seconds)

    def _timed(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._look)
        timer.daemon = True
        return timer

    def _look(self) -> None:
        if self._ended:
            return
        left = self._last + self._seconds - self._clock()
        if left <= 0:
            self.over = True
            self._stalled()
            return
        self._timer = self._timed(left)
        self._timer.start()
