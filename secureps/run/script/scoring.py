"""Scores models on held-out records, also models with local tensors.

A script that fails here is noted once and ends nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from secureps.client.evaluation import PooledEvaluation
from secureps.client.initial_model import schema_of, with_ties
from secureps.client.returned import taken_evaluation, taken_tensors
from secureps.client.runner import touched_rows
from secureps.client.script import Script
from secureps.client.script_errors import blamed
from secureps.client.trainer import (
    EvaluateResult,
    Evaluator,
    Setting,
    Trainer,
    kinds_of,
    ties_of,
)
from secureps.errors import NotFinite, SecurepsError, WrongShape
from secureps.messages.schema import Schema
from secureps.policy.plan import Plan
from secureps.policy.tensor_kinds import Kind
from secureps.run.script.channel import Tensors

Own = Callable[[str], Tensors | None]
"""A client's newest local tensors, by its name; None before its first training."""

Goal = Literal["max", "min"]

_LESS = re.compile(
    r".*loss|.*error|err|mae|r?msl?e|s?mape|nll|bce|perplexity|ppl|(cross)?entropy|deviance|brier"
    r"|wer|cer|hamming|divergence|kl|distance|regret|ece|miss(es)?"
)
"""Words in the names of metrics of which less is better."""

_MORE = re.compile(
    r"acc(uracy)?|precision|recall|sensitivity|specificity|f1|fbeta|auc|auroc|auprc|roc|map|dice"
    r"|iou|jaccard|r2|explained|score|kappa|mcc|correlation|concordance|bleu|rouge|ndcg|mrr|hits?"
    r"|psnr|ssim|correct|likelihood"
)
"""Words in the names of metrics of which more is better."""

OF_THEIR_OWN = "scores are the holders' own, each with its local tensors on its held-out records"


def goal(measure: str, plan: Plan | None = None) -> Goal | None:
    """Whether more or less of a metric is better; None where nothing says it.

    The plan says it of its `evaluation.best`; of others their names do, as far as they are known.

    Examples:
        >>> goal("val_loss"), goal("MAE"), goal("neg_mean_squared_error"), goal("lift")
        ('min', 'min', 'max', None)
        >>> goal("error_free_accuracy") is None
        True
    """
    evaluation = None if plan is None else plan.section.evaluation
    if evaluation is not None and evaluation.best and evaluation.best.metric == measure:
        return evaluation.best.goal
    words = re.findall(r"[a-z]+\d?", re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", measure).lower())
    negated = words[:1] in (["neg"], ["negative"])
    less, more = (any(map(pattern.fullmatch, words)) for pattern in (_LESS, _MORE))
    if less == more:  # no word is known, or two contradict each other
        return None
    return "max" if more != negated else "min"


@dataclass(frozen=True, slots=True)
class Score:
    """A score on held-out records.

    Args:
        measure, value: the plan's metric (`evaluation.best`), or `accuracy`, or the first of the
            script's other metrics that is no loss, or the loss.
        others: the script's further metrics, by name; those that are no finite numbers are left
            out.
    """

    measure: str
    value: float
    loss: float | None
    examples: int
    others: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, result: EvaluateResult, plan: Plan | None = None) -> Score:
        """Picks the score of a result; WrongShape if that has neither a loss nor a metric."""
        loss = None if result.loss is None else float(result.loss)
        metrics = dict(result.metrics) | ({} if loss is None else {"loss": loss})
        if not metrics:
            raise WrongShape("the evaluation has neither a loss nor a metric")
        best = plan and plan.section.evaluation and plan.section.evaluation.best
        scores = sorted(name for name in metrics if "loss" not in name.lower())
        wanted = (*((best.metric,) if best else ()), "accuracy", *scores, "loss", min(metrics))
        measure = next(name for name in wanted if name in metrics)
        others = {
            name: float(value)
            for name, value in sorted(metrics.items())
            if name not in (measure, "loss") and math.isfinite(value)
        }
        return cls(measure, float(metrics[measure]), loss, result.examples, others)

    @property
    def metrics(self) -> dict[str, float]:
        loss = {} if self.loss is None else {"loss": self.loss}
        return {self.measure: self.value, **self.others, **loss}


