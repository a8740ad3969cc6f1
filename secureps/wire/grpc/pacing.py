"""Measures a link: sets the length of pieces and the number of payloads at once, and finds stalls.

Nothing here limits how long a payload takes while it moves.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHORTEST, LONGEST = 32 << 10, 1 << 20
"""Bytes of the first piece on a link, and of the longest: measured best on a fast link."""
FAST, SLOW = 0.25, 2.0
"""Seconds: a piece that takes less is followed by a longer one, after SLOW by a shorter one."""
REMEMBERED = 256
"""Connections whose pace a server remembers: those of the newest payloads."""
LANES, FIRST_LANES = 8, 4
"""Payloads at once: the most, and the number before anything is known of the link."""


def next_length(length: int, seconds: float) -> int:
    """Bytes of the piece after one of `length` bytes that took so many seconds."""
    if seconds < FAST:
        return min(LONGEST, 2 * length)
    return length if seconds < SLOW else max(SHORTEST, length // 2)


class Pace:
    """Chooses the length of the pieces of one party's payloads.

    The first piece is short, so that something arrives on any link. A payload begins with the last
    length of the one before it, or short if that one broke.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._length = SHORTEST
        self._clock = clock

    def cut(self, payload: memoryview) -> Iterator[memoryview]:
        length, start = self._length, 0
        while start < len(payload):
            began = self._clock()
            yield payload[start : start + length]
            start += length
            length = next_length(length, self._clock() - began)
        self._length = length

    def broke(self) -> None:
        self._length = SHORTEST


class Paces:
    """The paces of a server's connections."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Pace] = OrderedDict()

    @contextmanager
    def of(self, peer: str) -> Iterator[Pace]:
        """Yields a connection's pace for one payload; an error in the `with` counts as a break."""
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
    """Limits how many payloads are on their way at once; the others wait.

    On a slow link more would only share it. A fixed limit would be too low for a fast link to
    several shards, or higher than what one shard takes at once: the rest would wait there.
    """

    def __init__(self) -> None:
        self.open = FIRST_LANES
        self._taken = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for a lane and holds it; `close` ends the wait."""
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
        """Closes a lane if a payload waited this long for its next piece, and it was long."""
        if seconds > SLOW:
            with self._changed:
                self.open = max(1, self.open - 1)

    def done(self, longest: float) -> None:
        """Opens a lane after a payload whose longest wait was short."""
        if longest < FAST:
            with self._changed:
                self.open = min(LANES, self.open + 1)
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Stalls:
    """Calls off payloads of which nothing has moved for so many seconds.

    One thread watches all of them, and sleeps until the oldest would be late: a payload neither
    starts one nor, but for the first after a rest, wakes it.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self._watched: set[Progress] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._rests = self._closed = False

    def watch(self, progress: Progress) -> None:
        """Calls a payload off when it stalls, until `over`; RuntimeError if no thread can start."""
        with self._changed:
            if not (self._closed or (self._thread is not None and self._thread.is_alive())):
                self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)
                self._thread.start()
            self._watched.add(progress)
            if self._rests:
                self._changed.notify()

    def over(self, progress: Progress) -> None:
        with self._changed:
            self._watched.discard(progress)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def late(self) -> tuple[list[Progress], float | None]:
        """Returns the stalled payloads, and the seconds until another may stall, or None."""
        with self._changed:
            now = self.clock()
            late = [each for each in self._watched if each.last + self.seconds <= now]
            self._watched.difference_update(late)
            first = min((each.last for each in self._watched), default=None)
            return late, None if first is None else first + self.seconds - now

    def _run(self) -> None:
        while not self._closed:
            late, seconds = self.late()
            for each in late:
                each.stall()
            with self._changed:
                if self._closed or (seconds is None and self._watched):
                    continue  # one came meanwhile
                self._rests = seconds is None
                self._changed.wait(seconds)
                self._rests = False


class Progress:
    """Watches one payload: calls `stalled` once if nothing moves, and `saw` with steps' seconds."""

    def __init__(
        self, stalls: Stalls, stalled: Callable[[], object], saw: Callable[[float], None]
    ) -> None:
        self.over = False
        self.longest = 0.0
        self.last = stalls.clock()
        self._stalls = stalls
        self._stalled = stalled
        self._saw = saw

    def __enter__(self) -> Progress:
        self._stalls.watch(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._stalls.over(self)

    def moved(self) -> None:
        now = self._stalls.clock()
        seconds, self.last = now - self.last, now
        self.longest = max(self.longest, seconds)
        self._saw(seconds)

    def stall(self) -> None:
        self.over = True
        self._stalled()
