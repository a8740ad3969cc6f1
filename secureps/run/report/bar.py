"""Shows how far long work is, a move of blocks too: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from secureps.messages.requests import Move
from secureps.wording import printable, size

QUIET = 10.0
"""Seconds after which a plain line is said again, if nothing has moved."""

Show = Callable[[str, int, int], None]
"""Hears how far it is in words, what is done, and of how much."""


@contextmanager
def bar_or_lines(console: Console, begins: str) -> Iterator[Show]:
    """Shows in a `with` what it is given; a bar says `begins` first, below all other lines."""
    if not console.is_terminal:
        yield _Lines(console).show
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(begins, total=None)

        def show(text: str, done: int, of: int) -> None:
            bar.update(task, completed=done, total=of, description=text, refresh=True)

        yield show


class _Lines:
    """Says how far it is whenever it has come further, and now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last, self._at = "", 0.0

    def show(self, text: str, done: int, of: int) -> None:
        now = time.monotonic()
        if text != self._last or now - self._at >= QUIET:
            self._last, self._at = text, now
            self._console.print(text, soft_wrap=True, markup=False, highlight=False)


def move_text(move: Move) -> str:
    """How far a move is, in a line: "drain-shard shard-1: 3 of 12 blocks, 0.9 MB of 3.1 MB"."""
    what = f"{move.what} {move.shard}".strip() or "copies that were lost"
    blocks = f"{move.moved} of {move.blocks} blocks"
    text = f"{what}: {blocks}, {size(move.moved_bytes)} of {size(move.bytes)}"
    return printable(f"{text}; {move.reason}" if move.reason else text)


@contextmanager
def show_moves(console: Console) -> Iterator[Callable[[Move], None]]:
    """Shows each move that it is given, in a `with`."""
    with bar_or_lines(console, "asks the coordinator") as show:
        yield lambda move: show(move_text(move), move.moved, move.blocks)
