"""Which evaluated version is the best, and when evaluations end a run: pure functions.

They read what was journalled, in order, and nothing else, so that a restarted coordinator
decides as the killed one did. What must not live here: how a run ends (`roles`).
"""

from __future__ import annotations

from collections.abc import Sequence

from secureps.config.plan import BestSection, EvaluationSection, StopSection
from secureps.messages.evaluation import VersionEvaluated


def best(evaluations: Sequence[VersionEvaluated], section: BestSection) -> VersionEvaluated | None:
    """The best of them, the earliest of equals; None if there is none."""
    found: VersionEvaluated | None = None
    for evaluation in evaluations:
        if found is None or _gain(evaluation, found, section) > 0:
            found = evaluation
    return found


def stop(evaluations: Sequence[VersionEvaluated], section: EvaluationSection) -> str | None:
    """Why the run ends now, in words an operator understands; None if it goes on.

    With patience p it ends when the last p evaluations were better by no more than `least` than
    the mark: the newest evaluation that was better than the mark before it by more than that, at
    first the first one (after Prechelt 1998, "Early Stopping - But When?", UP). With a target,
    when an evaluation has reached it.
    """
    if section.stop is None or section.best is None or not evaluations:
        return None
    return _reached(evaluations[-1], section.best, section.stop) or _stalled(
        evaluations, section.best, section.stop
    )


def _reached(newest: VersionEvaluated, by: BestSection, section: StopSection) -> str | None:
    if section.target is None:
        return None
    value = newest.value(by.metric)
    if (value < section.target) if by.goal == "max" else (value > section.target):
        return None
    return (
        f"version {newest.version} reached the target: {by.metric} {value:.4f}, "
        f"{section.target:g} was asked for"
    )


def _stalled(
    evaluations: Sequence[VersionEvaluated], by: BestSection, section: StopSection
) -> str | None:
    if section.patience is None:
        return None
    mark, stalled = evaluations[0], 0
    for evaluation in evaluations[1:]:
        if _gain(evaluation, mark, by) > section.least:
            mark, stalled = evaluation, 0
        else:
            stalled += 1
    if stalled < section.patience:
        return None
    return (
        f"{stalled} evaluations in a row did not improve {by.metric} by more than "
        f"{section.least:g} on version {mark.version}'s {mark.value(by.metric):.4f}"
    )


def _gain(new: VersionEvaluated, old: VersionEvaluated, by: BestSection) -> float:
    """By how much `new` is better than `old`; negative if it is worse."""
    difference = new.value(by.metric) - old.value(by.metric)
    return difference if by.goal == "max" else -difference
