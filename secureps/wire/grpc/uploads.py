"""Uploads on their way into one server, within a bound of memory.

A block takes as much memory as has come of it; announcing one takes none. Uploads take turns: the
server reads as many at once as fit into memory when they are whole. A turn begins when a piece is
here, and ends after SILENT seconds without one. One sender may take a third of the memory, so that
two senders together leave a third to the others. A broken upload keeps what came, and its sender
continues from there; where memory runs short, uploads that are not being read go first, the oldest
before all others. A large payload comes into a buffer of an earlier one (`buffers`).
"""

from __future__ import annotations

import dataclasses
import io
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from secureps.buffers import Buffers
from secureps.errors import Busy, Malformed, Oversized, Unreachable
from secureps.messages.requests import AskBlock, PutBlock, Stored
from secureps.messages.submission import BlockHeader
from secureps.wire.transport import Endpoint

HUGE = 2 << 20
"""Bytes of a huge page. A shorter part of a payload takes its own length, not a page."""
LARGE = 5 << 18
"""Bytes of the shortest payload that comes into a buffer; shorter ones are in the heap, where a
server's allocator maps longer ones page by page and gives them back (`service.malloc`)."""


class Gathering:
    """The bytes of a payload, in order; memory is at most twice what has come."""

    def __init__(self, length: int, buffers: Buffers) -> None:
        self.have = 0
        self._length = length
        self._buffers = buffers
        self._small = io.BytesIO()
        self._large: memoryview | None = None

    def add(self, piece: memoryview) -> None:
        """Adds the next bytes; the caller knows that there is room for them."""
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


SHARES = 3
"""Parts of the memory, of which one sender may take one; the longest block fits into it."""
SILENT = 1.0
"""Seconds without a piece after which a turn ends; `pacing` cuts pieces that take less."""
UNFINISHED = 64
"""Unfinished blocks of one sender; for one more the oldest goes."""
RETRY_SECONDS = (0.05, 0.25)
"""A refused sender waits for a random time between these, so that senders spread."""


