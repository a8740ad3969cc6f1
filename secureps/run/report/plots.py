"""Draws a run's metrics: scores, epsilon, bytes, and the waiting times of clients.

Only this module imports matplotlib, and uses only its `Figure`, without windows or global state.
The colours are Okabe and Ito's ("Color Universal Design", 2008) and cividis, which most people with
colour blindness can distinguish.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from secureps.crypto.sampling import NO_PRIVACY
from secureps.errors import ConfigError
from secureps.extras import from_extras
from secureps.messages.requests import UP
from secureps.run.report.terminal import fold_names, group_runs
from secureps.run.report.version_metrics import DOWN, Line, Wait

CURVES, WAITING, STUDY, AUDIT = "curves.png", "waiting.png", "study.png", "audit.png"
"""The files in a report's folder."""

SHOWN = 100
"""The most clients in a picture of waiting times."""

BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SERIES = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", VERMILLION)
GREY, PALE = "#666666", "#E5E5E5"

_DPI = 130
_TIMES = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
_SIZES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"))


@dataclass(frozen=True)
class Sheet:
    """The texts and settings of a run's pictures.

    Args:
        clock: the kind of elapsed time: "time" or "virtual time".
        groups: of the plan, in its order; empty: in the order of the lines.
        budget, delta: of each client; None without privacy.
        adjacency: what epsilon protects.
        measure: the name of the scores in `references`.
        references: scores of other models by their names, which are drawn as lines.
    """

    name: str
    clock: str
    unsafe: bool
    groups: tuple[str, ...] = ()
    budget: float | None = None
    delta: float | None = None
    adjacency: str = ""
    measure: str = ""
    references: Mapping[str, float] = field(default_factory=dict)


def why_undrawable() -> str:
    """The reason why nothing can be drawn, and what to install; empty if matplotlib is there."""
    try:
        with from_extras():
            import matplotlib  # noqa: F401
    except ConfigError as error:
        return f"no curves: {error}"
    return ""


def draw(lines: Sequence[Line], sheet: Sheet, folder: Path) -> None:
    """Writes or replaces `curves.png` and `waiting.png`, if matplotlib is there."""
    if why_undrawable():
        return
    draw_curves(lines, sheet, folder / CURVES)
    draw_waiting(lines, sheet, folder / WAITING)


# --- curves: scores, epsilon, bytes ------------------------------------------------


def draw_curves(lines: Sequence[Line], sheet: Sheet, path: Path) -> None:
    lines = sorted(lines, key=lambda line: line.elapsed)  # versions of several groups interleave
    names = {name for line in lines for name in (*line.scores, *line.federated)} - {"loss"}
    measure = "accuracy" if "accuracy" in names else min(names, default="loss")
    above = [measure, "loss"] if measure != "loss" else ["loss", "loss"]
    private = sheet.budget is not None and not sheet.unsafe
    below = ["spent", "sent"] if private else ["sent", "sent"]
    title = f"{sheet.name}: what it learned, spent and sent"
    if sheet.budget is None and not sheet.unsafe:
        title += "\nthe plan has no privacy"
    figure = _figure(title, sheet.unsafe, 10.0, 7.0)
    axes = figure.subplot_mosaic([above, below])
    for name in dict.fromkeys(above):
        _draw_scores(axes[name], name, lines, sheet)
    if private:
        _draw_spent(axes["spent"], lines, sheet)
    _draw_sent(axes["sent"], lines, sheet)
    _save(figure, path)


