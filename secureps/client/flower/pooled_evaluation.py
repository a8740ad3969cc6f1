"""Evaluates a model on the held-out records of all clients, weighted by their number.

For apps that have no other held-out set.
"""

from __future__ import annotations

from collections.abc import Sequence

from secureps.client.returned import taken_evaluation
from secureps.client.trainer import Array, EvaluateResult, Evaluator
from secureps.errors import WrongShape


class PooledEvaluation:
    """The mean of at least one evaluator's loss and metrics, weighted by examples.

    A metric that not all of them report is left out, and so is whoever has no held-out records.
    """

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = tuple(evaluators)

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        """Evaluates as `Evaluator.evaluate` does; `examples` is the total.

        Raises:
            WrongShape: nobody has held-out records; or as `taken_evaluation`.
        """
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
