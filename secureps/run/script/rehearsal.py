"""Trains and evaluates once for `secureps check --run-script`, before anything is sent.

Only what a plan's numbers are held against comes back: lengths and metrics, and no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.evaluation import said
from secureps.client.initial_model import conformed
from secureps.client.returned import taken_fit
from secureps.client.script_errors import blamed
from secureps.client.trainer import SECRET_BYTES, FitConfig, RecordPrivacy, Trainer
from secureps.errors import PlanRefused
from secureps.messages.evaluation import EVALUATION, Metric
from secureps.policy.checks.evaluation import check_metrics
from secureps.policy.counting import bits_left, shares_of
from secureps.policy.plan import Plan
from secureps.run.script.channel import Tensors
from secureps.run.script.scoring import Look
from secureps.wording import meant

HARDLY_ANY_NOISE = 1e-12
"""A noise multiplier: a trainer refuses 0."""

COARSE = 0.02
"""The step of a metric, in parts of its value, above which a mean is told too coarsely."""


def rehearse(
    plan: Plan,
    look: Look,
    trainer: Trainer,
    privacy: RecordPrivacy | None,
    evaluator: Callable[[], Trainer],
    start: Tensors,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Calls `evaluate` if the plan evaluates, and `fit` without noise if it is private.

    Args:
        trainer: of the first holder, and privacy its record-level mechanism; evaluator: gives the
            trainer of the one who evaluates.
        start: the plan's file of version 0; empty: the trainer's fresh model.

    Returns the length of an update without noise (L2, before the clip) by group, empty where
    nothing is private; and what is to be said of the metrics. ScriptFailed if the script fails,
    PlanRefused if `evaluate` has no such metrics as the plan names.
    """
    model = {name: start.get(name, array) for name, array in look.initial.items()}
    notes = () if plan.section.evaluation is None else tuple(_evaluated(plan, evaluator(), model))
    private = plan.section.privacy is not None
    return _lengths(plan, look, trainer, privacy, model) if private else {}, notes


def _lengths(
    plan: Plan, look: Look, trainer: Trainer, privacy: RecordPrivacy | None, model: Tensors
) -> dict[str, float]:
    """The length of one holder's update; running statistics are in no clip, and not in it."""
    config = FitConfig(
        versions=dict.fromkeys(plan.groups, 0),
        seed=0,
        settings=plan.section.training,
        privacy=None if privacy is None else replace(privacy, noise_multiplier=HARDLY_ANY_NOISE),
        secret=bytes(SECRET_BYTES),
    )
    with blamed("fit"):
        result = trainer.fit(_copied(model), config)
    with blamed("what fit returned"):
        result = conformed(taken_fit(result), look.schema, look.schema.ties)
    found = dict[str, float]()
    for group in plan.layout(look.schema).groups:
        pairs = zip(group.views(model), group.views(result.parameters), strict=True)
        squares = (
            float(np.sum(np.square(np.asarray(after, np.float64) - before)))
            for (spec, before), (_, after) in pairs
            if look.kinds.get(spec.name) != "statistics"
        )
        found[group.name] = math.sqrt(math.fsum(squares))
    return found


def _evaluated(plan: Plan, trainer: Trainer, model: Tensors) -> Iterator[str]:
    section = plan.section.evaluation
    assert section is not None
    versions = dict.fromkeys(plan.groups, 0)
    with blamed("evaluate"):
        at = getattr(trainer, "evaluate_at", None)
        result = trainer.evaluate(_copied(model)) if at is None else at(_copied(model), versions)
    own = said("what evaluate returned", result, False, section.metrics)
    values = own.metrics
    lacking = sorted(section.metrics.keys() - values.keys())
    if lacking:
        raise PlanRefused(
            f"evaluation.metrics: evaluate of the script says nothing called {lacking[0]!r}; "
            f"{meant(lacking[0], sorted(values))}: name one of these in the plan, or have evaluate "
            "return it"
        )
    metrics = tuple(Metric(name, values[name]) for name in sorted(section.metrics))
    with blamed("what evaluate returned"):
        check_metrics(section, metrics)
    yield from _coarse(plan, metrics, own.examples)
    for metric in metrics:
        most = section.metrics[metric.name]
        if abs(metric.value) > most:
            yield (
                f"evaluation.metrics: {metric.name} of version 0 is {metric.value:.3g}, and a "
                f"client sends {most:g} at most: raise {metric.name} to what it may come to"
            )


def _coarse(plan: Plan, metrics: Sequence[Metric], examples: int) -> Iterator[str]:
    """Says which metric a mean of clients tells worst, where that is too coarsely."""
    if not plan.clients_evaluate:
        return
    group, members = plan.group(EVALUATION), plan.bounds(EVALUATION).minimum
    (share,) = shares_of(group, [examples])
    left = max(0.0, min(group.bits, bits_left(group.bits, share * members, members)))
    most = plan.section.evaluation.metrics if plan.section.evaluation else {}
    steps = {each: 2 * most[each.name] / 2**left for each in metrics if each.value}
    worst = max(steps, key=lambda each: steps[each] / abs(each.value), default=None)
    if worst is not None and steps[worst] > COARSE * abs(worst.value):
        weighs = "" if share == 1 else f" a most_examples nearer to {examples:,},"
        yield (
            f"evaluation: a mean of {members} clients like the one tried keeps {left:.1f} of "
            f"{group.bits} bits: {worst.name}, {worst.value:.3g} of version 0, is told in steps of "
            f"{steps[worst]:.2g}; take{weighs} a magnitude smaller than {most[worst.name]:g}, or "
            "more bits"
        )


def _copied(model: Tensors) -> dict[str, NDArray[Any]]:
    return {name: np.array(array) for name, array in model.items()}