def _draw_scores(axes: Any, name: str, lines: Sequence[Line], sheet: Sheet) -> None:
    judged = [line for line in lines if name in line.scores]
    federated = [line for line in lines if name in line.federated]
    _set_titles(axes, f"held-out {name}", "no held-out score")
    if not judged and not federated:
        _draw_text(axes, "nobody could judge this model")
        return
    scale, unit = _choose_unit(max(line.elapsed for line in lines), _TIMES)
    times = [line.elapsed / scale for line in judged]
    scores = [line.scores[name] for line in judged]
    axes.plot(times, scores, color=BLUE, marker=_marker("o", times), ms=3)
    if federated:
        times = [line.elapsed / scale for line in federated]
        values = [line.federated[name] for line in federated]
        text = "the federation's own evaluation"
        axes.plot(times, values, color=ORANGE, marker=_marker("s", times), ms=4, label=text)
        axes.legend(fontsize=8)
    last = (judged or federated)[-1]
    value = last.scores[name] if judged else last.federated[name]
    _set_titles(axes, f"held-out {name}", f"{value:.3f} at version {last.version}")
    if name == sheet.measure:
        for (label, value), colour, dashes in zip(
            sheet.references.items(), (GREEN, VERMILLION, GREY), ("--", "-.", ":")
        ):
            text = f"{label}: {value:.3f}"
            axes.axhline(value, color=colour, ls=dashes, lw=1.2, label=text)
        if sheet.references:
            axes.legend(fontsize=8)
    axes.set(xlabel=f"{sheet.clock}, {unit}", ylabel=name)


def _draw_spent(axes: Any, lines: Sequence[Line], sheet: Sheet) -> None:
    _set_titles(axes, "privacy spent", "the largest epsilon of all clients")
    groups = _group_lines(lines)
    for (group, own), colour in zip(groups.items(), SERIES * len(groups)):
        seen = [line for line in own if line.epsilon is not None and math.isfinite(line.epsilon)]
        versions, epsilons = [line.version for line in seen], [line.epsilon for line in seen]
        label = f"at {group}'s versions" if len(groups) > 1 else None
        marker = _marker("o", versions)
        axes.plot(versions, epsilons, color=colour, marker=marker, ms=3, label=label)
    text = f"budget: {sheet.budget:g}, of {sheet.adjacency}"
    axes.axhline(sheet.budget, color=VERMILLION, ls="--", lw=1.2, label=text)
    axes.set(xlabel="version", ylabel=f"epsilon (delta {sheet.delta:g})")
    axes.set_ylim(bottom=0)
    _use_whole_ticks(axes)
    axes.legend(fontsize=8)


def _draw_sent(axes: Any, lines: Sequence[Line], sheet: Sheet) -> None:
    series = {
        name: list(accumulate((line.figures.get(name, 0.0) for line in lines), initial=0.0))
        for name in (UP, DOWN)
    }
    size, unit = _choose_unit(max(own[-1] for own in series.values()), _SIZES)
    scale, time = _choose_unit(max((line.elapsed for line in lines), default=0.0), _TIMES)
    times = [line.elapsed / scale for line in lines]
    for name, label, colour, shape in (
        (UP, "up: updates", BLUE, "^"),
        (DOWN, "down: models", ORANGE, "v"),
    ):
        values = [value / size for value in series[name][1:]]
        text = f"{label}, {series[name][-1] / size:.1f} {unit}"
        axes.plot(times, values, color=colour, marker=_marker(shape, times), ms=4, label=text)
    _set_titles(axes, "payload of all clients", "since the start")
    axes.set(xlabel=f"{sheet.clock}, {time}", ylabel=unit)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize=8)


# --- waiting times ----------------------------------------------------------------


def draw_waiting(lines: Sequence[Line], sheet: Sheet, path: Path) -> None:
    """Draws the seconds from the beginning of each version to each client's update.

    A version begins with its round or, without rounds, with the previous version. The picture has a
    strip with all waits of each client, and for every group (or table) a map of clients by
    versions. The slowest clients come first, and at most SHOWN are drawn.
    """
    groups = _fold_waits(lines, sheet)
    medians = _find_medians(lines)
    shown = list(medians)[:SHOWN]
    height = 2.6 + max(0.15 * len(shown), 2.0)
    title = f"{sheet.name}: for whom versions waited"
    if len(shown) < len(medians):
        title += f" (the {len(shown)} slowest of {len(medians)} clients)"
    figure = _figure(title, sheet.unsafe, 6.0 + 5.0 * max(len(groups), 1), height)
    if not groups:
        axes = figure.subplots()
        _draw_text(axes, "no version was measured")
        _save(figure, path)
        return
    norm = _choose_norm([w.seconds for line in lines for w in line.waits.values()])
    strip, *maps = figure.subplots(
        1, 1 + len(groups), sharey=True, width_ratios=[1.0] + [1.2] * len(groups)
    )
    _draw_strip(strip, lines, {client: medians[client] for client in shown}, norm)
    for axes, (group, own) in zip(maps, groups.items()):
        _set_titles(axes, "every version", f"of {group}" if len(groups) > 1 else "")
        image = _draw_map(axes, own, shown, norm)
    figure.colorbar(
        image, ax=maps, label="waited, s", format="{x:g}", fraction=0.04, aspect=4 * height
    )
    figure.legend(handles=_legend_handles(), loc="outside lower center", ncols=4, fontsize=8)
    _save(figure, path)


