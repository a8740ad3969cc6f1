"""Labels of groups: row-blocks of one table together, and no name for an only group.

A reader wants to know once, not forty times, how far a table is and why it waits: status,
progress, summaries, lists and pictures share these labels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from secureps.messages.requests import GroupStatus
from secureps.wording import named

SHOWN = 4
"""The most names of awaited clients in a row."""

BESIDE = " / "
"""The separator of groups in a line, whose facts have commas and semicolons."""

_BLOCK = re.compile(r"(.+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a status: one group, or the row-blocks of a table from least to greatest version.

    `founded`: each of them has a version.
    """

    name: str
    version: str
    step: str
    reason: str
    late: str
    clip: str
    founded: bool = True


def rows(groups: Iterable[GroupStatus]) -> tuple[Row, ...]:
    known = {group.name: group for group in groups}
    return tuple(_row([known[name] for name in run]) for run in runs(known))


def table(groups: Sequence[GroupStatus]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and cells: with names if there are several rows, with clips if one adapts."""
    heads: tuple[str, ...] = ("version", "step", "why", "waits for")
    shown = rows(groups)
    cells: list[tuple[str, ...]] = [(r.version, r.step, r.reason, r.late) for r in shown]
    if len(shown) > 1:
        heads, cells = ("group", *heads), [(r.name, *cell) for r, cell in zip(shown, cells)]
    if any(group.clip is not None for group in groups):  # a clip that stays is in the plan
        heads, cells = (*heads, "clip"), [(*cell, r.clip) for r, cell in zip(shown, cells)]
    return heads, cells


def line(groups: Iterable[GroupStatus]) -> str:
    """Says in one line why each group waits; of several groups, those that are not done."""
    shown = rows(groups)
    if not any(row.founded for row in shown):
        return BESIDE.join(dict.fromkeys(row.reason for row in shown))
    if len(shown) == 1:
        return f"{shown[0].step}: {shown[0].reason}"
    going = [row for row in shown if row.step != "done"] or shown
    return BESIDE.join(f"{r.name} {r.step}: {r.reason.partition('; ')[0]}" for r in going)


def folded(versions: Mapping[str, int], wanted: Mapping[str, int] | None = None) -> str:
    """Versions by group: "7" of an only one, "table.0-39 3 to 5 / tower 4" of several.

    Args:
        wanted: how many are made of each: "7 of 15", "table.0-39 3 to 5 of 8 / tower 4 of 6"; once
            some row-blocks have all of theirs, "table: 12 of 40 row-blocks done / tower 4 of 6".
    """
    found = runs(versions)
    texts = [_made(run, versions, wanted, several=len(found) > 1) for run in found]
    return BESIDE.join(texts)


def runs(names: Iterable[str]) -> list[list[str]]:
    """Collects names of groups, in their order, with the row-blocks of a table together."""
    found: list[list[str]] = []
    for name in names:
        if found and _follows(found[-1][-1], name):
            found[-1].append(name)
        else:
            found.append([name])
    return found


def fold(run: Sequence[str]) -> str:
    """The name of one group, or of row-blocks: "table.0-39"."""
    return run[0] if len(run) == 1 else f"{run[0]}-{run[-1].rpartition('.')[2]}"


def _made(
    run: list[str], versions: Mapping[str, int], wanted: Mapping[str, int] | None, several: bool
) -> str:
    own = [versions[name] for name in run]
    text, name = _span(own), fold(run)
    if wanted is not None:
        text += f" of {wanted[run[0]]}"
        done = sum(version >= wanted[run[0]] for version in own)
        if 0 < done < len(run):
            text, name = f"{done} of {len(run)} row-blocks done", f"{run[0].rpartition('.')[0]}:"
    return f"{name} {text}" if several else text


def _span(versions: Sequence[int]) -> str:
    least, most = ("none" if v < 0 else str(v) for v in (min(versions), max(versions)))
    return least if least == most else f"{least} to {most}"


def _follows(last: str, name: str) -> bool:
    one, other = _BLOCK.fullmatch(last), _BLOCK.fullmatch(name)
    if one is None or other is None or one[1] != other[1]:
        return False
    return int(other[2]) == int(one[2]) + 1


def _row(run: list[GroupStatus]) -> Row:
    slowest = min(run, key=lambda group: (group.step == "done", group.version))
    alike = len({group.reason for group in run}) == 1
    late = sorted({name for group in run for name in group.late})
    return Row(
        name=fold([group.name for group in run]),
        version=_span([group.version for group in run]),
        step=_steps(run),
        reason=slowest.reason if alike else f"{slowest.name}: {slowest.reason}",
        late=named(late, SHOWN),
        clip="-" if slowest.clip is None else f"{slowest.clip:.4g}",
        founded=all(group.version >= 0 for group in run),
    )


def _steps(run: list[GroupStatus]) -> str:
    count = Counter(group.step for group in run)
    if len(count) == 1:
        return run[0].step
    return ", ".join(f"{number} {step}" for step, number in count.most_common())
