"""How far long work is: a bar on a terminal, and lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from secureps.run.report import bar
from secureps.run.report.bar import bar_or_lines


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