def _fold_waits(lines: Sequence[Line], sheet: Sheet) -> dict[str, dict[int, dict[str, Wait]]]:
    """Collects waits by group, version and client; row-blocks of a table share their longest."""
    groups = _group_lines([line for line in lines if line.waits])
    found: dict[str, dict[int, dict[str, Wait]]] = {}
    for run in group_runs(sheet.groups or groups):
        for line in (line for group in run for line in groups.get(group, ())):
            longest = found.setdefault(fold_names(run), {}).setdefault(line.version, {})
            for client, wait in line.waits.items():
                if client not in longest or wait.seconds > longest[client].seconds:
                    longest[client] = wait
    return found


def _find_medians(lines: Sequence[Line]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    for line in lines:
        for client, wait in line.waits.items():
            seconds.setdefault(client, []).append(wait.seconds)
    medians = {client: statistics.median(own) for client, own in seconds.items()}
    return dict(sorted(medians.items(), key=lambda each: (-each[1], each[0])))


def _choose_norm(seconds: Sequence[float]) -> Any:
    """Scales colours by seconds, or by their logarithm if a few long waits would hide the rest."""
    from matplotlib.colors import LogNorm, Normalize

    least, most = min(seconds), max(seconds)
    if least > 0 and most > 20 * statistics.median(seconds):
        return LogNorm(least, most)
    return Normalize(0.0, max(most, 1e-9))


def _draw_strip(axes: Any, lines: Sequence[Line], medians: Mapping[str, float], norm: Any) -> None:
    from matplotlib.colors import LogNorm

    rows = {client: row for row, client in enumerate(medians)}
    came, missed = (
        [
            (wait.seconds, rows[client])
            for line in lines
            for client, wait in line.waits.items()
            if client in rows and wait.arrived is arrived
        ]
        for arrived in (True, False)
    )
    alpha = min(0.5, max(0.18, 8 * len(rows) / max(len(came), 1)))
    # one line for all clients, because each line is slow to draw
    axes.plot(*_split(came), "o", color=BLUE, ms=4, alpha=alpha, mew=0)
    axes.plot(*_split(missed), "x", color=VERMILLION, ms=4)
    axes.plot(list(medians.values()), range(len(rows)), "|", color="black", ms=8, mew=1.5)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8 if len(rows) <= 40 else 6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    if isinstance(norm, LogNorm):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel("waited since the version began, s")
    axes.grid(axis="x", alpha=0.3)
    _set_titles(axes, "every client", "slowest first")


def _split(points: Sequence[tuple[float, int]]) -> tuple[list[float], list[int]]:
    return [x for x, _ in points], [y for _, y in points]


def _draw_map(
    axes: Any, versions: Mapping[int, Mapping[str, Wait]], clients: Sequence[str], norm: Any
) -> Any:
    import numpy as np

    first, last = min(versions), max(versions)
    seconds = np.full((len(clients), last - first + 1), np.nan)
    missed: list[tuple[int, int]] = []
    axes.set_facecolor(PALE)
    for version, waits in sorted(versions.items()):
        for row, client in enumerate(clients):
            wait = waits.get(client)
            if wait is not None and wait.arrived:
                seconds[row, version - first] = wait.seconds
            elif wait is not None:
                missed.append((version, row))
    extent = (first - 0.5, last + 0.5, len(clients) - 0.5, -0.5)
    image = axes.imshow(
        seconds, cmap="cividis", norm=norm, extent=extent, aspect="auto", interpolation="none"
    )
    marker = max(2.0, min(5.0, 200.0 / seconds.shape[1]))
    axes.plot(*_split(missed), "x", color=VERMILLION, ms=marker)
    axes.tick_params(left=False, labelleft=False)
    _use_whole_ticks(axes)
    axes.set_xlabel("version")
    axes.grid(False)
    return image


def _legend_handles() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Line2D([], [], marker="o", ls="", color=BLUE, ms=5, label="update arrived"),
        Line2D([], [], marker="|", ls="", color="black", ms=9, mew=1.5, label="median"),
        Line2D([], [], marker="x", ls="", color=VERMILLION, ms=6, label="no update at the close"),
        Patch(color=PALE, label="no part in it"),
    ]