@dataclass(frozen=True, eq=False)
class Look:
    """A trainer's own description of its model.

    Args:
        schema: of its tensors; kinds: what training does to them.
        initial: a fresh model, in the model's order.
    """

    schema: Schema
    kinds: Mapping[str, Kind]
    initial: Tensors = field(repr=False)

    @classmethod
    def at(cls, trainer: Trainer) -> Look:
        """Asks a trainer; ScriptFailed if it raises, or its model is none."""
        with blamed("what make(settings) returned"):
            if not callable(getattr(trainer, "parameters", None)):
                raise WrongShape(f"a {type(trainer).__name__} is no trainer: no parameters(seed)")
        with blamed("parameters"):
            made = trainer.parameters(0)
        with blamed("what parameters returned"):
            initial = taken_tensors(made)
            return cls(schema_of(initial, ties_of(trainer)), kinds_of(trainer), initial)

    def refuse_unusable(self, plan: Plan) -> None:
        """Refuses a fresh model of which no client could train (ScriptFailed).

        It has values that are not finite, or that float32 makes other ones. A plan's file of
        version 0 stands in for its values; what stays with clients may be anything (a mask of minus
        infinities).
        """
        if plan.section.initial is not None:
            return
        constants = [name for name, kind in self.kinds.items() if kind == "constant"]
        with blamed("what parameters returned"):
            for group in plan.layout(self.schema).groups:
                group.refuse_inexact(self.initial, constants)
                for spec, view in group.views(self.initial):
                    if not np.isfinite(view).all():
                        raise NotFinite(f"tensor {spec.name!r} has values that are NaN or infinite")

    def touched(self, plan: Plan, trainer: Trainer) -> tuple[str, ...]:
        with blamed("touches"):
            return plan.touched(touched_rows(trainer, self.schema))

    def staying(self, plan: Plan) -> dict[str, NDArray[Any]]:
        return {spec.name: self.initial[spec.name] for spec in plan.layout(self.schema).staying}

    def personal(self, plan: Plan) -> bool:
        """Whether local tensors are trained: then there are as many models as clients."""
        return any(
            np.dtype(spec.dtype).kind not in "iub" and self.kinds.get(spec.name) != "constant"
            for spec in plan.layout(self.schema).local
        )


class Judge:
    """Judges models on held-out records, if script and plan allow it; `note` says why not.

    Where trained tensors stay with the clients every holder judges with its own tensors, on its
    own held-out records; else the script's evaluator does. What fails is noted once (`failed`).

    Args:
        holders: the settings of every data holder, by name; pooled: of nobody in particular.
        look: of the first holder's trainer.
        own: the clients' local tensors.
        trainers: of the holders, where they are there already.
    """

    def __init__(
        self,
        plan: Plan,
        script: Script,
        holders: Mapping[str, Mapping[str, Setting]],
        pooled: Mapping[str, Setting],
        look: Look,
        own: Own,
        trainers: Mapping[str, Trainer] | None = None,
    ) -> None:
        self.note, self.failed, self._plan = "", "", plan
        self._initial, self._stay = tuple(look.initial), look.staying(plan)
        self._ties = look.schema.ties
        self._personal = look.personal(plan)
        self._evaluator: Evaluator | None = None
        try:
            if self._personal:
                made = trainers or {name: script.make(each) for name, each in holders.items()}
                self._evaluator = PooledEvaluation(
                    [_WithItsOwn(trainer, name, own) for name, trainer in made.items()]
                )
            else:
                self._evaluator = script.make_evaluator(pooled)
        except SecurepsError as error:
            self.note = f"no held-out score: {error}"
            return
        if self._evaluator is None:
            why = script.own_code or "the script has no make_evaluator(settings)"
            self.note = f"no held-out score: {why}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the scores: that there are none, or whose they are, or what failed."""
        remark = OF_THEIR_OWN if self._personal and not self.note else ""
        return tuple(each for each in (self.note, remark, self.failed) if each)

    def evaluate(self, tensors: Tensors) -> EvaluateResult:
        """Evaluates a model that lacks its local tensors; ScriptFailed if the script fails."""
        assert self._evaluator is not None
        return self._evaluated(self._evaluator, self._whole(tensors))

    def score(self, tensors: Tensors) -> Score | None:
        """Scores; None without an evaluator, or if the script failed (`failed` says so once)."""
        if self._evaluator is None:
            return None
        try:
            return Score.of(self.evaluate(tensors), self._plan)
        except SecurepsError as error:
            self.failed = self.failed or f"a version has no held-out score: {error}"
            return None

    def alone(self, trainer: Trainer, model: Tensors) -> Score:
        """Scores a holder's own, whole model by the federation's evaluator (ScriptFailed)."""
        assert self._evaluator is not None
        judge = trainer if self._personal else self._evaluator
        return Score.of(self._evaluated(judge, dict(model)), self._plan)

    def _evaluated(self, evaluator: Evaluator, model: dict[str, NDArray[Any]]) -> EvaluateResult:
        with blamed("evaluate"):
            result = evaluator.evaluate(model)
        return checked("evaluate", result, self._plan)

    def _whole(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Adds initial values of local tensors, and names of tied ones, in the model's order."""
        known = with_ties({**self._stay, **tensors}, self._ties)
        order = {name: known[name] for name in self._initial if name in known}
        return {name: np.array(each) for name, each in {**order, **known}.items()}


@dataclass(frozen=True)
class _WithItsOwn:
    """The evaluator of one holder, with its own local tensors."""

    trainer: Trainer
    name: str
    own: Own

    def evaluate(self, parameters: dict[str, NDArray[Any]]) -> EvaluateResult:
        return self.trainer.evaluate({**parameters, **(self.own(self.name) or {})})


def checked(what: str, result: object, plan: Plan) -> EvaluateResult:
    with blamed(f"what {what} returned"):
        taken = taken_evaluation(result)
        score = Score.of(taken, plan)
        for name, value in (("loss", score.loss), (score.measure, score.value)):
            if value is not None and not math.isfinite(value):
                raise NotFinite(f"{name} is {value}")
    return taken
