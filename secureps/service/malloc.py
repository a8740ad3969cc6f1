"""Sets up glibc's allocator for servers, for clients, and for processes that play many clients."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

PAYLOAD = 5 << 18
"""Bytes from which a block of memory is mapped by itself: longer than a piece of a frame, because
such pieces come and go all the time and reuse the same place in the heap."""
KEPT = 32 << 20
"""Free bytes at the end of a heap that glibc keeps. With the default of 128 KiB the memory of every
piece is returned and fetched anew, page by page: half of a shard's time in the kernel."""
HEAPS = 2
"""Heaps of all threads: memory that is free in one heap is useless to threads of another."""
CLIENT_HEAPS = 4
"""Heaps of a client, whose training has its own threads. By default there are eight for each core,
and gRPC's pieces of payloads lie in all of them: 30 MiB at ten million values."""

PIECES = 2 << 20
"""Bytes that exceed every array that a client makes for a piece of an update."""

WHOLE = (32 << 20) - (1 << 16)
"""Bytes of the largest block whose release raises glibc's thresholds (M_MMAP_THRESHOLD_MAX).

A process that makes large arrays again and again keeps so many: else it would fetch their pages
anew, which takes up to a third of its time for a model of a million values.
"""

GC_THRESHOLDS = (50_000, 10, 10)
"""The thresholds of Python's garbage collector (`gc.set_threshold`; by default 700, 10, 10) where
it would search in vain among very many objects."""

_NO_GLIBC = (AttributeError, OSError, TypeError)
"""Errors of ctypes where the C library is not glibc, or has no default name (Windows)."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_pieces(length: int = PIECES) -> bool:
    """Makes glibc keep twice `length` free bytes of a heap; returns whether the library is glibc.

    Freeing a block raises the thresholds (mallopt(3)). They are not set, because then they would
    rise no more, and a data holder's training may need that.
    """
    np.empty(length, np.uint8)
    return _set({_M_ARENA_MAX: CLIENT_HEAPS})


def give_back_free() -> None:
    """Returns the free pages of all heaps to the system, if this is glibc; takes 1 to 3 ms."""
    with suppress(*_NO_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_payloads() -> bool:
    """Makes glibc map every block of PAYLOAD bytes or more, and unmap it when it is freed.

    By default that threshold rises to the largest block ever freed (mallopt(3)), and the memory of
    a burst of uploads stays resident: 100 MB with 50 clients. Returns as `keep_pieces`.
    """
    return _set({_M_MMAP_THRESHOLD: PAYLOAD, _M_TRIM_THRESHOLD: KEPT, _M_ARENA_MAX: HEAPS})


def _set(options: Mapping[int, int]) -> bool:
    try:
        library = ctypes.CDLL(None)
        return all(library.mallopt(*option) == 1 for option in options.items())
    except _NO_GLIBC:
        return False