# --- studies ----------------------------------------------------------------------


def draw_study(
    curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    name: str,
    measure: str,
    target: float,
    folder: Path,
) -> None:
    """Writes `study.png`, with a line for every seed of a variant, if matplotlib is there.

    Args:
        curves: (virtual seconds above 0, score), by variant and seed.
        target: drawn as a line.
    """
    if why_undrawable():
        return
    figure = _figure(f"study of {name}: {measure} over virtual time", True, 10.0, 5.5)
    axes = figure.subplots()
    for (variant, seeds), colour in zip(curves.items(), SERIES * len(curves)):
        for index, points in enumerate(seeds):
            times, scores = [t for t, _ in points], [score for _, score in points]
            label = variant if index == 0 else None
            axes.plot(times, scores, color=colour, lw=1.1, alpha=0.8, label=label)
            axes.plot(times[-1:], scores[-1:], "o", color=colour, ms=4)
    axes.axhline(target, color=GREY, ls="--", lw=1.2, label=f"target: {target:g}")
    axes.set(xlabel="virtual time, s", ylabel=f"held-out {measure}", xscale="log")
    axes.xaxis.set_major_formatter("{x:g}")
    _set_titles(axes, "one line per seed", "until the target is held")
    axes.legend(fontsize=8)
    _save(figure, folder / STUDY)


# --- audits -----------------------------------------------------------------------


def draw_audit(page: Mapping[str, Any], folder: Path) -> None:
    """Writes `audit.png` of the page that `run.attacks` makes, if matplotlib is there."""
    if why_undrawable():
        return
    rows, bars = page["releases"], {"claimed": GREY, "shown": BLUE, "half_noise": PALE}
    title = f"audit of {page['plan']}\n{page['verdict'][0]}"
    figure = _figure(title, False, 10.0, 1.5 + 0.9 * len(rows))
    axes = figure.subplots()
    for k, (key, colour) in enumerate(bars.items()):
        places = [row + 0.25 * k for row in range(len(rows))]
        label = "half the noise would show" if key == "half_noise" else key
        axes.barh(places, [row[key] for row in rows], 0.25, color=colour, label=label)
    axes.set_yticks(range(len(rows)), [f"{row['name']}\ndelta {row['delta']:g}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"epsilon, of {page['protected']}")
    _set_titles(axes, "one release", f"confidence {page['confidence']:.0%}")
    axes.legend(fontsize=8)
    _save(figure, folder / AUDIT)


# --- every picture ----------------------------------------------------------------


def _figure(title: str, unsafe: bool, width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=_DPI)
    text = f"{title}\n{NO_PRIVACY}" if unsafe else title
    figure.suptitle(text, fontsize=12, color="#B00000" if unsafe else "black")
    return figure


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Title": figure.get_suptitle()})


def _set_titles(axes: Any, left: str, right: str) -> None:
    axes.set_title(left, loc="left", fontsize=10, fontweight="bold")
    axes.set_title(right, loc="right", fontsize=9, color=GREY)
    axes.grid(alpha=0.3)


def _marker(shape: str, points: Sequence[float]) -> str | None:
    return shape if len(points) <= 60 else None


def _use_whole_ticks(axes: Any) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _draw_text(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=GREY)
    axes.set(xticks=[], yticks=[])


def _choose_unit(most: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    fitting = [(scale, name) for scale, name in units if most >= 2 * scale]
    return fitting[-1] if fitting else units[0]


def _group_lines(lines: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    return groups
