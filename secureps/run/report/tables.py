"""Tables for a terminal, which lose nothing where it is narrow.

Between words a cell goes on in the next line, a word is never cut. Where whole words do not fit
beside each other either, cells stand below each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_BORDER, _AROUND = 1, 3
"""Columns of a line at the left, and of what is around each cell."""


class WholeTable(Table):
    """A table whose words are whole at every width; the heading may be wider than it."""

    def __init__(self, heading: str) -> None:
        super().__init__()
        self.heading = Text(heading, "table.title")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.heading
        room = options.max_width - _BORDER - _AROUND * len(self.columns)
        wide = options.update(width=1 << 20)
        needs = [_need([c.header, *c.cells], console, wide) for c in self.columns]
        if sum(need.minimum for need in needs) > room:
            yield from self._listed(console)
            return
        for column, width in zip(self.columns, _shared(needs, room), strict=True):
            column.width, column.overflow = width, "fold"
        yield from super().__rich_console__(console, options)

    def _listed(self, console: Console) -> Iterator[RenderableType]:
        """The cells below each other, those of a row under its first one."""
        heads = [_text(column.header, console) for column in self.columns]
        for first, *cells in zip(*(column.cells for column in self.columns), strict=True):
            yield Text.assemble(heads[0], ": " if heads[0] else "", _text(first, console))
            for head, cell in zip(heads[1:], cells, strict=True):
                if text := _text(cell, console):
                    yield Text.assemble("  ", head, ": ", text)


def _need(
    cells: Iterable[RenderableType], console: Console, options: ConsoleOptions
) -> Measurement:
    """The width of the longest word of a column, and that of its longest line."""
    found = [Measurement.get(console, options, cell) for cell in cells]
    return Measurement(max(m.minimum for m in found), max(m.maximum for m in found))


def _shared(needs: Sequence[Measurement], room: int) -> list[int]:
    """Widths of columns: at least their words, and what is left for those first that need least."""
    widths, rest = [need.minimum for need in needs], room - sum(need.minimum for need in needs)
    order = sorted(range(len(needs)), key=lambda k: needs[k].maximum - needs[k].minimum)
    for place, k in enumerate(order):
        more = min(needs[k].maximum - needs[k].minimum, rest // (len(order) - place))
        widths[k], rest = widths[k] + more, rest - more
    return widths


def _text(cell: RenderableType, console: Console) -> Text:
    assert isinstance(cell, str | Text)
    return console.render_str(cell) if isinstance(cell, str) else cell


def filled(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], numbers: bool = False
) -> Table:
    """Makes a table; with `numbers` all its columns but the first are aligned to the right."""
    table = WholeTable(title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and place else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
