"""Evaluates a model on a data holder's held-out records, and reads a plan's metrics."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secureps.client.returned import taken_evaluation
from secureps.client.script_errors import blamed
from secureps.client.trainer import Array, EvaluateResult, Evaluator
from secureps.config.plan import EvaluationSection
from secureps.errors import Malformed, ScriptFailed, WrongShape
from secureps.messages.evaluation import Metric
from secureps.messages.orders import GroupVersion
from secureps.policy.checks.evaluation import Said, check_metrics, heaviest, to_vector


@dataclass(frozen=True, eq=False)
class Judgement:
    """The result of an evaluation, checked against the plan.

    Args:
        metrics: those of the plan, in their own units, sorted by name, without reports.
        vector: the client's contribution, float32 in [-1, 1].
        examples: by which it counts, at least 1: held-out records, or more of a report.
    """

    metrics: tuple[Metric, ...] = field(repr=False)
    vector: NDArray[np.float32] = field(repr=False)
    examples: int


def judge(
    evaluator: Evaluator,
    parameters: dict[str, Array],
    section: EvaluationSection,
    model: tuple[GroupVersion, ...],
    alike: bool,
) -> Judgement:
    """Calls the data holder's `report_at` for each of the plan's reports, then `evaluate_at`.

    Or `evaluate` where there is no `evaluate_at`; it may change the arrays. A holder who lacks a
    report sends nothing at all: a mean over the members of a cohort that have it could be of one
    client alone. If clients count `alike`, so do a client's evaluation and reports.

    Raises ScriptFailed if the holder's code raised, or has nothing to report, or if a metric of the
    plan is missing or no number.
    """
    versions = {at.group: at.version for at in model}
    reports = dict[str, Said]()
    for message in section.reports:  # first: evaluate may change the arrays
        with blamed(f"report_at {message}"):
            if not hasattr(evaluator, "report_at"):
                raise Malformed("the plan has reports, and the trainer has no report_at")
            copies = {name: array.copy() for name, array in parameters.items()}
            report = evaluator.report_at(copies, versions, message)
        if report is None:
            raise ScriptFailed(f"there is no {message} of this version to report")
        what = f"what report_at {message} returned"
        reports[message] = said(what, report, alike, section.reports[message])
    with blamed("evaluate"):
        if hasattr(evaluator, "evaluate_at"):
            result = evaluator.evaluate_at(parameters, versions)
        else:
            result = evaluator.evaluate(parameters)
    own = said("what evaluate returned", result, alike, section.metrics)
    with blamed("what evaluate returned"):
        vector = to_vector(section, own, reports)
        metrics = tuple(Metric(name, float(own.metrics[name])) for name in sorted(section.metrics))
        check_metrics(section, metrics)
    return Judgement(metrics, vector, heaviest(own, reports))


def said(what: str, returned: object, alike: bool, wanted: Collection[str]) -> Said:
    """Converts the result of a holder's function; ScriptFailed if it cannot be used."""
    with blamed(what):
        result = taken_evaluation(returned, wanted)
        if result.examples < 1:
            raise Malformed(f"{result.examples} examples: at least 1 is needed")
        loss = {} if result.loss is None else {"loss": result.loss}
        return Said(1 if alike else result.examples, loss | result.metrics)


class PooledEvaluation:
    """The mean of at least one evaluator's loss and metrics, weighted by examples.

    It leaves out metrics that not all evaluators report, and evaluators without held-out records.
    """

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = tuple(evaluators)

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        """Raises WrongShape if no evaluator has held-out records; else as `taken_evaluation`."""
        told = [taken_evaluation(each.evaluate(parameters)) for each in self._evaluators]
        results = [result for result in told if result.examples]
        if not results:
            raise WrongShape("no data holder has held-out records: each said 0 examples")
        total = sum(result.examples for result in results)

        def mean(values: list[float]) -> float:
            pairs = zip(values, results, strict=True)
            return sum(value * result.examples for value, result in pairs) / total

        common = set.intersection(*(set(result.metrics) for result in results))
        metrics = {name: mean([r.metrics[name] for r in results]) for name in sorted(common)}
        losses = [result.loss for result in results if result.loss is not None]
        loss = mean(losses) if len(losses) == len(results) else None
        return EvaluateResult(loss, total, metrics)
