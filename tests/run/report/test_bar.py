"""How far long work is, a move of blocks too: a bar on a terminal, and lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from secureps.messages.requests import Move
from secureps.run.report import bar
from secureps.run.report.bar import bar_or_lines, move_text, show_moves

PART = Move("drain-shard", "shard-1", 3, 12, 900_000, 3_100_000)
WAITING = Move("add-shard", "shard-2", 0, 4, 0, 1024, "waits for\x1b[2J shard-0")


def test_lines_come_when_it_has_come_further(monkeypatch: pytest.MonkeyPatch) -> None:
    out, clock = io.StringIO(), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with bar_or_lines(Console(file=out), "begins") as show:
        for _ in range(3):
            show("[one] of 3", 1, 3)
        clock[0] += bar.QUIET
        show("[one] of 3", 1, 3)
        show("two of 3", 2, 3)
    assert out.getvalue().splitlines() == ["[one] of 3", "[one] of 3", "two of 3"]


def test_a_terminal_has_a_bar_that_goes_away() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with bar_or_lines(console, "begins") as show:
        show("[one] of 3", 1, 3)
    assert "begins" in out.getvalue()
    assert "[one] of 3" in out.getvalue()
    assert out.getvalue().rstrip().endswith("\x1b[2K"), "nothing of it stays"


def test_a_move_is_told_in_a_line() -> None:
    assert move_text(PART) == "drain-shard shard-1: 3 of 12 blocks, 900.0 kB of 3.1 MB"
    lost = move_text(Move("", "", 1, 2, 256, 512))
    assert lost == "copies that were lost: 1 of 2 blocks, 256 B of 512 B"
    assert move_text(WAITING) == (
        "add-shard shard-2: 0 of 4 blocks, 0 B of 1.0 kB; waits for?[2J shard-0"
    )


def test_moves_are_shown_as_they_come() -> None:
    out = io.StringIO()
    with show_moves(Console(file=out)) as show:
        for move in (PART, PART, WAITING):
            show(move)
    assert out.getvalue().splitlines() == [move_text(PART), move_text(WAITING)]
