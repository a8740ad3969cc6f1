"""Scores of versions: the script's own, and the federation's evaluations.

Also reads what else `up` wrote of each version in RUN/report/metrics.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from secureps.dashboard.observation import KEPT, Cost, Json, Seen, cost_of
from secureps.errors import DamagedStore
from secureps.messages.evaluation import EvaluationStatus
from secureps.run.report.status_tables import skips
from secureps.run.report.version_metrics import split_scores
from secureps.wording import named


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


def read_report(text: str) -> Report:
    """Reads metrics.jsonl; raises DamagedStore if it is none."""
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
    """The costs of versions: those of the report, and those seen that it does not have."""
    if report is None:
        return seen.costs
    known = {(cost.group, cost.version): cost for cost in (*seen.costs, *report.costs)}
    return tuple(known[at] for at in sorted(known))


def scores_view(seen: Seen, report: Report | None) -> Json:
    """Builds the scores of the operator's page.

    Each version that was `judged`, newest first, has its metrics: `held_out` by the script's own
    `score`, `federated` by held-out records of members or of one evaluator. `noise` is the standard
    deviation on a federated metric. `nothing` says why no version was judged.
    """
    status = seen.status
    own = None if status is None else status.evaluation
    scores = {} if report is None else report.scores
    federated = {} if own is None else {each.version: each for each in own.results}
    best = 0 if own is None else own.best
    versions = sorted(scores.keys() | federated.keys(), reverse=True)
    kept = [each for number, each in enumerate(versions) if number < KEPT or each == best]
    judged = [
        {
            "version": version,
            "held_out": scores.get(version, {}),
            "federated": {m.name: m.value for m in federated[version].metrics}
            if version in federated
            else {},
            "best": 0 < version == best,
        }
        for version in kept
    ]
    return {
        "judged": judged,
        "noise": {} if own is None else {metric.name: metric.value for metric in own.noise},
        "notes": [] if own is None else list(_notes(own, seen.fresh)),
        "nothing": "" if judged else _nothing(seen, report),
    }


def _notes(own: EvaluationStatus, fresh: bool) -> Iterator[str]:
    evaluators = sorted({each.by for each in own.results if each.by})
    if evaluators:
        yield f"evaluated by {named(evaluators)}, in the clear"
    if fresh:
        yield f"evaluation {own.step}: {own.reason}"
    yield from skips(own)


def _nothing(seen: Seen, report: Report | None) -> str:
    if seen.status is None and report is None:
        return "Not known: the coordinator has not answered, and no report is at hand."
    if seen.status is not None and seen.status.evaluation is None and report is None:
        return "The plan has no [evaluation], and no report of `secureps up` is at hand."
    return "No version was scored." if seen.ended else "No version is scored yet."
