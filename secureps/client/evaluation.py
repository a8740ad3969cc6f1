"""Evaluates a model on a data holder's held-out records, and reads the metrics that a plan names.

What must not live here: when it is asked for (`roles.member.evaluation`), and how it travels
(`client.worker`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secureps.client.script_errors import blamed
from secureps.client.trainer import Array, EvaluateResult, Evaluator
from secureps.config.plan import EvaluationSection
from secureps.errors import Malformed, WrongShape
from secureps.messages.evaluation import Metric
from secureps.messages.orders import GroupVersion
from secureps.policy.checks.evaluation import check_metrics, to_vector

LOSS = "loss"
"""The name of the loss among the metrics."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """The result of an evaluation, checked against the plan.

    Args:
        metrics: those of the plan, in their own units, sorted by name.
        vector: the same as a client contributes them, float32 in [-1, 1].
        examples: held-out records, at least 1.
    """

    metrics: tuple[Metric, ...] = field(repr=False)
    vector: NDArray[np.float32] = field(repr=False)
    examples: int


def judge(
    evaluator: Evaluator,
    parameters: dict[str, Array],
    section: EvaluationSection,
    model: tuple[GroupVersion, ...],
) -> Judgement:
    """Calls the data holder's `evaluate_at`, or `evaluate` where there is no such method.

    It may change the arrays of `parameters`; `model` has the base version of every group.

    Raises:
        ScriptFailed: the holder's code raised; or a metric of the plan is missing or no number.
    """
    with blamed("evaluate"):
        if hasattr(evaluator, "evaluate_at"):
            result = evaluator.evaluate_at(parameters, {at.group: at.version for at in model})
        else:
            result = evaluator.evaluate(parameters)
    with blamed("what evaluate returned"):
        if not isinstance(result, EvaluateResult):
            raise WrongShape(f"it is a {type(result).__name__}, and must be an EvaluateResult")
        if result.examples < 1:
            raise Malformed(f"{result.examples} held-out examples: at least 1 is needed")
        values = ({} if result.loss is None else {LOSS: result.loss}) | result.metrics
        vector = to_vector(section, values)
        metrics = tuple(Metric(name, float(values[name])) for name in sorted(section.metrics))
        check_metrics(section, metrics)
    return Judgement(metrics, vector, result.examples)
