"""Sets glibc's allocator up: for servers of payloads, for a client's pieces, and for a process that
plays many clients.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

PAYLOAD = 5 << 18
"""Bytes from which a block of memory is mapped by itself: more than a piece of a frame, of which
many come and go one after another in the same place."""
KEPT = 32 << 20
"""Bytes at the end of a heap that stay when they are free. Where only 128 KiB do, by default, the
memory of every piece is given back and fetched anew, page by page: half of what the operating
system does for a shard."""
HEAPS = 2
"""Heaps of all threads together: what is free in one is of no use to a thread of another."""
CLIENT_HEAPS = 4
"""Heaps of a client, whose training has threads of its own. By default there are eight for each
core, and the pieces of payloads that gRPC makes lie in as many: 30 MiB at ten million values."""

PIECES = 2 << 20
"""Bytes beyond any array that a client makes for a piece of an update."""

WHOLE = (32 << 20) - (1 << 16)
"""Bytes of the largest block after whose end glibc raises its thresholds (M_MMAP_THRESHOLD_MAX)."""

_NO_GLIBC = (AttributeError, OSError, TypeError)
"""What another C library says; on Windows a process has none that is called nothing."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_pieces() -> bool:
    """Makes glibc keep twice PIECES bytes of a heap; returns whether the C library is glibc.

    A freed block raises its thresholds (mallopt(3)). No threshold is set, which would stop that: a
    data holder's training may need more. Heaps are few.
    """
    np.empty(PIECES, np.uint8)
    return _set({_M_ARENA_MAX: CLIENT_HEAPS})


@functools.cache
def keep_whole() -> None:
    """Makes glibc keep twice WHOLE bytes of a heap, and map no shorter block by itself.

    A process that makes the same large arrays again and again would fetch them anew, page by page:
    up to a third of its time for a model of a million values.
    """
    np.empty(WHOLE, np.uint8)


def give_back_free() -> None:
    """Gives the pages back that are free in all heaps, where the C library can: 1 to 3 ms."""
    with suppress(*_NO_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_payloads() -> bool:
    """Makes glibc map every block of PAYLOAD bytes or more, and unmap it when it is freed.

    By default that threshold rises to the largest block ever freed (mallopt(3)), and a burst of
    uploads stays resident: 50 clients left 100 MB more than 5 did. Returns as `keep_pieces`.
    """
    return _set({_M_MMAP_THRESHOLD: PAYLOAD, _M_TRIM_THRESHOLD: KEPT, _M_ARENA_MAX: HEAPS})


def _set(options: Mapping[int, int]) -> bool:
    try:
        library = ctypes.CDLL(None)
        return all(library.mallopt(*option) == 1 for option in options.items())
    except _NO_GLIBC:
        return False
