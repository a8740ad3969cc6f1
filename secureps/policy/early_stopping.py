"""Which evaluated version is the best, and when evaluations end a run.

Pure functions of journalled records: a restarted coordinator decides as the killed one did.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from secureps.config.plan import BestSection, EvaluationSection
from secureps.messages.evaluation import VersionEvaluated


def best(evaluations: Sequence[VersionEvaluated], section: BestSection) -> VersionEvaluated | None:
    """The best evaluation, the earliest of equals; None if there is none."""
    return max(evaluations, key=partial(_worth, by=section), default=None)


def stop(evaluations: Sequence[VersionEvaluated], section: EvaluationSection) -> str | None:
    """Says why the run ends now, in words an operator understands; None if it goes on.

    With a patience p the run ends when the last p evaluations beat the mark by at most `least`. The
    mark is the newest evaluation that beat the mark before it by more than that, at first the first
    (after Prechelt 1998, "Early Stopping - But When?", UP). With a target the run ends when an
    evaluation reaches it.
    """
    own, by = section.stop, section.best
    if own is None or by is None or not evaluations:
        return None
    mark, stalled, value = evaluations[0], 0, evaluations[-1].value(by.metric)
    if own.target is not None and (
        value >= own.target if by.goal == "max" else value <= own.target
    ):
        return (
            f"version {evaluations[-1].version} reached the target: {by.metric} {value:.4f}, "
            f"{own.target:g} was asked for"
        )
    for evaluation in evaluations[1:]:
        better = _worth(evaluation, by) - _worth(mark, by) > own.least
        mark, stalled = (evaluation, 0) if better else (mark, stalled + 1)
    if own.patience is None or stalled < own.patience:
        return None
    return (
        f"{stalled} evaluations in a row did not improve {by.metric} by more than "
        f"{own.least:g} on version {mark.version}'s {mark.value(by.metric):.4f}"
    )


def _worth(evaluation: VersionEvaluated, by: BestSection) -> float:
    value = evaluation.value(by.metric)
    return value if by.goal == "max" else -value
