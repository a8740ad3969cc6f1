"""Shows the progress of a run or of a move: live on a terminal, in plain lines elsewhere.

It also labels groups for status, progress, summaries and pictures: the row-blocks of one table
share a label, because forty rows that say the same help nobody, and a single group has no name.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from secureps.crypto.sampling import NO_PRIVACY
from secureps.messages.requests import GroupStatus, Move
from secureps.wording import named, printable, size

if TYPE_CHECKING:
    from secureps.run.script.scoring import Score


QUIET = 15.0
"""Seconds without a new version after which plain progress prints a line again."""


class Progress:
    """Shows a running run, in a `with`; after an error the last view stays."""

    def __init__(self, console: Console, name: str, unsafe: bool) -> None:
        self._console = console
        self._name = name
        self._unsafe = unsafe
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._told: dict[str, int] = {}
        self._told_at = 0.0

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        if self._unsafe:
            self.say(NO_PRIVACY, "bold red")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live is not None:
            if kind is None:
                self._live.update(Text())
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=True)

    def show_activity(self, text: str) -> None:
        if self._live is None:
            self.say(text)
        else:
            self._live.update(Text(f"{text} ...", "cyan"), refresh=True)

    def show(self, elapsed: float, groups: Sequence[GroupStatus], facts: Mapping[str, str]) -> None:
        """Shows a run's groups and `facts`, which are texts by their labels."""
        versions = {group.name: group.version for group in groups}
        if self._live is not None:
            self._live.update(self._panel(groups, facts), refresh=True)
        elif versions != self._told or elapsed - self._told_at >= QUIET:
            self._told, self._told_at = versions, elapsed
            self.say(plain_text(groups, facts) + (f"; {NO_PRIVACY}" if self._unsafe else ""))

    def _panel(self, groups: Sequence[GroupStatus], facts: Mapping[str, str]) -> Panel:
        grid = Table.grid(padding=(0, 2))
        for label, value in facts.items():
            grid.add_row(Text(label, "dim"), Text(value))
        steps = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        heads, rows = table(groups)
        for head in heads:
            steps.add_column(head, overflow="fold")
        for cells in rows:
            steps.add_row(*(Text(cell) for cell in cells))
        title = Text(self._name, "bold")
        subtitle = Text(NO_PRIVACY, "bold red") if self._unsafe else None
        parts = (grid, Text(), steps) if groups else (grid,)
        return Panel(Group(*parts), title=title, subtitle=subtitle, title_align="left")


def plain_text(groups: Sequence[GroupStatus], facts: Mapping[str, str]) -> str:
    text = "; ".join(f"{label} {value}" for label, value in facts.items())
    return f"{text}; {reason_line(groups)}" if groups else text


def score_text(score: Score, scored: str, versions: Mapping[str, int]) -> str:
    """Writes the newest score, and its version `scored` unless that is the newest."""
    which = "an older version" if BESIDE in scored else f"version {scored}"
    return f"{score.value:.3f}" + ("" if scored == fold_versions(versions) else f" ({which})")


def spent_text(epsilon: float, budget: float, delta: float, adjacency: str) -> str:
    """Writes the largest epsilon of all clients, infinite under an unsafe seed, and its budget."""
    spent = "infinite" if math.isinf(epsilon) else f"{epsilon:.2f}"
    return f"{spent} of {budget:g} (delta {delta:g}, {adjacency})"


def move_text(move: Move) -> str:
    """The progress of a move: "drain-shard shard-1: 3 of 12 blocks, 0.9 MB of 3.1 MB"."""
    what = f"{move.what} {move.shard}".strip() or "copies that were lost"
    blocks = f"{move.moved} of {move.blocks} blocks"
    text = f"{what}: {blocks}, {size(move.moved_bytes)} of {size(move.bytes)}"
    return printable(f"{text}; {move.reason}" if move.reason else text)


# --- group labels ------------------------------------------------------------------

SHOWN = 4
"""The most awaited clients that a row names."""

NO_VERSION = "none"
BESIDE = " / "
"""The separator of groups in a line; commas and semicolons separate the facts of a group."""

_BLOCK = re.compile(r"(.+)\.(\d+)")


