"""Shows how far a move of blocks is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from secureps.messages.requests import Move
from secureps.run.report.bar import bar_or_lines
from secureps.wording import printable, size


def told(move: Move) -> str:
    """How far a move is, in a line: "drain-shard shard-1: 3 of 12 blocks, 0.9 MB of 3.1 MB"."""
    what = f"{move.what} {move.shard}".strip() or "copies that were lost"
    blocks = f"{move.moved} of {move.blocks} blocks"
    text = f"{what}: {blocks}, {size(move.moved_bytes)} of {size(move.bytes)}"
    return printable(f"{text}; {move.reason}" if move.reason else text)


@contextmanager
def shown(console: Console) -> Iterator[Callable[[Move], None]]:
    """Shows each move that it is given, in a `with`."""
    with bar_or_lines(console, "asks the coordinator") as show:
        yield lambda move: show(told(move), move.moved, move.blocks)
