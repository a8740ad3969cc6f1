"""A move of blocks is shown in lines that an operator can read, and by a bar on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from secureps.messages.moves import Move
from secureps.run.report.bar import shown, told

PART = Move("drain-shard", "shard-1", 3, 12, 900_000, 3_100_000)
WAITING = Move("add-shard", "shard-2", 0, 4, 0, 1024, "waits for\x1b[2J shard-0")


def test_a_move_is_told_in_a_line() -> None:
    assert told(PART) == "drain-shard shard-1: 3 of 12 blocks, 900.0 kB of 3.1 MB"
    lost = told(Move("", "", 1, 2, 256, 512))
    assert lost == "copies that were lost: 1 of 2 blocks, 256 B of 512 B"
    assert told(WAITING) == (
        "add-shard shard-2: 0 of 4 blocks, 0 B of 1.0 kB; waits for?[2J shard-0"
    )


def test_moves_are_shown_as_they_come() -> None:
    out = io.StringIO()
    with shown(Console(file=out)) as show:
        for move in (PART, PART, WAITING):
            show(move)
    assert out.getvalue().splitlines() == [told(PART), told(WAITING)]
