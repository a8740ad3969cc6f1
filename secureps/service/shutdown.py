"""Lets the main thread of a process wait for its end, by a signal or by another thread."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_INSIDE = 0


class Shutdown:
    """Waits for SIGTERM, SIGINT or `ring`; to be used in a `with`.

    A Python handler that sets a `threading.Event` could be missed: the main thread may wait in C,
    where another thread's signal does not wake it, and a second signal may deadlock on the event's
    lock. Here the interpreter's C handler writes a byte into a socket, which stays there until it
    is read. (A pipe would not do on Windows.) In other threads, where Python allows no handlers,
    only `ring` ends the wait. A process that is forked in the `with` gets back the handlers of
    before.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        self._signalled = False
        self._hurries = 0.0

    def __enter__(self) -> Shutdown:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)  # a full one has rung often enough
        if threading.current_thread() is threading.main_thread():
            wakes = self._writer.fileno()
            self._fd_before = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
            for number in SIGNALS:
                self._before[number] = signal.signal(number, _nothing)
            _open.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Restores the handlers; after a signal, further signals are ignored instead.

        They stay ignored while the process ends: the interpreter resets its own handlers to the
        default action at its end, which would kill it, but leaves ignored signals alone.
        """
        if self._hurries:  # again where the interpreter begins to wait for threads
            _end_after(0.0)
            before_threads(partial(_end_after, self._hurries))
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._signalled else handler)
        if self in _open:
            _open.remove(self)
            signal.set_wakeup_fd(self._fd_before)
        self._reader.close()
        self._writer.close()

    def ring(self) -> None:
        """Ends `wait`; may be called from any thread."""
        with suppress(OSError):  # it is full, and has rung; or the `with` is left
            self._writer.send(bytes([_INSIDE]))

    def end_within(self, seconds: float) -> None:
        """Ends the process by SIGALRM if leaving the `with` takes longer, or its threads do.

        It needs no thread, except on Windows. It does nothing in other threads than the main one,
        where the process is not ours to end.
        """
        if self._before:
            self._hurries = seconds
            _end_after(seconds)

    def wait(
        self, every: float | None = None, meanwhile: Callable[[], None] = lambda: None
    ) -> signal.Signals | None:
        """Waits for the end: its signal, or None for `ring`; calls `meanwhile` every so often."""
        while True:
            if not select.select([self._reader], [], [], every)[0]:
                meanwhile()
                continue
            for number in self._reader.recv(1):
                if number in SIGNALS:
                    self._signalled = True
                    return signal.Signals(number)
                if number == _INSIDE:
                    return None


_open: list[Shutdown] = []
"""Each Shutdown whose `with` this process is in and whose handlers it has; innermost last."""

_forking = threading.local()
"""The signals that a thread blocked before it began to fork."""


def _hold_back() -> None:
    """Blocks signals before a fork, so that the child meets none of our handlers."""
    if _open:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _let_through() -> None:
    mask = vars(_forking).pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _become_child() -> None:
    """Puts back the handlers of before."""
    for each in reversed(_open):
        signal.set_wakeup_fd(-1)
        for number, handler in each._before.items():
            signal.signal(number, handler)
    _let_through()
    _open.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=_hold_back, after_in_parent=_let_through, after_in_child=_become_child
    )


def before_threads(action: Callable[[], object]) -> None:
    """Calls an action where the interpreter, at its end, begins to wait for threads.

    There is no public way: `atexit` comes after those threads are joined. concurrent.futures
    registers itself in the same way; ours is registered later and comes first.
    """
    threading._register_atexit(action)  # type: ignore[attr-defined]


def _end_after(seconds: float) -> None:
    """Has the system end this process, by SIGALRM or with status 1; 0 takes that back."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    elif seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def _nothing(number: int, frame: object) -> None:
    """Keeps the signal from its default action; the byte in the socket is what counts."""
