"""Draws what a GPU was measured to do: tables and a picture, beside the goals.

    python -m benchmarks.gpu.page [results/gpu.json] [--publish]

Writes `gpu.md`, with every table, and `gpu.png` beside the file. With `--publish` the picture
goes into docs/assets, and into docs/gpu.md; what was played on a CPU is refused.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, Row, cell, filled

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "gpu.md"
PICTURE = ROOT / "docs" / "assets" / "gpu.png"

Found = Mapping[str, Any]
"""What `benchmarks.gpu` wrote."""


@dataclass(frozen=True)
class Goal:
    """A goal, and what was reached.

    Args:
        most: whether less is better.
        reached: by what; empty where it was not measured.
    """

    name: str
    goal: float
    most: bool
    reached: Mapping[str, float]

    def met(self, value: float) -> bool:
        """Whether a value is as good as the goal, or better."""
        return value <= self.goal if self.most else value >= self.goal


def goals(found: Found) -> list[Goal]:
    """Those of the device, of which `docs/gpu.md` tells."""

    private = {
        row["model"]: row["to plain"]
        for row in found["sections"].get("private steps", [])
        if row["way"] == "secureps"
    }
    return [Goal("a private step to a plain one, at most", 1.5, True, private)]


def heading(found: Found) -> str:
    """What was measured."""
    machine = found["machine"]
    cores, load = machine["cores"], machine["load"]
    return (
        f"{found['device']}, torch {found['torch']}, {cores} cores, load {load:.1f} at the start."
    )


def markdown(found: Found) -> str:
    """Goals, then every section as a table, then what was left out."""
    lines = [heading(found), ""]
    told = list[Row]()
    for each in goals(found):
        of: Mapping[str, float | str] = each.reached or {"not measured": ""}
        for name, value in of.items():
            row: Row = {
                "goal": each.name,
                "aim": each.goal,
                "of": name,
                "reached": value,
                "met": _word(each, value),
            }
            told.append(row)
    lines += [*_table(told), ""]
    for name, rows in found["sections"].items():
        lines += [f"{name[0].upper()}{name[1:]}:", "", *_table(rows), ""]
    lines += [f"- {name}: left out, or not whole: {why}" for name, why in found["left out"].items()]
    return "\n".join(lines).strip()


def _word(goal: Goal, value: float | str) -> str:
    return "" if isinstance(value, str) else ("yes" if goal.met(value) else "no")


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield _line(rows[0])
    yield _line(["---"] * len(rows[0]))
    for row in rows:
        yield _line([_told(each) for each in row.values()])


def _told(value: float | str) -> str:
    """What a cell says: nothing for 0, which was not measured."""
    return (f"{value:,}" if isinstance(value, int) else cell(value)) if value else ""


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(each).replace("|", "/") for each in cells) + " |"


def draw(found: Found, path: Path) -> None:
    """Writes a PNG: how many times as fast as one core each step was, and each goal."""
    from matplotlib.figure import Figure

    ratios = {
        _named(section, row): row["times as fast"]
        for section, rows in found["sections"].items()
        for row in rows
        if row.get("times as fast")
    }
    aims = goals(found)
    tall = 2.5 + 0.2 * max(len(ratios), sum(2 + len(aim.reached) for aim in aims))
    figure = Figure(figsize=(13, tall), layout="constrained")
    figure.suptitle(found["title"])
    halves: Any = figure.subfigures(1, 2)
    left, right = halves
    _bars(left.subplots(), "times as fast as one core (log scale)", ratios, None, log=True)
    heights = [2 + len(aim.reached) for aim in aims]
    for axes, aim in zip(
        right.subplots(len(aims), height_ratios=heights, squeeze=False)[:, 0], aims, strict=True
    ):
        _bars(axes, f"{aim.name} {aim.goal:g}", aim.reached, aim, log=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _named(section: str, row: Row) -> str:
    """What a bar is of; rotations have sizes."""
    name = str(row.get("step", row.get("model")))
    return f"{name}, 10^{math.log10(int(row['values'])):.3g}" if section == "rotations" else name


def _bars(axes: Any, title: str, values: Mapping[str, float], goal: Goal | None, log: bool) -> None:
    axes.set_title(title, fontsize=9)
    start = 1.0 if log else 0.0  # a bar to the left is of what one core does sooner
    for y, value in enumerate(values.values()):
        met = goal.met(value) if goal is not None else value >= 1
        axes.barh(y, value - start, 0.7, start, color="#3182bd" if met else "#de7a22")
        axes.annotate(
            cell(float(value)), (max(value, start), y), (3, 0), textcoords="offset points",
            va="center", fontsize=7,
        )  # fmt: skip
    if not values:
        axes.annotate("not measured", (0.5, 0.5), xycoords="axes fraction", ha="center")
    if goal is not None:
        axes.axvline(goal.goal, color="#444444", linewidth=1, linestyle="--")
    if log and values:
        axes.set_xscale("log")
        axes.set_xlim(min(1.0, *values.values()) / 2, 5 * max(values.values()))
    axes.set_yticks(range(len(values)), list(values), fontsize=7)
    axes.invert_yaxis()
    if not log:
        axes.margins(x=0.15)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    written = RESULTS / "gpu.json"
    parser.add_argument("file", type=Path, nargs="?", default=written, help="of benchmarks.gpu")
    parser.add_argument("--publish", action="store_true", help="into docs/gpu.md and docs/assets")
    asked = parser.parse_args(arguments)
    found = json.loads(asked.file.read_text())
    text, picture = markdown(found), asked.file.with_suffix(".png")
    asked.file.with_suffix(".md").write_text(f"{text}\n")
    draw(found, picture)
    print(f"written: {asked.file.with_suffix('.md')}, {picture}")
    if asked.publish:
        if found["tiny"]:
            parser.error("it was played on a CPU, in a tiny form: that is no measurement")
        text = f"{heading(found)}\n\n![A GPU beside one core](assets/{PICTURE.name})"
        PAGE.write_text(filled(PAGE.read_text(), "gpu", text))
        shutil.copy(picture, PICTURE)


if __name__ == "__main__":
    main()
