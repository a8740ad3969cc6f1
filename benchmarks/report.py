"""Prints the rows of a benchmark as a table and keeps them as JSON; how sure a mean is."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from scipy.stats import t

RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, str | int | float]


def report(name: str, title: str, rows: Sequence[Row]) -> None:
    """Writes results/NAME.json and prints the same; all rows have the first one's keys."""
    show(title, rows)
    RESULTS.mkdir(exist_ok=True)
    content = {"title": title, "machine": machine(), "rows": list(rows)}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def show(title: str, rows: Sequence[Row]) -> None:
    """Prints rows as a table."""
    table = Table(title=title)
    for key in rows[0]:
        text = isinstance(rows[0][key], str)
        table.add_column(key, justify="left" if text else "right")
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    Console(width=120).print(table)


def machine() -> dict[str, str | int | float | None]:
    """What it runs on, and what else runs there."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def cell(value: str | int | float) -> str:
    """A number in three digits, or as many as there are before the point."""
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and value < 100
        else (f"{value:,.0f}" if isinstance(value, float) else str(value))
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval by Student's t; infinite for one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    error = statistics.stdev(values) / math.sqrt(len(values))
    return mean, float(t.ppf(0.975, len(values) - 1)) * error


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, one by one, and the ends of its 95 % interval."""
    mean, half = mean_interval([math.log(a / b) for a, b in zip(above, below, strict=True)])
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
