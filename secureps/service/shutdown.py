"""Lets the main thread wait until a signal or another thread ends the process."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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
        self._last: tuple[float, int] | None = None
        self._hurried, self._closed = threading.Event(), threading.Event()
        self._through = threading.Event()

    def __enter__(self) -> Shutdown:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)  # if the buffer is full, `wait` has enough to read
        if threading.current_thread() is threading.main_thread():
            # Started now, because later there may be no thread to be had.
            threading.Thread(target=self._force_exit, name="last resort", daemon=True).start()
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
        self._closed.set()
        self._hurried.set()
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

    def end_within(self, seconds: float, status: int) -> None:
        """Ends the process, with this status, if leaving the `with` or ending takes longer.

        A script's training, or a sum of large blocks, cannot be interrupted, and the interpreter
        would wait for its thread. Such a task is not acknowledged, and is repeated after a restart.
        After the `with` a script may go on for as long as it likes; the seconds are counted again
        from when the interpreter begins to wait for threads. Outside the main thread this does
        nothing, because then the process belongs to the caller.
        """
        if self._before and self._last is None:
            self._last = seconds, status
            # There is no public API: `atexit` runs after the threads are joined. concurrent.futures
            # registers itself like this too; later registrations run first.
            threading._register_atexit(self._through.set)  # type: ignore[attr-defined]
            self._hurried.set()

    def _force_exit(self) -> None:
        self._hurried.wait()
        if self._last is None:
            return
        seconds, status = self._last
        if self._closed.wait(seconds):
            self._through.wait()
            time.sleep(seconds)
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(status)

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


def _nothing(number: int, frame: object) -> None:
    """Replaces the signal's default action; `wait` reads the signal from the socket."""
