"""Lets the main thread wait until a signal or another thread ends the process."""

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

    The interpreter's C handler writes a byte into a socket, where it stays until it is read. A
    Python handler that sets a `threading.Event` would not do: a signal that another thread receives
    does not wake the main thread, and a second signal may deadlock on the event's lock. (A pipe
    would not do on Windows.) In other threads, where Python allows no handlers, only `ring` ends
    the wait. A fork gets the earlier handlers back.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        self._signalled = False
        self._hurries = 0.0

    def __enter__(self) -> Shutdown:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)  # if the buffer is full, `wait` has enough to read
        if threading.current_thread() is threading.main_thread():
            wakes = self._writer.fileno()
            self._fd_before = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
            for number in SIGNALS:
                self._before[number] = signal.signal(number, _nothing)
            _open.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Restores the handlers; after a signal, further signals are ignored instead.

        At its end the interpreter resets its handlers to the default action, so that a second
        signal would kill the process; it does not reset ignored signals.
        """
        if self._hurries:  # count anew from when the interpreter begins to wait for threads
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
        with suppress(OSError):  # the buffer is full, or the `with` has ended
            self._writer.send(bytes([_INSIDE]))

    def end_within(self, seconds: float) -> None:
        """Ends the process by SIGALRM if leaving the `with`, or then its threads, takes longer.

        It needs no thread, except on Windows. Outside the main thread it does nothing, because then
        the process belongs to the caller.
        """
        if self._before:
            self._hurries = seconds
            _end_after(seconds)

    def wait(
        self, every: float | None = None, meanwhile: Callable[[], None] = lambda: None
    ) -> signal.Signals | None:
        """Waits for a signal, or for `ring` (None); calls `meanwhile` every so many seconds."""
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
"""The Shutdowns whose `with` is open and whose handlers are set; innermost last."""

_forking = threading.local()
"""The signal mask that a thread had before it began to fork."""


def _hold_back() -> None:
    """Blocks signals before a fork, so that no handler of ours runs in the child."""
    if _open:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _let_through() -> None:
    mask = vars(_forking).pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _become_child() -> None:
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
    """Calls an action when the interpreter, at its end, begins to wait for threads.

    There is no public API: `atexit` runs after the threads are joined. concurrent.futures registers
    itself like this too; later registrations run first.
    """
    threading._register_atexit(action)  # type: ignore[attr-defined]


def _end_after(seconds: float) -> None:
    """Ends this process after so many seconds, by SIGALRM or with status 1; 0 cancels that."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    elif seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def _nothing(number: int, frame: object) -> None:
    """Replaces the signal's default action; `wait` reads the signal from the socket."""
