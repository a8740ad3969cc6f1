"""Runs the data holders' script to score models, train baselines, and rehearse a plan.

`Judge` scores models on held-out records; a script that fails there is noted once, and the run
goes on. `run_baselines` trains every holder alone, and one party with all data. The rehearsal
trains and evaluates once for `secureps check --run-script`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from secureps.client.initial_model import add_ties, conform, schema_of
from secureps.client.script import Script
from secureps.client.trainer import (
    SECRET_BYTES,
    EvaluateResult,
    Evaluator,
    FitConfig,
    PooledEvaluation,
    RecordPrivacy,
    Setting,
    Trainer,
    blamed,
    convert_evaluation,
    convert_fit,
    convert_tensors,
    kinds_of,
    read_result,
    read_touched_rows,
    ties_of,
    trainable_privacy,
)
from secureps.config.plan import ClientPrivacySection
from secureps.crypto.sampling import Seed
from secureps.errors import NotFinite, PlanRefused, SecurepsError, WrongShape
from secureps.messages.evaluation import Metric
from secureps.messages.run import Schema
from secureps.policy.checks.evaluation import check_metrics
from secureps.policy.plan import Plan, bits_left, shares_of
from secureps.policy.tensor_kinds import Kind
from secureps.run.initial_schema import refuse_unusable
from secureps.run.script.channel import Tensors
from secureps.wording import join_alike, suggest

Own = Callable[[str], Tensors | None]
"""A client's newest local tensors, by its name; None before its first training."""

Goal = Literal["max", "min"]

OF_THEIR_OWN = "scores are the holders' own, each with its local tensors on its held-out records"


def find_goal(measure: str, plan: Plan) -> Goal | None:
    """Finds whether more or less of a metric is better; None unless the plan says it.

    More accuracy is better, and less loss, without a word in the plan.
    """
    evaluation = plan.section.evaluation
    if evaluation is not None and evaluation.best and evaluation.best.metric == measure:
        return evaluation.best.goal
    known: dict[str, Goal] = {"accuracy": "max", "loss": "min"}
    return known.get(measure)


@dataclass(frozen=True, slots=True)
class Score:
    """A score on held-out records.

    Args:
        measure, value: the plan's metric (`evaluation.best`), or else `accuracy`, the first of the
            script's other metrics that is no loss, or the loss.
        others: the script's other finite metrics, by name.
    """

    measure: str
    value: float
    loss: float | None
    examples: int
    others: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, result: EvaluateResult, plan: Plan | None = None) -> Score:
        """Picks the score of a result; WrongShape if it has neither a loss nor a metric."""
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
    """A trainer's description of its model.

    Args:
        schema: of its tensors.
        kinds: what training does to each tensor.
        initial: a fresh model, in the model's order.
    """

    schema: Schema
    kinds: Mapping[str, Kind]
    initial: Tensors = field(repr=False)

    @classmethod
    def at(cls, trainer: Trainer) -> Look:
        """Asks a trainer; ScriptFailed if it raises, or returns no model."""
        with blamed("what make(settings) returned"):
            if not callable(getattr(trainer, "parameters", None)):
                raise WrongShape(f"a {type(trainer).__name__} is no trainer: no parameters(seed)")
        with blamed("parameters"):
            made = trainer.parameters(0)
        with blamed("what parameters returned"):
            initial = convert_tensors(made)
            return cls(schema_of(initial, ties_of(trainer)), kinds_of(trainer), initial)

    def refuse_unusable(self, plan: Plan) -> None:
        """Refuses a fresh model (ScriptFailed), unless a plan's file of version 0 replaces it."""
        if plan.section.initial is not None:
            return
        constants = [name for name, kind in self.kinds.items() if kind == "constant"]
        with blamed("what parameters returned"):
            refuse_unusable(plan.layout(self.schema), self.initial, constants)

    def find_touched(self, plan: Plan, trainer: Trainer) -> tuple[str, ...]:
        with blamed("touches"):
            return plan.find_touched(read_touched_rows(trainer, self.schema))

    def is_personal(self, plan: Plan) -> bool:
        """True if local tensors are trained, so that each client has its own model."""
        return any(
            np.dtype(spec.dtype).kind not in "iub" and self.kinds.get(spec.name) != "constant"
            for spec in plan.layout(self.schema).local
        )


