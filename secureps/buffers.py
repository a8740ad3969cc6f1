"""Large buffers whose memory is reused: fresh pages cost more than the work done in them."""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import suppress

import numpy as np

_PAGES = 1 << 18
"""Lengths of buffers are multiples of this, so that blocks of similar length can share them."""
_HUGE = 2 << 20
"""Bytes of a huge page. The kernel aligns a mapping to huge pages if its length is a multiple of
this; rounding up costs addresses, not memory."""
_PRIVATE: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)
"""Options of a private mapping: few kernels use huge pages for shared ones, Python's default.
Windows has no such option."""


class Buffers:
    """Lends buffers, and keeps up to `most` bytes of returned ones; any thread may use it.

    A buffer returns by itself once no reference to it or to a view of it is left, so memory that is
    still read is never overwritten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[mmap.mmap] = []
        self._lock = threading.RLock()  # a buffer may come back on a thread that is taking one

    def lend(self, length: int) -> memoryview:
        """Lends a writable buffer of `length` >= 1 bytes with arbitrary content; or MemoryError."""
        kept = self.lend_kept(length)
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
        return self._wrap(whole, length)

    def lend_kept(self, length: int) -> memoryview | None:
        """Like `lend`, but only from memory that is kept; None if no kept buffer fits."""
        with self._lock:
            fitting = [each for each in self._kept if length <= len(each) < 2 * length + _PAGES]
            if not fitting:
                return None
            whole = min(fitting, key=len)
            with suppress(ValueError):  # a buffer that came back meanwhile displaced this one
                self._kept.remove(whole)
        return self._wrap(whole, length)

    def free_kept(self) -> None:
        """Frees the buffers that are kept."""
        with self._lock:
            self._kept.clear()

    def _wrap(self, whole: mmap.mmap, length: int) -> memoryview:
        lent = np.frombuffer(whole, np.uint8, length)  # views of it refer to this array
        weakref.finalize(lent, self._take_back, whole).atexit = False
        return lent.data

    def _take_back(self, whole: mmap.mmap) -> None:
        with self._lock:
            self._kept.append(whole)
            while sum(map(len, self._kept)) > self._most:
                del self._kept[0]