class Uploads:
    """The uploads of one server; safe to use from any thread. Private methods are under its lock.

    Args:
        limit: bytes of blocks that may be held at once, or SHARES of the longest that came.
        longest: bytes of the longest block; longer ones get Oversized.
    """

    def __init__(
        self, limit: int, longest: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._longest = limit, longest
        self._clock = clock
        self._buffers = Buffers(limit // 2)
        self._held: Counter[str] = Counter()
        """Bytes by sender, with whole blocks that the endpoint has not answered yet."""
        self._waiting: list[Upload] = []
        """Those that wait for their turn, in order."""
        self._lock = threading.Lock()
        self._uploads: dict[tuple[str, BlockHeader], Upload] = {}
        """Unfinished uploads by sender and block, the last begun at the end."""

    @property
    def taken(self) -> int:
        return self._held.total()

    def known(self, sender: str, message: Any, answer: Any) -> Any:
        """Adds to the endpoint's answer to an AskBlock how much of the wanted block is here.

        The sender continues on another connection: nothing more comes on the old one.
        """
        wanted = isinstance(message, AskBlock) and isinstance(answer, Stored)
        if not wanted or answer.have is None:
            return answer
        with self._lock:
            before = self._uploads.get((sender, message.header))
            if before is None:
                return answer
            upload = Upload(self, sender, message.header, before, before.have)
            self._uploads[sender, message.header] = upload
            return dataclasses.replace(answer, have=upload.have)

    def begin(self, sender: str, message: PutBlock, length: int) -> Upload | Stored:
        """Takes an upload in, of `length` bytes from the message's offset to the block's end.

        Returns an Upload for the bytes, or a Stored that says from where the sender is to go on. An
        older upload of the block ends: its sender has come back on another connection, before this
        server heard that the older one was cut.

        Raises:
            Oversized, Malformed: the sender's fault.
        """
        header, offset = message.header, message.offset
        if length > self._longest or header.length > self._longest:
            raise Oversized(f"a block may have {self._longest} bytes, no more")
        if offset < 0 or offset + length != header.length:
            announced = f"{length} bytes announced" + (f" from byte {offset} on" if offset else "")
            raise Malformed(f"{announced}; the header says {header.length}")
        with self._lock:
            before = self._uploads.get((sender, header))
            have = 0 if before is None else before.have
            if offset > have:
                return Stored(header.digest, have)
            self._uploads.pop((sender, header), None)
            idle = [each for each in self._idle() if each.sender == sender]
            for each in idle[: max(0, len(idle) + 1 - UNFINISHED)]:
                each._drop()  # their headers take memory too
            self._limit = max(self._limit, SHARES * header.length)
            upload = Upload(self, sender, header, before, offset)
            self._uploads[sender, header] = upload
            return upload

    @property
    def _share(self) -> int:
        return self._limit // SHARES

    def _give(self, sender: str, count: int) -> None:
        self._held[sender] -= count
        self._let_in()

    def _idle(self) -> list[Upload]:
        return [each for each in self._uploads.values() if not each.reading]

    def _let_in(self) -> None:
        """Gives turns to those that wait, in their order, while there is room."""
        for upload in tuple(self._waiting):
            if not upload.current or self._fits(upload):
                self._waiting.remove(upload)
                upload.begin_turn()

    def _fits(self, upload: Upload) -> bool:
        taken = Counter(self._held)
        for each in self._uploads.values():
            read = each is upload or each.reading
            taken[each.sender] += each.header.length - each.have if read else -each.have
        return taken.total() <= self._limit and taken[upload.sender] <= self._share

    def _take(self, upload: Upload, count: int) -> None:
        """Takes memory for an upload in its turn, if need be that of idle uploads."""
        if not upload.reading:
            others = "as many others are sending as there is memory for"
            raise Busy(others, random.uniform(*RETRY_SECONDS))
        sender = upload.sender
        for idle in self._idle():
            own = self._held[sender] + count > self._share
            if self.taken + count <= self._limit and not own:
                break
            if idle.have and (idle.sender == sender or not own):
                idle._drop()
        self._held[sender] += count


class Upload:
    """One block on its way in; a context, after which what came waits for the rest.

    If a sender sends more than it announced, all of it is dropped.
    """

    def __init__(
        self, intake: Uploads, sender: str, header: BlockHeader, before: Upload | None, at: int
    ) -> None:
        self.sender, self.header = sender, header
        self._turn: Future[None] = Future()
        self._came = -math.inf
        self._intake = intake
        self._bytes = (
            Gathering(header.length, intake._buffers) if before is None else before.forget()
        )
        self._known = self.have - at
        """How many of the bytes that come first are here already."""

    @property
    def have(self) -> int:
        return self._bytes.have

    @property
    def reading(self) -> bool:
        return self._intake._clock() - self._came <= SILENT

    @property
    def current(self) -> bool:
        """Whether its sender continues with this block here, and not on another connection."""
        return self._intake._uploads.get((self.sender, self.header)) is self

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._intake._lock:
            self._came = -math.inf
            if self.current and not self.have:
                self._drop()
            if self in self._intake._waiting:
                self._intake._waiting.remove(self)
            self._intake._let_in()

    def turn(self) -> Future[None]:
        """Asks for a turn, for a piece that is here; returns a future that ends when it begins.

        No event tells that another turn has ended by silence: the caller asks again now and then.
        """
        with self._intake._lock:
            if self.reading:
                self._came = self._intake._clock()
                return self._turn
            if self not in self._intake._waiting:
                self._turn = Future()
                self._intake._waiting.append(self)
            self._intake._let_in()
            return self._turn

    def begin_turn(self) -> None:
        self._came = self._intake._clock()
        self._turn.set_result(None)

    def add(self, piece: bytes | memoryview) -> None:
        """Adds the next bytes.

        Raises:
            Malformed: there are none in it.
            Oversized: more than the block has.
            Busy: it is not this upload's turn.
            Unreachable: the sender goes on with it elsewhere, or others needed its memory.
        """
        with self._intake._lock:
            self._own()
            if not piece:
                self._drop()
                raise Malformed("an empty piece of payload")
            news = memoryview(piece)[self._known :]
            if self.have + len(news) > self.header.length:
                self._drop()
                raise Oversized(f"more than the announced {self.header.length} bytes of payload")
            self._intake._take(self, len(news))
            self._known -= len(piece) - len(news)
            try:
                self._bytes.add(news)
            except BaseException:  # no memory: what did not come takes no room
                self._intake._give(self.sender, len(news))
                raise

    def hand_over(self, endpoint: Endpoint) -> Future[Any]:
        """Gives the whole block to the endpoint; returns its answer.

        Raises:
            Malformed: bytes are missing.
            Unreachable: the sender goes on with this block elsewhere.
        """
        length = self.header.length
        with self._intake._lock:
            self._own()
            if self.have < length:
                raise Malformed(f"{self.have} bytes of payload instead of the announced {length}")
            del self._intake._uploads[self.sender, self.header]
            whole = PutBlock(self.header, self.forget().whole())

        def give(_: object = None) -> None:
            with self._intake._lock:
                self._intake._give(self.sender, length)

        try:
            answer = endpoint.request(self.sender, whole)
        except BaseException:
            give()
            raise
        # Not when the call ends: the endpoint may hold the bytes for longer.
        answer.add_done_callback(give)
        return answer

    def forget(self) -> Gathering:
        held, self._bytes = self._bytes, Gathering(self.header.length, self._intake._buffers)
        return held

    def _drop(self) -> None:
        del self._intake._uploads[self.sender, self.header]
        self._intake._give(self.sender, self.have)
        self.forget()

    def _own(self) -> None:
        if not self.current:
            raise Unreachable("this block goes on over another connection, or begins anew")
