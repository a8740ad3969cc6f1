"""Writes a run's lines while it goes: the Protocol of sinks, and JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from secureps.run.report.totals import At
    from secureps.run.report.version_metrics import Line

METRICS = "metrics.jsonl"
"""The file of JSON lines in a report's folder."""

Record = Mapping[str, Any]


class Sink(Protocol):
    """Takes the lines of one run."""

    def add(self, line: Line) -> None:
        """Takes the line of a published version.

        It may come again with more values: unknown values are added; known ones are replaced
        if the sink can do so, and stay otherwise.
        """

    def close(self, summary: Record | None) -> None:
        """Takes the run's summary, or None if the run broke off, and closes."""


class JsonLines:
    """A file with one line for every version of every group, in the order of publishing.

    A file of an earlier play of the run is replaced: its lines come again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[At, str] = {}

    def add(self, line: Line) -> None:
        """Appends the line of a new version, or rewrites the file with a changed one."""
        append = line.at not in self._lines and (bool(self._lines) or not self._path.exists())
        self._lines[line.at] = json.dumps(line.record()) + "\n"
        if append:
            with self._path.open("a") as file:
                file.write(self._lines[line.at])
            return
        beside = self._path.with_suffix(".new")  # so that nobody reads half a file
        beside.write_text("".join(self._lines.values()))
        beside.replace(self._path)

    def close(self, summary: Record | None) -> None:
        """Does nothing: every line is written already."""


class Sinks:
    """The sinks of a run, in a `with`; one that fails is left out, and the run goes on.

    Args:
        warn: hears which one broke, and why.
    """

    def __init__(self, sinks: tuple[Sink, ...], warn: Callable[[str], None]) -> None:
        self._open = list(sinks)
        self._warn = warn

    def __enter__(self) -> Sinks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(None)

    def add(self, line: Line) -> None:
        """Adds a line to all sinks."""
        self._each(lambda sink: sink.add(line))

    def close(self, summary: Record | None) -> None:
        """Closes the sinks that are open."""
        self._each(lambda sink: sink.close(summary))
        self._open.clear()

    def _each(self, do: Callable[[Sink], None]) -> None:
        for sink in tuple(self._open):
            try:
                do(sink)
            except Exception as error:  # whatever a package, a disk or a server comes up with
                self._open.remove(sink)
                what = f"{type(error).__name__}: {error}"
                self._warn(f"{type(sink).__name__} gets no more lines of this run: {what}")
