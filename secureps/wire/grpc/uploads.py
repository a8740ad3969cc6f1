"""Uploads on their way into one server: which bytes of which blocks are here, within a bound.

A block takes as much memory as has come of it: one that is announced and not sent keeps nobody
out for long, and one sender's blocks leave half of the memory to the others. As many blocks come
at once as there is room for when they are whole: of more, none would ever be. An upload that breaks
keeps what came, so that its sender goes on from there; where memory runs short, what nobody is
sending now goes first, the oldest before all others. What must not live here: gRPC, threads that
wait, and what becomes of a block that is whole.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import Counter
from concurrent.futures import Future
from typing import Any

from secureps.buffers import Buffers
from secureps.errors import Busy, ConfigError, Malformed, Oversized, Unreachable
from secureps.messages.requests import AskBlock, PutBlock, Stored
from secureps.messages.submission import BlockHeader
from secureps.wire.grpc.reassembly import Gathering
from secureps.wire.transport import Endpoint

UNFINISHED = 64
"""Blocks of one sender that are not whole and not on their way: the oldest goes for the next."""
RETRY_SECONDS = (0.05, 0.25)
"""Between these a refused sender is asked to wait, at random so that senders spread."""


class Uploads:
    """The uploads of one server; safe to use from any thread.

    Args:
        limit: bytes of blocks that may be held at once; more get Busy. Of one sender's, half as
            many, or one block.
        longest: the longest block; longer ones get Oversized.

    Raises:
        ConfigError: a block of the largest size would never fit.
    """

    def __init__(self, limit: int, longest: int) -> None:
        if not 0 < longest <= limit:
            raise ConfigError("in_flight_bytes must be at least max_block_bytes, which is positive")
        self._limit = self._free = limit
        self._longest = longest
        self._each = max(longest, limit // 2)
        self._buffers = Buffers(limit // 2)
        self._held: Counter[str] = Counter()
        self._promised: Counter[str] = Counter()
        """Bytes that have not come, and for which there is room, by sender."""
        self._waiting: list[Upload] = []
        self._lock = threading.Lock()
        self._uploads: dict[tuple[str, BlockHeader], Upload] = {}
        """By sender and block, of those that are not whole; what was begun last is at the end."""

    @property
    def taken(self) -> int:
        """Bytes that are held."""
        return self._limit - self._free

    def known(self, sender: str, message: Any, answer: Any) -> Any:
        """An endpoint's answer; to who asks for a block that is wanted, how much of it is here.

        Whoever asks goes on with it on another connection: no more of it comes on the one before.
        """
        wanted = isinstance(message, AskBlock) and isinstance(answer, Stored)
        if not wanted or answer.have is None:
            return answer
        with self._lock:
            before = self._uploads.get((sender, message.header))
            if before is None:
                return answer
            upload = Upload(self, sender, message.header, before, before.have)
            upload.idle = True
            self._uploads[sender, message.header] = upload
            return dataclasses.replace(answer, have=upload.have)

    def begin(self, sender: str, message: PutBlock, length: int) -> Upload | Stored:
        """Takes an upload in, of `length` bytes from the message's offset to the block's end.

        The bytes go into what it returns; a Stored instead says from where the sender is to go on.
        An older upload of the same block is at its end: its sender has come back on another
        connection, before this server heard that the one before was cut.

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
            idle = [each for each in self._uploads.values() if each.idle and each.sender == sender]
            for each in idle[: max(0, len(idle) + 1 - UNFINISHED)]:
                each._drop()  # their headers take memory too, which nobody has judged
            upload = Upload(self, sender, header, before, offset)
            self._uploads[sender, header] = upload
            return upload

    def _give(self, sender: str, count: int) -> None:
        """Under the lock."""
        self._free += count
        self._held[sender] -= count
        self._let_in()

    def _let_in(self) -> None:
        """Under the lock: promises room to those that wait, in their order, while there is any."""
        for upload in tuple(self._waiting):
            if self._fits(upload):
                self._waiting.remove(upload)
                upload.promise(upload.header.length - upload.have)
                upload.room.set_result(None)

    def _fits(self, upload: Upload) -> bool:
        """Whether there is room for all of it, where what nobody sends now has gone."""
        idle = Counter[str]()
        for each in self._uploads.values():
            idle[each.sender] += each.have if each.idle else 0
        more, sender = upload.header.length - upload.have, upload.sender
        taken = self.taken - idle.total() + self._promised.total()
        own = self._held[sender] - idle[sender] + self._promised[sender]
        return taken + more <= self._limit and own + more <= self._each

    def _take(self, sender: str, count: int) -> None:
        """Under the lock."""
        for idle in [each for each in self._uploads.values() if each.idle]:
            own = self._held[sender] + count > self._each
            if count <= self._free and not own:
                break
            if idle.sender == sender or not own:
                idle._drop()
        if count > self._free or self._held[sender] + count > self._each:
            raise Busy("too many bytes are in flight", random.uniform(*RETRY_SECONDS))
        self._free -= count
        self._held[sender] += count


class Upload:
    """One block on its way in; a context, after which what came waits for the rest.

    Of a sender that sends more than it may nothing is kept.
    """

    def __init__(
        self, intake: Uploads, sender: str, header: BlockHeader, before: Upload | None, at: int
    ) -> None:
        self.sender, self.header = sender, header
        self.idle = False
        self.room: Future[None] = Future()
        """Ends when there is room for the rest; `wait` asks for it."""
        self._promised = 0
        self._intake = intake
        self._bytes = (
            Gathering(header.length, intake._buffers) if before is None else before.forget()
        )
        self._known = self.have - at
        """Of what comes, the first so many bytes are here already."""

    @property
    def have(self) -> int:
        """Bytes of the block that are here."""
        return self._bytes.have

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._intake._lock:
            if self._current and self.have:
                self.idle = True
            elif self._current:
                self._drop()
            self.promise(-self._promised)
            if self in self._intake._waiting:
                self._intake._waiting.remove(self)
            self._intake._let_in()

    def wait(self) -> Future[None]:
        """Ends when there is room for the rest of it, which this context then has."""
        with self._intake._lock:
            self._intake._waiting.append(self)
            self._intake._let_in()
        return self.room

    def promise(self, count: int) -> None:
        """Under the lock: so many bytes more have room; so many fewer, as they came."""
        self._promised += count
        self._intake._promised[self.sender] += count

    def add(self, piece: bytes | memoryview) -> None:
        """The next bytes.

        Raises:
            Malformed: there are none in it.
            Oversized: more than the block has.
            Busy: there is no memory for them.
            Unreachable: the sender goes on with this block elsewhere.
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
            self._intake._take(self.sender, len(news))
            self.promise(-min(self._promised, len(news)))
            self._known -= len(piece) - len(news)
            try:
                self._bytes.add(news)
            except BaseException:  # no memory: what did not come takes no room
                self._intake._give(self.sender, len(news))
                raise

    def hand_over(self, endpoint: Endpoint) -> Future[Any]:
        """Whatever the endpoint answers to the block, which is whole.

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
        """What is here; this upload has it no more."""
        held, self._bytes = self._bytes, Gathering(self.header.length, self._intake._buffers)
        return held

    def _drop(self) -> None:
        """Under the lock."""
        del self._intake._uploads[self.sender, self.header]
        self._intake._give(self.sender, self.have)
        self.forget()

    @property
    def _current(self) -> bool:
        return self._intake._uploads.get((self.sender, self.header)) is self

    def _own(self) -> None:
        if not self._current:
            raise Unreachable("the sender goes on with this block on another connection")
