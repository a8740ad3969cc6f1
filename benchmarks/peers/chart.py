"""A picture of the outcomes: seconds, bytes and memory of each peer, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.peers.outcome import Figures, Outcome
from benchmarks.peers.table import bars, by_size, number

PANELS: Mapping[str, Callable[[Figures], float | None]] = {
    "seconds a round": lambda f: f.wall,
    "CPU seconds, all parties": lambda f: f.client_cpu + f.server_cpu,
    "bytes up a value": lambda f: f.up,
    "peak GB, all processes": lambda f: f.peak / 1e9,
}
COLOURS = ("#9ecae1", "#3182bd", "#08519c", "#08306b")


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Writes a PNG with a panel for each of PANELS and a bar for each peer and size."""
    from matplotlib.figure import Figure

    sizes = list(by_size(outcomes))
    peers = len({outcome.peer for outcome in outcomes})
    figure = Figure(figsize=(11, 1.5 + 0.17 * (len(sizes) + 1) * peers * 2), layout="constrained")
    figure.suptitle(f"One round, {outcomes[0].clients} clients, one machine; less is better")
    thick = 0.8 / len(sizes)
    for axes, (name, of) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        rows = bars(outcomes, of)
        for k, size in enumerate(sizes):
            for y, (_, found) in enumerate(rows):
                value = found[size]
                at, width = y + (k - (len(sizes) - 1) / 2) * thick, 0.0
                if isinstance(value, float):
                    width = value
                    axes.barh(at, width, thick, color=COLOURS[k % len(COLOURS)])
                text = value if isinstance(value, str) else number(value)
                axes.annotate(
                    text,
                    (max(width, 1e-2), at),
                    (3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
            axes.barh(0, 0, color=COLOURS[k % len(COLOURS)], label=f"{size:,} values")
        if numbers := _numbers(rows):
            axes.set_xscale("log")
            axes.set_xlim(1e-2, max(1.0, 10 * max(numbers)))
        axes.set_yticks(range(len(rows)), [peer for peer, _ in rows], fontsize=8)
        axes.invert_yaxis()
        axes.set_title(f"{name} (log scale)", fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    if len(sizes) > 1:
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, fontsize=8, loc="outside lower center", ncols=len(sizes))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _numbers(rows: Sequence[tuple[str, dict[int, float | str]]]) -> list[float]:
    return [value for _, found in rows for value in found.values() if isinstance(value, float)]
