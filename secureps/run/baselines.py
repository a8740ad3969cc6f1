"""What a federation is measured against: every holder alone, and one party with all data.

Trainers come from the data holders' script. What must not live here: processes, and any
number of a data set; whatever is trained or judged, the script does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from secureps.client.script import Script
from secureps.client.trainer import (
    SECRET_BYTES,
    EvaluateResult,
    FitConfig,
    Setting,
    Trainer,
    record_privacy,
)
from secureps.crypto.sampling import Seed
from secureps.policy.plan import Plan

Tensors = Mapping[str, NDArray[Any]]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Score:
    """One judgement on held-out records: `accuracy`, or the script's first metric, or the loss."""

    measure: str
    value: float
    loss: float
    examples: int

    @classmethod
    def of(cls, result: EvaluateResult) -> Score:
        for measure in ("accuracy", *sorted(result.metrics)):
            if measure in result.metrics:
                return cls(measure, result.metrics[measure], result.loss, result.examples)
        return cls("loss", result.loss, result.loss, result.examples)


@dataclass(frozen=True)
class Baselines:
    """What holders reach alone (by name), what central training reaches, what is missing."""

    alone: Mapping[str, Score]
    central: Score | None
    notes: tuple[str, ...]

    @property
    def best(self) -> Score | None:
        """The best holder alone."""
        scores = list(self.alone.values())
        return max(scores, key=lambda s: -s.value if s.measure == "loss" else s.value, default=None)


class Judge:
    """Judges models on the federation's own held-out records, if script and plan allow it.

    A model of which parts stay with the clients cannot be judged by anybody else.
    """

    def __init__(self, script: Script, settings: Mapping[str, Setting], local: bool) -> None:
        self._trainer = None if local else script.make_evaluator(settings)
        if local:
            self.note = "no held-out score: parts of the model stay with the clients"
        elif self._trainer is None:
            self.note = "no held-out score: the script has no make_evaluator(settings)"
        else:
            self.note = ""

    def score(self, tensors: Tensors) -> Score | None:
        """None if nobody can judge."""
        if self._trainer is None:
            return None
        return Score.of(self._trainer.evaluate(dict(tensors)))


def train_alone(
    trainer: Trainer, name: str, start: Tensors, versions: int, plan: Plan, seed: Seed
) -> dict[str, NDArray[Any]]:
    """A holder's model after as many local trainings as the federation had versions.

    Each begins where the last ended, with the plan's settings and privacy: the same number
    of steps and the same epsilon as in the federation, and nobody else's data.
    """
    model = {tensor: array.copy() for tensor, array in start.items()}
    for version in range(versions):
        stream = seed.derive("alone", name, version)
        config = FitConfig(
            versions=dict.fromkeys(plan.groups, version),
            seed=stream.integer(63),
            settings=plan.section.training,
            privacy=record_privacy(plan),
            secret=stream.words(SECRET_BYTES // 4).tobytes(),
        )
        model = trainer.fit(model, config).parameters
    return model


@dataclass(frozen=True)
class Race:
    """What the baselines start from.

    Args:
        plan, script: of the federation; versions: how many it made.
        holders: the settings of every data holder, by name.
        pooled: the settings of nobody in particular.
        start: version 0; empty if it is not known.
        seed: of the holders' trainings.
    """

    plan: Plan
    script: Script
    versions: int
    holders: Mapping[str, Mapping[str, Setting]]
    pooled: Mapping[str, Setting]
    start: Tensors
    seed: Seed


def run_baselines(race: Race, judge: Judge, say: Say) -> Baselines:
    """Trains them all, one after another; `say` hears which one. None where nothing was made."""
    if not race.versions:
        return Baselines({}, None, ("nothing is compared: no version was made",))
    notes = [judge.note] if judge.note else []
    if not judge.note and not race.start:
        notes.append("holders alone: left out, because version 0 is not in a checkpoint")
    alone: dict[str, Score] = {}
    if not judge.note and race.start:
        for name, settings in race.holders.items():
            say(f"for comparison, trains {name} alone")
            trainer = race.script.make(settings)
            model = train_alone(trainer, name, race.start, race.versions, race.plan, race.seed)
            score = judge.score(model)
            if score is not None:
                alone[name] = score
    say("for comparison, trains centrally, without privacy")
    central = race.script.central(race.pooled)
    if central is None:
        notes.append("central training: left out, the script has no central(settings)")
    return Baselines(alone, None if central is None else Score.of(central), tuple(notes))
