"""Outcomes as a table, in the terminal and in Markdown, and as what a chart shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.peers.outcome import Figures, Outcome

COLUMNS: Mapping[str, Callable[[Figures], str]] = {
    "seconds a round": lambda f: number(f.wall),
    "CPU s, clients": lambda f: number(f.client_cpu),
    "CPU s, servers": lambda f: number(f.server_cpu),
    "bytes up a value": lambda f: number(f.up),
    "down": lambda f: number(f.down),
    "peak GB": lambda f: number(f.peak / 1e9),
    "error of the mean": lambda f: "" if f.error is None else f"{f.error:.0e}",
}


def number(value: float | None) -> str:
    """Three digits, or as many as there are before the point; nothing for what was not counted."""
    if value is None:
        return "not counted"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def cells(outcome: Outcome) -> list[str]:
    """Who it was, and a cell for each column; why there are no figures stands in the first."""
    if outcome.figures is None:
        why = f"{outcome.status}: {outcome.detail}" if outcome.detail else outcome.status
        return [outcome.peer, why, *[""] * (len(COLUMNS) - 1)]
    return [outcome.peer, *(text(outcome.figures) for text in COLUMNS.values())]


def title(values: int, outcomes: Sequence[Outcome]) -> str:
    """Of the table of one size."""
    return f"{values:,} float32 values, {outcomes[0].clients} clients"


def by_size(outcomes: Sequence[Outcome]) -> dict[int, list[Outcome]]:
    """Sizes and what was played with each, in the order in which they came."""
    found: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.values, []).append(outcome)
    return found


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Prints one table for each size."""
    for values, those in by_size(outcomes).items():
        table = Table("peer", title=title(values, those))
        for name in COLUMNS:
            table.add_column(name, justify="right")
        for outcome in those:
            table.add_row(*cells(outcome))
        console.print(table)


def markdown(outcomes: Sequence[Outcome], machine: str) -> str:
    """The same for a page, with the machine and what is said of single peers below."""
    lines = []
    for values, those in by_size(outcomes).items():
        lines += [f"{title(values, those)}:", ""]
        lines += [_row(["system", *COLUMNS]), _row(["---"] * (len(COLUMNS) + 1))]
        lines += [_row(cells(outcome)) for outcome in those]
        lines.append("")
    return "\n".join([*lines, machine, "", *_remarks(outcomes)])


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "/") for text in texts) + " |"


def _remarks(outcomes: Sequence[Outcome]) -> list[str]:
    found: dict[str, str] = {}
    for each in outcomes:
        words = (each.version, each.detail if each.figures else "", each.bytes_from)
        found.setdefault(each.peer, "; ".join(filter(None, words)))
    return [f"- {peer}: {said}." for peer, said in found.items() if said]


def bars(
    outcomes: Sequence[Outcome], of: Callable[[Figures], float | None]
) -> list[tuple[str, dict[int, float | str]]]:
    """For a chart: each peer and, by size, its figure or why it has none; "" where not played."""
    sizes = list(by_size(outcomes))
    found: dict[str, dict[int, float | str]] = {}
    for each in outcomes:
        row = found.setdefault(each.peer, dict.fromkeys(sizes, ""))
        value = of(each.figures) if each.figures else None
        row[each.values] = value if value is not None else (each.status if not each.figures else "")
    return list(found.items())