def table(groups: Sequence[GroupStatus]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Makes heads and cells; with names if there are several rows, with clips if one adapts."""
    rows = fold_rows(groups)
    heads: tuple[str, ...] = ("version", "step", "why", "waits for")
    if len(rows) > 1:
        heads = ("group", *heads)
    if any(group.clip is not None for group in groups):  # the plan shows constant clips
        heads = (*heads, "clip")
    return heads, [tuple(row[head] for head in heads) for row in rows]


def reason_line(groups: Iterable[GroupStatus]) -> str:
    """Says in one line why each group waits; of several, only those that are not done."""
    rows = fold_rows(groups)
    if all(row["version"].startswith(NO_VERSION) for row in rows):
        return BESIDE.join(dict.fromkeys(row["why"] for row in rows))
    if len(rows) == 1:
        return f"{rows[0]['step']}: {rows[0]['why']}"
    going = [row for row in rows if row["step"] != "done"] or rows
    return BESIDE.join(
        f"{row['group']} {row['step']}: {row['why'].partition('; ')[0]}" for row in going
    )


def fold_rows(groups: Iterable[GroupStatus]) -> list[dict[str, str]]:
    """Makes the cells of each row: one group, or all row-blocks of a table."""
    known = {group.name: group for group in groups}
    return [_make_row([known[name] for name in run]) for run in group_runs(known)]


def fold_versions(versions: Mapping[str, int], wanted: Mapping[str, int] | None = None) -> str:
    """Versions by group: "7" for a single group, "table.0-39 3 to 5 / tower 4" for several.

    Args:
        wanted: the planned versions: "7 of 15", "table.0-39 3 to 5 of 8 / tower 4 of 6", or, once
            some row-blocks have all of theirs, "table: 12 of 40 row-blocks done / tower 4 of 6".
    """
    found = group_runs(versions)
    texts = [_fold_run(run, versions, wanted, several=len(found) > 1) for run in found]
    return BESIDE.join(texts)


def group_runs(names: Iterable[str]) -> list[list[str]]:
    """Splits names of groups into runs: the row-blocks of a table, or a single group."""

    def run_of(at: tuple[int, str]) -> object:
        block = _BLOCK.fullmatch(at[1])
        return at if block is None else (block[1], int(block[2]) - at[0])

    return [[name for _, name in run] for _, run in groupby(enumerate(names), run_of)]


def fold_names(run: Sequence[str]) -> str:
    """The name of one group, or of row-blocks: "table.0-39"."""
    return run[0] if len(run) == 1 else f"{run[0]}-{run[-1].rpartition('.')[2]}"


def _fold_run(
    run: list[str], versions: Mapping[str, int], wanted: Mapping[str, int] | None, several: bool
) -> str:
    own = [versions[name] for name in run]
    text, name = _span_text(own), fold_names(run)
    if wanted is not None:
        text += f" of {wanted[run[0]]}"
        done = sum(version >= wanted[run[0]] for version in own)
        if 0 < done < len(run):
            text, name = f"{done} of {len(run)} row-blocks done", f"{run[0].rpartition('.')[0]}:"
    return f"{name} {text}" if several else text


def _span_text(versions: Sequence[int]) -> str:
    least, most = (NO_VERSION if v < 0 else str(v) for v in (min(versions), max(versions)))
    return least if least == most else f"{least} to {most}"


def _make_row(run: list[GroupStatus]) -> dict[str, str]:
    slowest = min(run, key=lambda group: (group.step == "done", group.version))
    alike = len({group.reason for group in run}) == 1
    late = sorted({name for group in run for name in group.late})
    return {
        "group": fold_names([group.name for group in run]),
        "version": _span_text([group.version for group in run]),
        "step": _step_text(run),
        "why": slowest.reason if alike else f"{slowest.name}: {slowest.reason}",
        "waits for": named(late, SHOWN),
        "clip": "-" if slowest.clip is None else f"{slowest.clip:.4g}",
    }


def _step_text(run: list[GroupStatus]) -> str:
    count = Counter(group.step for group in run)
    if len(count) == 1:
        return run[0].step
    return ", ".join(f"{number} {step}" for step, number in count.most_common())