class Judge:
    """Scores models on held-out records, if script and plan allow it; `note` says why not.

    If trained tensors stay with the clients, every holder evaluates with its own tensors on its own
    held-out records; otherwise the script's evaluator does. `failed` has the first failure.

    Args:
        holders, pooled: as in `process.assign`.
        look: the description by the first holder's trainer.
        own: gets a client's local tensors.
        trainers: those of the holders, if they have been made.
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
        self.note, self.failed = "", ""
        self.plan, self.script, self.holders, self.pooled = plan, script, holders, pooled
        staying = plan.layout(look.schema).staying
        self._initial = tuple(look.initial)
        self._stay = {spec.name: look.initial[spec.name] for spec in staying}
        self._ties = look.schema.ties
        self._personal = look.is_personal(plan)
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
        """Notes on the scores: why there are none, whose they are, and what failed."""
        remark = OF_THEIR_OWN if self._personal and not self.note else ""
        return tuple(each for each in (self.note, remark, self.failed) if each)

    def evaluate(self, tensors: Tensors) -> EvaluateResult:
        """Evaluates a model that lacks its local tensors; ScriptFailed if the script fails."""
        assert self._evaluator is not None
        return self._evaluated(self._evaluator, self._whole(tensors))

    def score(self, tensors: Tensors) -> Score | None:
        """Scores a model; None without an evaluator, or if the script failed (see `failed`)."""
        if self._evaluator is None:
            return None
        try:
            return Score.of(self.evaluate(tensors), self.plan)
        except SecurepsError as error:
            self.failed = self.failed or f"a version has no held-out score: {error}"
            return None

    def score_alone(self, trainer: Trainer, model: Tensors) -> Score:
        """Scores the model that a holder trained alone; ScriptFailed if the script fails."""
        assert self._evaluator is not None
        judge = trainer if self._personal else self._evaluator
        return Score.of(self._evaluated(judge, dict(model)), self.plan)

    def _evaluated(self, evaluator: Evaluator, model: dict[str, NDArray[Any]]) -> EvaluateResult:
        with blamed("evaluate"):
            result = evaluator.evaluate(model)
        return check_evaluation("evaluate", result, self.plan)

    def _whole(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Adds initial values of local tensors, and names of tied ones, in the model's order."""
        known = add_ties({**self._stay, **tensors}, self._ties)
        order = {name: known[name] for name in self._initial if name in known}
        return {name: np.array(each) for name, each in {**order, **known}.items()}


@dataclass(frozen=True)
class _WithItsOwn:
    """Evaluates with one holder's trainer and its local tensors."""

    trainer: Trainer
    name: str
    own: Own

    def evaluate(self, parameters: dict[str, NDArray[Any]]) -> EvaluateResult:
        return self.trainer.evaluate({**parameters, **(self.own(self.name) or {})})


def check_evaluation(what: str, result: object, plan: Plan) -> EvaluateResult:
    with blamed(f"what {what} returned"):
        taken = convert_evaluation(result)
        score = Score.of(taken, plan)
        for name, value in (("loss", score.loss), (score.measure, score.value)):
            if value is not None and not math.isfinite(value):
                raise NotFinite(f"{name} is {value}")
    return taken


# --- baselines ---------------------------------------------------------------------


Say = Callable[[str], None]


