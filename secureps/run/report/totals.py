"""Adds up the parties' reports: a status has only a window of them, this keeps them all.

A figure is known by (group, version, party, step, name), so a report that two statuses show is
counted once, and an update that a restarted party made again replaces what it had said.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from secureps.messages.evaluation import EVALUATION
from secureps.messages.requests import Telemetry
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator.status import ARRIVED, CLIP, PUBLISHED, SPENT, UP, WAITED

SECONDS = ("training", "encryption", "network", "adding", "opening", "stepping")
"""The phases of a version, in the order of an update; their figures are NAME_seconds."""

DOWN = "bytes_down"

FIGURES = (UP, DOWN, *(f"{stage}_seconds" for stage in SECONDS))
"""The figures that are summed over the parties; a party may report others besides."""

MOST_FIGURES = 1024
"""Of one party for a version: what it says besides is passed over, so that nobody fills a memory
with steps and names of figures."""

At = tuple[str, int]
"""A group and its version."""

Known = tuple[str, int, str, int, str, float]
"""Group, version, party, step, name, value: a figure of a report."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait for a client, from the opening of a round to its update, or to the round's end."""

    seconds: float
    arrived: bool


class Totals:
    """All figures of a run so far; `figures` are those of earlier totals to continue from."""

    def __init__(self, figures: Iterable[Known] = ()) -> None:
        self._said = Counter[tuple[At, str]]()
        self._figures: defaultdict[At, dict[tuple[str, int, str], float]] = defaultdict(dict)
        for group, version, party, step, name, value in figures:
            self._figures[group, version][party, step, name] = value
            self._said[(group, version), party] += 1

    def figures(self) -> tuple[Known, ...]:
        """The figures from which other totals can continue."""
        return tuple(
            (*at, *key, value)
            for at, figures in self._figures.items()
            for key, value in figures.items()
        )

    def add(self, reports: Iterable[Telemetry]) -> set[At]:
        """Takes a status' window of reports; known ones change nothing.

        Returns:
            the versions that have new figures.
        """
        changed: set[At] = set()
        for report in reports:
            at = (report.group, report.version)
            figures = self._figures[at]
            for figure in report.figures:
                key = (report.party, report.step, figure.name)
                if key not in figures:
                    if self._said[at, report.party] == MOST_FIGURES:
                        continue
                    self._said[at, report.party] += 1
                if figures.get(key) != figure.value:
                    figures[key] = figure.value
                    changed.add(at)
        return changed

    def total(self, name: str) -> float:
        """One figure, summed over all parties, groups and versions."""
        return math.fsum(
            value
            for figures in self._figures.values()
            for (_, _, at_name), value in figures.items()
            if at_name == name
        )

    def of_version(self, group: str, version: int) -> dict[str, float]:
        """Seconds and bytes of one version of a group, summed over the parties."""
        sums: dict[str, float] = {}
        for (_, _, name), value in sorted(self._figures.get((group, version), {}).items()):
            if name in FIGURES:
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def published(self, group: str, version: int) -> float | None:
        """Seconds of the run's clock when a version was published; None if it is not known."""
        return self._figures.get((group, version), {}).get((COORDINATOR, 0, PUBLISHED))

    def clip(self, group: str, version: int) -> float | None:
        """The adaptive clip of a version; None if it stays, or a restarted coordinator forgot."""
        return self._figures.get((group, version), {}).get((COORDINATOR, 0, CLIP))

    def spent(self, group: str, version: int) -> float | None:
        """The largest epsilon when a version was published; None if there is no such figure."""
        return self._figures.get((group, version), {}).get((COORDINATOR, 0, SPENT))

    def waits(self, group: str, version: int) -> dict[str, Wait]:
        """The waits of a version's round for each client that it invited, by name.

        Empty for version 0, and for rounds of which a restarted coordinator forgot the reports.
        """
        figures = self._figures.get((group, version), {})
        return {
            party: Wait(value, bool(figures.get((party, 0, ARRIVED), 0.0)))
            for (party, _, name), value in sorted(figures.items())
            if name == WAITED
        }

    def updates(self) -> Counter[str]:
        """How many updates of the model arrived, by group."""
        return Counter(
            group
            for (group, _), figures in self._figures.items()
            for _, _, name in figures
            if name == UP and group != EVALUATION
        )

    def updates_by_party(self) -> Counter[str]:
        """How many updates of the model arrived, by client."""
        return Counter(
            party
            for (group, _), figures in self._figures.items()
            for party, _, name in figures
            if name == UP and group != EVALUATION
        )

    def ratio(self, name: str, sizes: Mapping[str, int]) -> float | None:
        """Bytes per update against the same values as plain fp32; None before any update.

        Args:
            name: UP or DOWN.
            sizes: values by group.
        """
        plain = sum(4 * sizes[group] * count for group, count in self.updates().items())
        return self.total(name) / plain if plain else None
