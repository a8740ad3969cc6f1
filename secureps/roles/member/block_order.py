"""In which order a client sends blocks, and asks for them: each client from a place of its own on.

A client has a few payloads on their way at once. If all began with the first block, all would wait
for its shard while the others had nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from secureps.messages.encoding import digest

Block = TypeVar("Block")


def in_own_order(client: str, blocks: Iterable[Block]) -> list[Block]:
    """The blocks from one on that follows from the client's name, and then those before it."""
    every = list(blocks)
    if len(every) < 2:
        return every
    first = int.from_bytes(digest("secureps-block-order", client.encode())[:8], "little")
    first %= len(every)
    return every[first:] + every[:first]
