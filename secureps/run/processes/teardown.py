"""Ends a process without taking the interpreter apart, which takes most of a second with torch."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
