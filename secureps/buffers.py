"""Large buffers whose memory is used again: fresh pages cost more than what is done with them."""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import suppress

import numpy as np

_PAGES = 1 << 18
"""Buffers have whole multiples of so many bytes, so that blocks of nearly one length share them."""
_HUGE = 2 << 20
"""Bytes of a huge page. A longer mapping lies at the begin of one if it is a multiple of it, which
costs addresses, and no memory."""
_PRIVATE: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)
"""Shared memory, which is Python's default, hardly any kernel gives in huge pages. Windows has one
kind."""


class Buffers:
    """Lends buffers, and keeps up to `most` bytes of those that came back, on any thread.

    A buffer comes back by itself when nobody refers to it or a view of it any more: what somebody
    still reads is never overwritten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[mmap.mmap] = []
        self._lock = threading.RLock()  # a buffer may come back on a thread that is taking one

    def lend(self, length: int) -> memoryview:
        """Lends a writable buffer of `length` bytes, 1 or more, of any content; or MemoryError."""
        kept = self.kept(length)
        if kept is not None:
            return kept
        huge = (length + _HUGE // 2 - 1) // _HUGE * _HUGE  # a half of one at most is not used
        pages = _HUGE if huge else _PAGES
        try:
            whole = mmap.mmap(-1, -(-length // pages) * pages, **_PRIVATE)
        except OSError as error:
            raise MemoryError(f"no buffer of {length} bytes") from error
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                whole.madvise(mmap.MADV_HUGEPAGE, 0, huge)
        return self._lent(whole, length)

    def kept(self, length: int) -> memoryview | None:
        """Lends as `lend` does, but only memory that is kept already: the process does not grow."""
        with self._lock:
            fitting = [each for each in self._kept if length <= len(each) < 2 * length + _PAGES]
            if not fitting:
                return None
            whole = min(fitting, key=len)
            with suppress(ValueError):  # it went meanwhile, for one that came back
                self._kept.remove(whole)
        return self._lent(whole, length)

    def let_go(self) -> None:
        """Frees the buffers that are kept."""
        with self._lock:
            self._kept.clear()

    def _lent(self, whole: mmap.mmap, length: int) -> memoryview:
        lent = np.frombuffer(whole, np.uint8, length)  # what views of it refer to
        weakref.finalize(lent, self._came_back, whole).atexit = False
        return lent.data

    def _came_back(self, whole: mmap.mmap) -> None:
        with self._lock:
            self._kept.append(whole)
            while sum(map(len, self._kept)) > self._most:
                del self._kept[0]
