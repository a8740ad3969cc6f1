"""`secureps runs`, `stop` and `log`: list the runs of `up`, end a play, and print parties' logs.

They only read folders of this machine, so no server has to run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from secureps.errors import ConfigError, OperatorError, PlanRefused
from secureps.run.up.folder import (
    METRICS,
    ORIGIN,
    PATIENCE,
    Origin,
    RunFolder,
    find_player,
    is_claimed,
)
from secureps.wording import suggest

if TYPE_CHECKING:
    from secureps.policy.plan import Plan


STOPPED = "stopped; secureps resume goes on"
FAILED = "failed: {}; secureps resume tries again"
PLAYED = "is being played"
REPORTING = "{}: its servers have ended, and its report is still being made"


def list_runs(root: Path) -> Iterator[Text]:
    """Yields lines for each run below a folder, the oldest first; ConfigError without the folder.

    Print them unwrapped, so that paths and dates stay whole.
    """
    if not root.is_dir():
        raise ConfigError(
            f"{root}: no such folder; `secureps up PLAN` makes runs/ where it is called"
        )
    found = list[tuple[float, list[Text]]]()
    for path in sorted(root.glob(f"*/{ORIGIN}")):
        with suppress(ConfigError, PlanRefused):  # no run, or one that is still being made
            found.append(_describe_run(RunFolder(path.parent)))
    for _, lines in sorted(found, key=lambda run: run[0]):
        yield from lines


def _describe_run(folder: RunFolder) -> tuple[float, list[Text]]:
    """Returns when a run began, in seconds since 1970, and the lines that describe it."""
    from secureps.run.report.terminal import fold_versions  # imports numpy

    origin, plan = Origin.read(folder), _read_plan(folder)
    summary = _read_summary(folder)
    versions = _read_versions(folder, summary)
    made = {group: versions.get(group, -1) for group in plan.groups}
    wanted = {group: plan.versions(group) for group in plan.groups}
    began = datetime.fromtimestamp(origin.began).strftime("%Y-%m-%d %H:%M")
    facts = [plan.section.name, began, f"version {fold_versions(made, wanted)}"]
    if score := summary.get("score"):
        facts.append(f"held-out {score['measure']} {score['value']:.4f}")
    lines = [Text(str(folder.root), "bold"), Text(f"  {', '.join(facts)}")]
    lines.append(Text(f"  {describe_standing(folder)}"))
    return origin.began, lines + ([Text(f"  {folder.model}")] if folder.model.exists() else [])


def _read_plan(folder: RunFolder) -> Plan:
    from secureps.config.plan import PlanSection
    from secureps.config.sections import parse, read_toml
    from secureps.policy.plan import Plan

    return Plan(parse(PlanSection, read_toml(folder.plan), str(folder.plan)))


def describe_standing(folder: RunFolder) -> str:
    """The state of a run in words: why it ended, that it is played, or why it was interrupted."""
    if summary := _read_summary(folder):
        return str(summary["finished"])
    if is_claimed(folder.root):
        return REPORTING.format(folder.over.read_text()) if folder.over.exists() else PLAYED
    if folder.failed.exists():
        return FAILED.format(folder.failed.read_text())
    return STOPPED


def _read_summary(folder: RunFolder) -> dict[str, Any]:
    if not folder.summary.exists():
        return {}
    summary: dict[str, Any] = json.loads(folder.summary.read_text())
    return summary


def _read_versions(folder: RunFolder, summary: Mapping[str, Any]) -> Mapping[str, int]:
    """The newest version of every group, by the summary, else by the last lines of metrics."""
    if summary:
        return dict(summary["versions"])
    try:
        lines = (folder.report / METRICS).read_text().splitlines()
        return {line["group"]: line["version"] for line in map(json.loads, lines)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # absent or damaged, which must not hide the other runs of a list


STOP_SECONDS = 60.0
"""Seconds for a run to end: its processes stop, and results are written."""

_TICK = 0.05


def stop(root: Path, seconds: float = STOP_SECONDS) -> str:
    """Ends the process that plays a run by SIGTERM, and waits until it is gone.

    Returns the state of the run in a line. Raises OperatorError if the process is unknown, belongs
    to another user, or is still there after so many seconds.
    """
    folder = RunFolder(root.resolve())
    Origin.read(folder)
    if not is_claimed(folder.root):
        return f"nobody plays {root} now: {describe_standing(folder)}"
    process, began = None, time.monotonic()
    while is_claimed(folder.root):
        waited = time.monotonic() - began
        if process is None and (process := find_player(folder.root)) is not None:
            _terminate(root, process)
        elif process is None and waited > PATIENCE:
            raise OperatorError(
                f"{folder.root}: a process plays this run, but its id is not known: end it where "
                "it began"
            )
        elif process is not None and waited > seconds:
            raise OperatorError(
                f"{root}: process {process} was told to stop, and still plays this run after "
                f"{seconds:g} s: wait, or end it with `kill -9 {process}`"
            )
        time.sleep(_TICK)
    return f"{root}: {describe_standing(folder)}"


def _terminate(root: Path, process: int) -> None:
    try:
        with suppress(ProcessLookupError):  # the process has just ended
            os.kill(process, signal.SIGTERM)
    except PermissionError:
        text = f"{root}: process {process} plays this run, and is another user's"
        raise OperatorError(text) from None


# --- party logs --------------------------------------------------------------------

PAUSE = 0.2
"""Seconds between two reads of followed logs."""

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")


class LogReader:
    """Reads one party's log in pieces.

    Args:
        path: the log, whose name is the party's.
        named: each line begins with the party's name.
    """

    def __init__(self, path: Path, named: bool) -> None:
        self._path, self._named = path, named
        self._read, self._stamp = 0, ""

    def read_new(self, whole: bool, most: int = -1) -> list[tuple[str, str]]:
        """Returns the new lines, each with its time.

        A line without a time gets that of the previous line, so that tracebacks stay together.

        Args:
            whole: leave an incomplete last line for the next call.
            most: the most bytes to read; a line that is longer is dropped.
        """
        with self._path.open("rb") as file:
            file.seek(self._read)
            piece = file.read(most)
        self._read += len(piece)
        if whole:
            lines, end, rest = piece.rpartition(b"\n")
            self._read -= len(rest) if end or len(piece) != most else 0
            piece = lines + end
        return [self._add_stamp(line) for line in piece.decode(errors="replace").splitlines()]

    def _add_stamp(self, line: str) -> tuple[str, str]:
        if found := _STAMP.match(line):
            self._stamp = found.group()
        party = f"{self._path.stem}: "
        return self._stamp, f"{party}{line}" if self._named and party not in line else line


def log(
    root: Path, party: str | None = None, tail: int | None = None, follow: bool = False
) -> Iterator[str]:
    """Yields the lines of one party, or of all parties with their names.

    Args:
        tail: the most existing lines; None: all.
        follow: continue with new lines until nobody plays the run.
    """
    folder = RunFolder(root.resolve())
    Origin.read(folder)
    known = sorted(path.stem for path in folder.logs.glob("*.log"))
    if party is not None and party not in known:
        which = suggest(party, known) if known else "no party has been started yet"
        raise ConfigError(f"{root}: no log of {party!r}; {which}")
    logs: dict[Path, LogReader] = {}

    def news(whole: bool) -> Iterator[str]:
        for path in sorted(folder.logs.glob(f"{party or '*'}.log")):
            logs.setdefault(path, LogReader(path, party is None))
        lines = merge(*(each.read_new(whole) for each in logs.values()), key=lambda line: line[0])
        return (said for _, said in lines)

    played = follow and is_claimed(folder.root)
    yield from deque(news(played), tail)
    while played:
        played = is_claimed(folder.root)  # before the read, so that the last one misses nothing
        yield from news(played)
        if played:
            time.sleep(PAUSE)
