"""Makes signals end a block, and ends a process without tearing down the interpreter.

The teardown takes most of a second with torch.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that end a command; Windows has no SIGHUP."""


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