@dataclass(frozen=True)
class Baselines:
    """The scores of holders alone (by name) and of central training.

    Args:
        notes: why scores are missing.
        noiseless: holders alone trained without the noise that the plan adds to their updates.
        goal: whether more or less of the holders' measure is better; None if unknown.
    """

    alone: Mapping[str, Score]
    central: Score | None
    notes: tuple[str, ...]
    noiseless: bool = False
    goal: Goal | None = None

    @property
    def outer(self) -> dict[str, Score]:
        """The best score of a holder alone, or the lowest and the highest without a goal."""
        scores = sorted(self.alone.values(), key=lambda score: score.value)
        if not scores:
            return {}
        if self.goal is None:
            return {"the lowest": scores[0], "the highest": scores[-1]}
        return {"the best": scores[-1] if self.goal == "max" else scores[0]}


def train_alone(
    trainer: Trainer,
    name: str,
    start: Tensors,
    versions: int,
    plan: Plan,
    seed: Seed,
    records: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Trains a holder alone as often as there are versions; returns its model.

    It uses the plan's settings and record-level privacy, and so the same number of steps and the
    same epsilon as in the federation. Client-level privacy adds noise to sent updates only, so a
    holder alone has none.
    """
    ties = ties_of(trainer)
    model = {tensor: array.copy() for tensor, array in start.items() if tensor not in ties}
    schema = schema_of(model)
    for version in range(versions):
        stream = seed.derive("alone", name, version)
        config = FitConfig(
            versions=dict.fromkeys(plan.groups, version),
            seed=stream.integer(63),
            settings=plan.section.training,
            privacy=trainable_privacy(plan, trainer, records),
            secret=stream.words(SECRET_BYTES // 4).tobytes(),
        )
        with blamed("fit"):
            returned = trainer.fit(add_ties(model, ties), config)
        with blamed("what fit returned"):
            model = conform(convert_fit(returned), schema, ties).parameters
    return add_ties(model, ties)


def run_baselines(
    judge: Judge,
    versions: int,
    records: Mapping[str, int],
    start: Tensors,
    seed: Seed,
    say: Say,
) -> Baselines:
    """Trains the baselines of a run; one that fails is left out, with a note.

    Args:
        judge: scores all models; plan, script and settings are the judge's.
        versions: how many the federation made.
        records: as in `process.assign`.
        start: version 0; empty if it is unknown.
    """
    if not versions:
        return Baselines({}, None, ("nothing is compared: no version was made",))
    scores, notes = dict[str, Score](), list(judge.notes)
    noiseless = isinstance(judge.plan.section.privacy, ClientPrivacySection)
    if not judge.note and not start:
        notes.append("holders alone: left out, because version 0 is not in a checkpoint")
    if judge.script.own_code:
        notes.append(f"holders alone: left out, {judge.script.own_code}")
    elif not judge.note and start:
        how, failed = ", without noise" if noiseless else "", dict[str, str]()
        for name in judge.holders:
            say(f"for comparison, trains {name} alone{how}")
            try:
                scores[name] = _score_holder(judge, name, versions, records, start, seed)
            except SecurepsError as error:  # the fault may lie in this holder's records
                failed[name] = f"{name} failed alone, and is not compared: {error}"
        notes += join_alike(failed)
    central, why = _train_centrally(judge, say)
    notes += [f"central training: left out{why}"] if why else []
    measure = next((score.measure for score in scores.values()), "")
    known = find_goal(measure, judge.plan)
    if measure and known is None:
        notes.append(
            f"nothing says whether more or less {measure} is better: best in the plan's "
            "[evaluation] does"
        )
    return Baselines(scores, central, tuple(notes), noiseless, known)


def _score_holder(
    judge: Judge,
    name: str,
    versions: int,
    records: Mapping[str, int],
    start: Tensors,
    seed: Seed,
) -> Score:
    """Scores the model that a holder trains alone; ScriptFailed if the script fails."""
    plan, trainer = judge.plan, judge.script.make(judge.holders[name])
    if plan.section.local or plan.section.frozen:
        with blamed("parameters"):
            fresh = trainer.parameters(seed.derive("alone", name).integer(63))
        start = {**fresh, **start}
    own = (seed, records.get(name))
    return judge.score_alone(trainer, train_alone(trainer, name, start, versions, plan, *own))


def _train_centrally(judge: Judge, say: Say) -> tuple[Score | None, str]:
    if why := judge.script.why_not_central:
        return None, f", {why}"
    say("for comparison, trains centrally, without privacy")
    try:
        found = judge.script.central(judge.pooled)
        if found is None:
            return None, ", central(settings) returned None"
        return Score.of(check_evaluation("central(settings)", found, judge.plan), judge.plan), ""
    except SecurepsError as error:
        return None, f": {error}"


# --- rehearsal ---------------------------------------------------------------------

HARDLY_ANY_NOISE = 1e-12
"""A noise multiplier of almost 0, because trainers refuse 0."""

COARSE = 0.02
"""The rounding step of a metric, relative to its value, above which its mean is too coarse."""


def measure_lengths(
    plan: Plan, look: Look, trainer: Trainer, privacy: RecordPrivacy | None, model: Tensors
) -> dict[str, float]:
    """Measures the length (L2) of a holder's update without noise, before the clip, by group.

    Running statistics do not count, because they have no clip. ScriptFailed if `fit` fails.
    """
    config = FitConfig(
        versions=dict.fromkeys(plan.groups, 0),
        seed=0,
        settings=plan.section.training,
        privacy=None if privacy is None else replace(privacy, noise_multiplier=HARDLY_ANY_NOISE),
        secret=bytes(SECRET_BYTES),
    )
    with blamed("fit"):
        result = trainer.fit(_copy_model(model), config)
    with blamed("what fit returned"):
        result = conform(convert_fit(result), look.schema, look.schema.ties)
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


def warn_of_metrics(plan: Plan, trainer: Trainer, model: Tensors) -> Iterator[str]:
    """Calls `evaluate`, and yields what is wrong with the metrics of the plan.

    Raises ScriptFailed if the script fails, PlanRefused if it lacks a metric.
    """
    section = plan.section.evaluation
    if section is None:
        return
    versions = dict.fromkeys(plan.groups, 0)
    with blamed("evaluate"):
        at = getattr(trainer, "evaluate_at", None)
        result = (
            trainer.evaluate(_copy_model(model)) if at is None else at(_copy_model(model), versions)
        )
    told = read_result("what evaluate returned", result, False, section.metrics)
    values = told.metrics
    lacking = sorted(section.metrics.keys() - values.keys())
    if lacking:
        raise PlanRefused(
            f"evaluation.metrics: evaluate of the script says nothing called {lacking[0]!r}; "
            f"{suggest(lacking[0], sorted(values))}: name one of these in the plan, or have "
            "evaluate return it"
        )
    metrics = tuple(Metric(name, values[name]) for name in sorted(section.metrics))
    with blamed("what evaluate returned"):
        check_metrics(section, metrics)
    yield from _warn_of_coarse_steps(plan, metrics, told.examples)
    for metric in metrics:
        most = section.metrics[metric.name]
        if abs(metric.value) > most:
            yield (
                f"evaluation.metrics: {metric.name} of version 0 is {metric.value:.3g}, and a "
                f"client sends {most:g} at most: raise {metric.name} to what it may come to"
            )


def _warn_of_coarse_steps(plan: Plan, metrics: Sequence[Metric], examples: int) -> Iterator[str]:
    """Warns of the metric whose mean over clients is rounded most, if that is too coarse."""
    if not plan.trailing:
        return
    group, members = plan.group(plan.trailing), plan.bounds(plan.trailing).minimum
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
            "more bits in a group"
        )


def _copy_model(model: Tensors) -> dict[str, NDArray[Any]]:
    return {name: np.array(array) for name, array in model.items()}
