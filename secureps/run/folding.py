"""Groups as rows of a table, row-blocks of one table in one: what status and progress show.

A reader wants to know how far a table is and what holds it up, and not forty times the same. What
must not live here: how a row looks (`run.standing`, `run.progress`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from secureps.messages.requests import GroupStatus
from secureps.policy.rule import named

SHOWN = 4
"""Names of those who are waited for that a row has."""

_BLOCK = re.compile(r"(.+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One group, or the row-blocks of one table: versions from the least to the greatest."""

    name: str
    version: str
    step: str
    reason: str
    late: str
    clip: str


def rows(groups: Iterable[GroupStatus]) -> tuple[Row, ...]:
    """In the order of the groups."""
    runs: list[list[GroupStatus]] = []
    for group in groups:
        if runs and _follows(runs[-1][-1].name, group.name):
            runs[-1].append(group)
        else:
            runs.append([group])
    return tuple(_row(run) for run in runs)


def folded(versions: Mapping[str, int]) -> str:
    """Versions by group in words: of one group alone, or of each, row-blocks together."""
    if len(versions) == 1:
        return "".join(str(version) for version in versions.values())
    runs: list[list[str]] = []
    for name in versions:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{_name(run)} {_span([versions[name] for name in run])}" for run in runs)


def _name(run: list[str]) -> str:
    return run[0] if len(run) == 1 else f"{run[0]} to {run[-1].rpartition('.')[2]}"


def _span(versions: list[int]) -> str:
    least, most = min(versions), max(versions)
    return str(least) if least == most else f"{least} to {most}"


def _follows(last: str, name: str) -> bool:
    """Whether NAME.K + 1 comes after NAME.K."""
    one, other = _BLOCK.fullmatch(last), _BLOCK.fullmatch(name)
    if one is None or other is None or one[1] != other[1]:
        return False
    return int(other[2]) == int(one[2]) + 1


def _row(run: list[GroupStatus]) -> Row:
    slowest = min(run, key=lambda group: (group.step == "done", group.version))
    alike = len({group.reason for group in run}) == 1
    late = sorted({name for group in run for name in group.late})
    return Row(
        name=_name([group.name for group in run]),
        version=_span([group.version for group in run]),
        step=_steps(run),
        reason=slowest.reason if alike else f"{slowest.name}: {slowest.reason}",
        late=named(late, SHOWN),
        clip="-" if slowest.clip is None else f"{slowest.clip:.4g}",
    )


def _steps(run: list[GroupStatus]) -> str:
    """The step that all are in, or how many are in each."""
    count = Counter(group.step for group in run)
    if len(count) == 1:
        return run[0].step
    return ", ".join(f"{number} {step}" for step, number in count.most_common())
