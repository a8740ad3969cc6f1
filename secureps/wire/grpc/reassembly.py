"""One payload as it comes, piece by piece, in memory that costs little to take.

Fresh memory in pages of 4 KiB costs a server more than all that gRPC does with the bytes in it: a
large payload comes into a buffer that another one had before, or into huge pages, of 2 MiB.
"""

from __future__ import annotations

import io

from secureps.buffers import Buffers

HUGE = 2 << 20
"""Bytes of a huge page. A payload of which less has come takes what has come, not a page."""
LARGE = 5 << 18
"""Bytes of the shortest payload that comes into a buffer; shorter ones are in the heap, where a
server's allocator maps longer ones page by page and gives them back (`service.malloc`)."""


class Gathering:
    """Bytes of a payload of `length`, in their order.

    They take no more memory than twice what is here, beyond buffers that were kept.
    """

    def __init__(self, length: int, buffers: Buffers) -> None:
        self.have = 0
        """How many bytes are here."""
        self._length = length
        self._buffers = buffers
        self._small = io.BytesIO()
        self._large: memoryview | None = None

    def add(self, piece: memoryview) -> None:
        """The next bytes; the caller knows that there is room for them."""
        end = self.have + len(piece)
        if self._large is None and self._length >= LARGE:
            enough = end >= min(HUGE, self._length)
            fresh = self._buffers.lend if enough else self._buffers.kept
            self._large = fresh(self._length)
            if self._large is not None:
                self._large[: self.have] = self._small.getbuffer()
                self._small = io.BytesIO()
        if self._large is None:
            self._small.write(piece)
        else:
            self._large[self.have : end] = piece
        self.have = end

    def whole(self) -> bytes | memoryview:
        """The payload, read-only, once all of it is here; no copy."""
        return self._small.getvalue() if self._large is None else self._large.toreadonly()
