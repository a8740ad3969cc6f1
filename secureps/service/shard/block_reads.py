"""Reads single blocks out of state files, for pulls: now, or ahead of their turn on other threads.

A block that is read ahead is in memory, with its digest looked at, when the worker comes to it: the
disk and the digests work while other blocks are sent. What must not live here: which blocks are in
line (`service.shard.lookahead`), and what files hold (`store.mapped_state`).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from secureps.buffers import Buffers
from secureps.errors import DamagedStore
from secureps.store.mapped_state import SHORT, checked, room_for

THREADS = 4
"""Blocks that are read ahead at once: as many keep a disk busy."""


class FiledBlock(NamedTuple):
    """A block in a file: its tensor there, its digest, and its bytes; 0 if others are there too."""

    path: Path
    tensor: str
    digest: bytes
    alone: int


Ahead: TypeAlias = "Future[memoryview | None]"
"""A block that is being read, or was; None if it is not whole in its file."""


class BlockReads:
    """Reads blocks into buffers that are used again.

    Args:
        buffers: a block has one of them for as long as somebody refers to it.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._pool: ThreadPoolExecutor | None = None

    def ahead(self, block: FiledBlock) -> Ahead | None:
        """Begins to read a short block that is alone in its file; None if it waits for its turn.

        Of a file with more the system reads on by itself, for whoever pulls one after another.
        """
        if not 0 < block.alone <= SHORT:
            return None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="read-ahead")
        with suppress(RuntimeError):  # no more threads, or the process ends
            return self._pool.submit(self.now, block)
        return None

    def now(self, block: FiledBlock) -> memoryview | None:
        """A block's bytes, read-only; None if it is not whole in its file."""
        short = 0 < block.alone <= SHORT
        room = self._buffers.lend(room_for(block.alone)) if short else None
        with suppress(DamagedStore, ValueError):
            return checked(block.path, block.tensor, block.digest, room)
        return None
