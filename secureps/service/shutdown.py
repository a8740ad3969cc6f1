"""Where the main thread of a process waits for its end: a signal, or somebody inside.

What must not live here: what happens at the end (`service.process`).
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_INSIDE = 0


class Shutdown:
    """Rung by SIGTERM, by SIGINT and by `ring`; to be used in a `with`.

    A handler in Python that sets a `threading.Event` does not do. It runs in the main
    thread, which may be waiting for the event in C: a signal that the kernel hands to
    another thread, or that comes just before the main thread goes to sleep, does not wake
    it; and a second signal, while the first one's handler holds the event's lock, waits
    for that lock for ever. Here the interpreter's C handler writes a byte into a pipe, in
    whatever thread and at whatever moment, and the byte stays there until it is read.

    In other threads than the main one, where Python allows no handlers, it is rung by
    `ring` alone.
    """

    def __init__(self) -> None:
        self._reader, self._writer = -1, -1
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        self._signalled = False

    def __enter__(self) -> Shutdown:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)  # a full pipe has rung often enough
        if threading.current_thread() is threading.main_thread():
            self._fd_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            for number in SIGNALS:
                self._before[number] = signal.signal(number, _nothing)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Puts the handlers back; after a signal more of them are ignored and do no harm.

        Not only until the process ends, but while it does: the interpreter puts its own handlers
        back to the default action before it is gone, and leaves alone what is ignored.
        """
        if self._signalled:
            for number in self._before:
                signal.signal(number, signal.SIG_IGN)
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        os.close(self._reader)
        os.close(self._writer)

    def ring(self) -> None:
        """Ends `wait`; may be called from any thread."""
        with suppress(BlockingIOError):
            os.write(self._writer, bytes([_INSIDE]))

    def wait(
        self, every: float | None = None, meanwhile: Callable[[], None] = lambda: None
    ) -> signal.Signals | None:
        """The signal that came, or None if it was rung from inside; at once if it has been.

        Args:
            every: seconds between two calls of `meanwhile`, whose errors end it; None: no calls.
        """
        while True:
            if not select.select([self._reader], [], [], every)[0]:
                meanwhile()
                continue
            for number in os.read(self._reader, 1):
                if number in SIGNALS:
                    self._signalled = True
                    return signal.Signals(number)
                if number == _INSIDE:
                    return None


def _nothing(number: int, frame: object) -> None:
    """Keeps the signal from its default action; the byte in the pipe is what counts."""
