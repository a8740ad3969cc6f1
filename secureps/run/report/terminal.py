"""Shows the progress of a run, or of a move: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from secureps.crypto.sampling import NO_PRIVACY
from secureps.messages.requests import GroupStatus, Move
from secureps.run.report.group_labels import BESIDE, folded, line, table
from secureps.wording import printable, size

if TYPE_CHECKING:
    from secureps.run.script.scoring import Score

QUIET = 15.0
"""Seconds after which plain progress prints a line again, if no version was made."""


@dataclass(frozen=True)
class View:
    """The state of a run at one moment.

    Args:
        wanted: versions that are made of each group.
        groups: version, step, reason and who is late; empty before the coordinator answers.
        score, scored: of the newest version that was judged, and which that was.
        epsilon, budget, delta: the largest of all clients; budget None without privacy,
            epsilon infinite under an unsafe seed. `adjacency` says what epsilon is of.
        live: clients that are there, of `clients`.
    """

    elapsed: float
    wanted: Mapping[str, int]
    groups: tuple[GroupStatus, ...]
    score: Score | None
    scored: str
    epsilon: float
    budget: float | None
    delta: float
    adjacency: str
    bytes_up: float
    bytes_down: float
    live: int
    clients: int

    @property
    def versions(self) -> dict[str, int]:
        return {group.name: group.version for group in self.groups}


class Progress:
    """Shows a run while it goes, in a `with`; after an error its last view stays."""

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

    def doing(self, text: str) -> None:
        if self._live is None:
            self.say(text)
        else:
            self._live.update(Text(f"{text} ...", "cyan"), refresh=True)

    def show(self, view: View) -> None:
        if self._live is not None:
            self._live.update(self._panel(view), refresh=True)
        elif view.versions != self._told or view.elapsed - self._told_at >= QUIET:
            self._told, self._told_at = view.versions, view.elapsed
            self.say(plain(view) + (f"; {NO_PRIVACY}" if self._unsafe else ""))

    def _panel(self, view: View) -> Panel:
        facts = Table.grid(padding=(0, 2))
        for label, value in _facts(view):
            facts.add_row(Text(label, "dim"), Text(value))
        groups = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        heads, rows = table(view.groups)
        for head in heads:
            groups.add_column(head, overflow="fold")
        for cells in rows:
            groups.add_row(*(Text(cell) for cell in cells))
        title = Text(self._name, "bold")
        subtitle = Text(NO_PRIVACY, "bold red") if self._unsafe else None
        parts = (facts, Text(), groups) if view.groups else (facts,)
        return Panel(Group(*parts), title=title, subtitle=subtitle, title_align="left")


def plain(view: View) -> str:
    facts = "; ".join(f"{label} {value}" for label, value in _facts(view))
    return f"{facts}; {line(view.groups)}" if view.groups else facts


def _facts(view: View) -> Iterable[tuple[str, str]]:
    yield "time", f"{int(view.elapsed) // 60}:{int(view.elapsed) % 60:02d}"
    clients = f"{view.live} of {view.clients} are there"
    if all(version < 0 for version in view.versions.values()):
        yield "clients", clients
        return
    yield "version", folded(view.versions, view.wanted)
    if view.score is not None:
        which = "an older version" if BESIDE in view.scored else f"version {view.scored}"
        older = "" if view.scored == folded(view.versions) else f" ({which})"
        yield f"held-out {view.score.measure}", f"{view.score.value:.3f}{older}"
    if view.budget is not None:
        spent = "infinite" if math.isinf(view.epsilon) else f"{view.epsilon:.2f}"
        yield "epsilon", f"{spent} of {view.budget:g} (delta {view.delta:g}, {view.adjacency})"
    yield "bytes", f"{size(view.bytes_up)} up, {size(view.bytes_down)} down"
    yield "clients", clients


# --- moves of blocks --------------------------------------------------------------

QUIET_MOVE = 10.0
"""Seconds after which a plain line is said again, if nothing has moved."""


def move_text(move: Move) -> str:
    """Says how far a move is: "drain-shard shard-1: 3 of 12 blocks, 0.9 MB of 3.1 MB"."""
    what = f"{move.what} {move.shard}".strip() or "copies that were lost"
    blocks = f"{move.moved} of {move.blocks} blocks"
    text = f"{what}: {blocks}, {size(move.moved_bytes)} of {size(move.bytes)}"
    return printable(f"{text}; {move.reason}" if move.reason else text)


@contextmanager
def show_moves(console: Console) -> Iterator[Callable[[Move], None]]:
    """Shows moves in a bar on a terminal, and in lines elsewhere."""
    if not console.is_terminal:
        yield _move_lines(console)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("asks the coordinator", total=None)

        def show(move: Move) -> None:
            done, of, text = move.moved, move.blocks, move_text(move)
            bar.update(task, completed=done, total=of, description=text, refresh=True)

        yield show


def _move_lines(console: Console) -> Callable[[Move], None]:
    """Prints a move when it has come further, and at least every QUIET_MOVE seconds."""
    last, at = "", 0.0

    def show(move: Move) -> None:
        nonlocal last, at
        text, now = move_text(move), time.monotonic()
        if text != last or now - at >= QUIET_MOVE:
            last, at = text, now
            console.print(text, soft_wrap=True, markup=False, highlight=False)

    return show
