"""Holds signals back during actions that must not be interrupted, and has them end a block.

The handlers of SIGINT, SIGTERM and SIGHUP raise (KeyboardInterrupt, SystemExit), between
any two instructions of the main thread: also between a fork and the moment at which
anybody knows of the child. A process of ours then ends without taking the interpreter apart
(`without_teardown`), which takes most of a second with torch.
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
"""Those of this system: Windows has no SIGHUP."""

Handler = Callable[[int, FrameType | None], object]


class SignalGate:
    """Delays the handlers of SIGNALS, from `install` to `remove`.

    While it is `closed`, signals wait; they are handled when it opens. When a handler has
    raised, the work is being ended: from then on signals wait until `remove`, and are
    dropped there, so that a second Ctrl-C cannot raise in the middle of cleaning up.
    """

    def __init__(self) -> None:
        self._before: dict[int, Handler] = {}
        self._depth = 0
        self._raised = False
        self._held: list[int] = []

    @property
    def knocked(self) -> bool:
        return bool(self._held)

    def install(self) -> None:
        """Replaces the handlers in Python; signals that are ignored stay ignored.

        In another thread than the main one, where signals do not raise, it does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            before = signal.getsignal(number)
            if callable(before):
                self._before[number] = before
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Restores the handlers; handles signals that wait, unless one has raised already."""
        if self._raised:
            self._raised = False
            self._held.clear()
        with self.closed():
            for number, before in self._before.items():
                signal.signal(number, before)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Makes signals wait until the end of this block; blocks may be nested."""
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
    """SIGTERM or SIGHUP, where a script runs in this process: it would be blamed for a SystemExit.

    It ends a command as Ctrl-C does, without waiting for anything.
    """


def _exit(number: int) -> BaseException:
    return SystemExit(128 + number)


@contextmanager
def terminable(ends: Callable[[int], BaseException] = _exit) -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end the block as an error does, so that nothing is left over.

    Args:
        ends: makes the error, of the signal's number.
    """

    ended = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        if not ended:  # a second one, of either kind, would interrupt what cleans up
            ended = True
            raise ends(number)

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:  # nohup means what it says
                    stack.callback(signal.signal, number, signal.signal(number, end))
        yield


@contextmanager
def without_teardown() -> Iterator[None]:
    """Ends the process with the status of the SystemExit that ends this block.

    Non-daemon threads are waited for, and functions that are registered with `atexit` in the
    block are called, as ever; then the process ends, and modules and C libraries free nothing.
    What is durable is so before: a process may be killed at any moment. An error that is no
    SystemExit ends the process as Python does.
    """
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # first in, hence called last
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
        return  # the interpreter says so, and ends with a status of its own
    os._exit(statuses[0])
