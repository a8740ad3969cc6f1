"""Prints the rows of a benchmark as a table and keeps them as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, str | int | float]


def report(name: str, title: str, rows: Sequence[Row]) -> None:
    """Writes results/NAME.json and prints the same; all rows have the first one's keys."""
    table = Table(title=title)
    for key in rows[0]:
        text = isinstance(rows[0][key], str)
        table.add_column(key, justify="left" if text else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console(width=120).print(table)
    RESULTS.mkdir(exist_ok=True)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    content = {"title": title, "machine": machine, "rows": list(rows)}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def _cell(value: str | int | float) -> str:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and value < 100
        else (f"{value:,.0f}" if isinstance(value, float) else str(value))
    )
