"""Delays signals during actions that must not be interrupted, and makes them end a block.

The handlers of SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt or SystemExit between any two
instructions of the main thread, for example between a fork and the note of its number.
`without_teardown` ends a process without tearing down the interpreter, which takes most of a
second with torch.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that end a command; Windows has no SIGHUP."""

Handler = Callable[[int, FrameType | None], object]


class SignalGate:
    """Delays the handlers of SIGNALS, from `install` to `remove`.

    While the gate is `closed`, signals wait; they are handled when it opens. Once a handler has
    raised, the work is ending: later signals wait until `remove`, which drops them, so that a
    second Ctrl-C cannot interrupt the cleanup.
    """

    def __init__(self) -> None:
        self._before: dict[int, Handler] = {}
        self._depth = 0
        self._raised = False
        self._held: list[int] = []

    @property
    def has_waiting(self) -> bool:
        return bool(self._held)

    def install(self) -> None:
        """Replaces the handlers; ignored signals stay ignored.

        Outside the main thread, where signals do not raise, it does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            before = signal.getsignal(number)
            if callable(before):
                self._before[number] = before
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Restores the handlers; handles waiting signals, unless a handler has already raised."""
        if self._raised:
            self._raised = False
            self._held.clear()
        with self.closed():
            for number, before in self._before.items():
                signal.signal(number, before)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Makes signals wait until the end of the block; blocks may be nested."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._open()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth or self._raised:
            self._held.append(number)
            return
        self._raised = True
        self._before[number](number, frame)
        self._raised = False
        self._open()

    def _open(self) -> None:
        while self._held and not self._depth and not self._raised:
            self._handle(self._held.pop(0), None)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP in a process that runs a user's script, where it ends as Ctrl-C does.

    SystemExit would be blamed on the script.
    """


@contextmanager
def terminable(kind: type[BaseException] = SystemExit) -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise an error in the block, so that its cleanup runs.

    The error's argument is the exit status of a process that such a signal ends.
    """
    ended = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        if not ended:  # a second signal would interrupt the cleanup
            ended = True
            raise kind(128 + number)

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                    stack.callback(signal.signal, number, signal.signal(number, end))
        yield


@contextmanager
def without_teardown() -> Iterator[None]:
    """Ends the process with the status of the SystemExit that ends this block.

    Non-daemon threads are joined and `atexit` functions are called as usual; then the process ends
    before modules and C libraries free their memory. Nothing durable is lost, because processes are
    built to be killed at any moment. Other errors than SystemExit end the process as usual.
    """
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # registered first, so called last
    try:
        yield
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            statuses.append(end.code or 0)
        raise


def _leave(statuses: list[int]) -> None:
    if not statuses:
        return
    logging.shutdown()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the interpreter reports the error and ends with its own status
    os._exit(statuses[0])
