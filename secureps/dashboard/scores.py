"""What versions were judged at: the script's scores, and the federation's own evaluations.

And what else `up` wrote of each version in RUN/report/metrics.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from secureps.dashboard.observation import KEPT, Cost, Seen, cost_of
from secureps.errors import DamagedStore
from secureps.messages.evaluation import EvaluationStatus
from secureps.run.report.status_tables import skips
from secureps.run.report.version_metrics import split_scores
from secureps.wording import named


@dataclass(frozen=True, slots=True)
class Judged:
    """What a version was judged at, by metric.

    Args:
        held_out: by the script's own `score`; federated: by the held-out records of the members, or
            of one evaluator.
        best: no other version is better by the plan's metric.
    """

    version: int
    held_out: Mapping[str, float]
    federated: Mapping[str, float]
    best: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What `up` wrote of the versions of its run.

    Args:
        scores: by version of the first group, the script's.
        costs: of the newest versions; up, down: bytes of all of them.
    """

    scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    costs: tuple[Cost, ...] = ()
    up: float = 0.0
    down: float = 0.0


@dataclass(frozen=True, slots=True)
class ScoresView:
    """What a page shows of scores.

    Args:
        judged: newest first; noise: standard deviation of the noise on a federated metric.
        notes: which versions were not evaluated and why, and what is under way.
        nothing: why no version has any; empty if one has.
    """

    judged: tuple[Judged, ...]
    noise: Mapping[str, float]
    notes: tuple[str, ...]
    nothing: str


def read_report(text: str) -> Report:
    """The report in metrics.jsonl; DamagedStore if that is none."""
    try:
        lines = [json.loads(line) for line in text.splitlines()]
        costs = [
            cost_of(line["group"], line["version"], line, line["epsilon"])
            for line in lines
            if line["version"] > 0
        ]
        scores = {
            line["version"]: split_scores(line)[0]
            for line in lines
            if line["group"] == lines[0]["group"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedStore(f"metrics.jsonl cannot be read: {error}") from None
    up, down = sum(cost.up for cost in costs), sum(cost.down for cost in costs)
    judged = {version: own for version, own in scores.items() if own}
    newest = max((cost.version for cost in costs), default=0)
    return Report(judged, tuple(c for c in costs if c.version > newest - KEPT), up, down)


def costs_of(seen: Seen, report: Report | None) -> tuple[Cost, ...]:
    """What versions cost: what was seen of them, or where there is a report, all of it."""
    if report is None:
        return seen.costs
    known = {(cost.group, cost.version): cost for cost in (*seen.costs, *report.costs)}
    return tuple(known[at] for at in sorted(known))


def scores_view(seen: Seen, report: Report | None, hide: Callable[[str], str]) -> ScoresView:
    """What the page shows, of what is at hand; `hide` takes clients' names out of a text."""
    status = seen.status
    own = None if status is None else status.evaluation
    scores = {} if report is None else report.scores
    federated = {} if own is None else {each.version: each for each in own.results}
    best = 0 if own is None else own.best
    versions = sorted(scores.keys() | federated.keys(), reverse=True)
    kept = [each for number, each in enumerate(versions) if number < KEPT or each == best]
    judged = tuple(
        Judged(
            version,
            scores.get(version, {}),
            {metric.name: metric.value for metric in federated[version].metrics}
            if version in federated
            else {},
            0 < version == best,
        )
        for version in kept
    )
    return ScoresView(
        judged,
        {} if own is None else {metric.name: metric.value for metric in own.noise},
        () if own is None else tuple(map(hide, _notes(own, seen.fresh))),
        "" if judged else _nothing(seen, report),
    )


def _notes(own: EvaluationStatus, fresh: bool) -> Iterator[str]:
    evaluators = sorted({each.by for each in own.results if each.by})
    if evaluators:
        yield f"evaluated by {named(evaluators)}, in the clear"
    if fresh:
        yield f"evaluation {own.step}: {own.reason}"
    yield from skips(own)


def _nothing(seen: Seen, report: Report | None) -> str:
    """Why no version has a score."""
    if seen.status is None and report is None:
        return "Not known: the coordinator has not answered, and no report is at hand."
    if seen.status is not None and seen.status.evaluation is None and report is None:
        return "The plan has no [evaluation], and no report of `secureps up` is at hand."
    return "No version was scored." if seen.ended else "No version is scored yet."
