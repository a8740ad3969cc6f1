"""Adds up what parties report: a status shows a window of reports, this keeps them all.

A figure is known by (party, group, version, name), so a report that two statuses show is
counted once, and a version that a restarted party made again replaces what it had said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from secureps.messages.requests import Telemetry

SECONDS = ("training", "encryption", "network", "adding", "opening", "stepping")
"""Where a version's time goes, in the order of an update; figures are NAME_seconds."""

UP, DOWN = "bytes_up", "bytes_down"


def finite(figure: float) -> float | None:
    """A figure for JSON, which has no infinity: None in its place."""
    return figure if math.isfinite(figure) else None


class Tally:
    """All figures of a run so far."""

    def __init__(self, figures: Iterable[tuple[str, str, int, str, float]] = ()) -> None:
        self._figures = {(p, g, v, n): value for p, g, v, n, value in figures}

    def figures(self) -> tuple[tuple[str, str, int, str, float], ...]:
        """(party, group, version, name, value): what another tally goes on from."""
        return tuple((*key, value) for key, value in self._figures.items())

    def add(self, reports: Iterable[Telemetry]) -> None:
        """Takes a status' window of reports; those that are known change nothing."""
        for report in reports:
            for figure in report.figures:
                key = (report.party, report.group, report.version, figure.name)
                self._figures[key] = figure.value

    def total(self, name: str) -> float:
        """One figure, summed over all parties, groups and versions."""
        return math.fsum(value for key, value in self._figures.items() if key[3] == name)

    def of_version(self, group: str, version: int) -> dict[str, float]:
        """Every figure of one version of a group, summed over the parties."""
        sums: dict[str, float] = {}
        for (_, at_group, at_version, name), value in sorted(self._figures.items()):
            if (at_group, at_version) == (group, version):
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def updates(self) -> Counter[str]:
        """How many updates arrived, by group."""
        return Counter(group for _, group, _, name in self._figures if name == UP)

    def updates_of(self, party: str) -> int:
        """How many updates of one client arrived."""
        return sum(at == party and name == UP for at, _, _, name in self._figures)

    def ratio(self, name: str, sizes: Mapping[str, int]) -> float | None:
        """Bytes per update against the same values as plain fp32; None before any update.

        Args:
            name: UP or DOWN.
            sizes: values by group.
        """
        plain = sum(4 * sizes[group] * count for group, count in self.updates().items())
        return self.total(name) / plain if plain else None
