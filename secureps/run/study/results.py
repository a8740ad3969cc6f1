"""Sums up the trials of a study in rows, a table and curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from secureps.config.scenario import StudySection
from secureps.run.report.tables import WholeTable
from secureps.run.study.trial import (
    Candidate,
    Comparison,
    Likeness,
    Outcome,
    Trial,
    rule_of,
    variant_of,
)


@dataclass(frozen=True)
class Row:
    """The results of a variant: of the candidate that tuning chose, under all seeds.

    Args:
        settings: what tuning chose, in words.
        seconds: virtual, to the target, of every seed that reached it; sorted.
        median: over all seeds, one that did not reach it counting as for ever; None: for ever.
        times: how many times sooner than the baseline, by medians; None if either is for ever.
        versions: made until then, the median.
        best: the best score of a seed, the median.
        sealed: whether its encrypted self is the same; None: not compared.
    """

    variant: str
    settings: str
    seconds: tuple[float, ...]
    median: float | None
    times: float | None
    versions: float
    best: float
    sealed: bool | None


class StudyResults:
    """Collects the results of a study, in any order."""

    def __init__(self, study: StudySection) -> None:
        self.study = study
        self._judged: dict[str, dict[int, tuple[Candidate, Outcome]]] = {}
        self._sealed: dict[str, Likeness] = {}
        self.cpu = 0.0

    def take(self, job: Trial | Comparison, result: Outcome | Likeness) -> str:
        """Takes a result; returns it in words."""
        self.cpu += result.cpu
        name = job.candidate.variant
        if isinstance(result, Likeness):
            self._sealed[name] = result
            return _likeness(result)
        assert isinstance(job, Trial)
        if job.seed != self.study.tuning:
            self._judged.setdefault(name, {})[job.seed] = job.candidate, result
        goal = f"{self.study.measure} {self.study.target:g}"
        if result.reached is None:
            return f"no {goal} within {job.limit:g} s, at best {result.best:.3f}"
        return f"{goal} after {result.reached:g} s, {result.versions} versions"

    def rows(self) -> tuple[Row, ...]:
        """A row for every variant, in the study's order."""
        base = _median(self._outcomes(self.study.baseline))
        return tuple(self._row(variant.name, base) for variant in self.study.variant)

    def curves(self) -> dict[str, list[list[tuple[float, float]]]]:
        """The curves by variant and seed: (virtual seconds, score)."""
        return {
            variant.name: [
                [(point.seconds, point.score) for point in outcome.points]
                for outcome in self._outcomes(variant.name)
            ]
            for variant in self.study.variant
        }

    def _outcomes(self, name: str) -> list[Outcome]:
        return [outcome for _, outcome in self._judged[name].values()]

    def _row(self, name: str, base: float) -> Row:
        candidate = next(iter(self._judged[name].values()))[0]
        outcomes, likeness = self._outcomes(name), self._sealed.get(name)
        median = _median(outcomes)
        return Row(
            variant=name,
            settings=settings(self.study, candidate),
            seconds=tuple(sorted(o.reached for o in outcomes if o.reached is not None)),
            median=None if median == math.inf else median,
            times=None if math.inf in (median, base) else base / median,
            versions=statistics.median(outcome.versions for outcome in outcomes),
            best=statistics.median(outcome.best for outcome in outcomes),
            sealed=None if likeness is None else likeness.model and likeness.seconds,
        )


def settings(study: StudySection, candidate: Candidate) -> str:
    """The settings that distinguish a candidate from others of its variant."""
    every = [rule.model_dump() for rule in variant_of(study, candidate).rules]
    rule, words = rule_of(study, candidate), list[str]()
    if rule is not None:
        own = rule.model_dump()
        keys = [key for key in own if any(rule.get(key) != own[key] for rule in every)]
        words += [f"{key} {own[key]}" for key in keys]
    if candidate.deadline is not None:
        words.append(f"deadline {candidate.deadline:g}")
    if candidate.rate is not None:
        words.append(f"rate {candidate.rate:g}")
    return ", ".join(words)


def _median(outcomes: Sequence[Outcome]) -> float:
    """Seconds to the target; for ever if a middle one is: it has no half."""
    times = [math.inf if o.reached is None else o.reached for o in outcomes]
    return statistics.median(times)


def _likeness(found: Likeness) -> str:
    if found.model and found.seconds:
        return f"{found.versions} versions under encryption: the same bits at the same times"
    what = "another model" if not found.model else "the same model, at another time"
    return f"{found.versions} versions under encryption: {what}"


# --- tables -----------------------------------------------------------------------


def _cells(study: StudySection, row: Row) -> tuple[str, ...]:
    spread = f"{row.seconds[0]:g} - {row.seconds[-1]:g}" if row.seconds else ""
    return (
        row.variant,
        row.settings,
        f"not in {study.seconds:g}" if row.median is None else f"{row.median:g}",
        spread,
        f"{len(row.seconds)} of {len(study.seeds)}",
        "" if row.times is None else f"{row.times:.2f}",
        f"{row.versions:g}",
        {None: "not compared", True: "the same", False: "NOT THE SAME"}[row.sealed],
    )


def _heads(study: StudySection) -> tuple[str, ...]:
    return (
        "rule",
        "tuned",
        f"virtual s to {study.measure} {study.target:g}, median",
        "least - most",
        "seeds that reached it",
        f"times sooner than {study.baseline}",
        "versions",
        "encrypted",
    )


def table(study: StudySection, rows: Sequence[Row]) -> Table:
    """The table for a terminal, which may be narrow."""
    shown = WholeTable(
        f"virtual seconds to {study.measure} {study.target:g}; times sooner than {study.baseline}"
    )
    heads = ("median", "least - most", "seeds", "sooner", "versions", "encrypted")
    for head in ("rule, as tuned", *heads):
        shown.add_column(head, overflow="fold")
    for row in rows:
        name, tuned, *cells = _cells(study, row)
        shown.add_row(f"{name}: {tuned}" if tuned else name, *cells)
    return shown


def markdown(study: StudySection, rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    heads = _heads(study)
    lines = [heads, ("---",) * len(heads), *(_cells(study, row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
