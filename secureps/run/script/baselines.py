"""Trains the baselines of a federation: every holder alone, and one party with all data.

Trainers come from the data holders' script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from secureps.client.initial_model import conformed, schema_of, with_ties
from secureps.client.returned import taken_fit
from secureps.client.script import Script
from secureps.client.script_errors import blamed
from secureps.client.trainer import (
    SECRET_BYTES,
    FitConfig,
    Setting,
    Trainer,
    record_privacy,
    ties_of,
)
from secureps.config.plan import ClientPrivacySection
from secureps.crypto.sampling import Seed
from secureps.errors import SecurepsError
from secureps.policy.plan import Plan
from secureps.run.script.channel import Tensors
from secureps.run.script.scoring import Goal, Judge, Score, checked, goal
from secureps.wording import together

Say = Callable[[str], None]


@dataclass(frozen=True)
class Baselines:
    """The scores of holders alone (by name) and of central training, and notes on missing ones.

    `noiseless`: holders alone trained without the noise that the plan adds to their updates.
    `goal`: whether more or less of the measure of holders alone is better; None where nothing
    says it.
    """

    alone: Mapping[str, Score]
    central: Score | None
    notes: tuple[str, ...]
    noiseless: bool = False
    goal: Goal | None = None

    @property
    def outer(self) -> dict[str, Score]:
        """The best holder's score alone; the lowest and the highest where no goal is known."""
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
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yields a holder's model after each of as many local trainings as there are versions.

    Each begins where the last ended, with the plan's settings and record-level privacy: the same
    number of steps and the same epsilon as in the federation, and nobody else's data. Client-level
    privacy is of what is sent: who trains alone sends nothing, and has no noise.
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
            privacy=record_privacy(plan, records),
            secret=stream.words(SECRET_BYTES // 4).tobytes(),
        )
        with blamed("fit"):
            returned = trainer.fit(with_ties(model, ties), config)
        with blamed("what fit returned"):
            model = conformed(taken_fit(returned), schema, ties).parameters
        yield with_ties(model, ties)


class Race:
    """Trains every holder alone, in steps of one local training, from a common start.

    Steps may be taken while the federation is still at work. A holder at which the script fails has
    no score, and the others are trained all the same: the fault may lie in that holder's records.

    Args:
        versions: how many the federation made.
        holders: the settings of every data holder, by name; pooled: of nobody in particular.
        records: the public number that a holder counts by, by its name; empty for the plan's.
        start: version 0; empty if it is not known.
    """

    def __init__(
        self,
        plan: Plan,
        script: Script,
        versions: int,
        holders: Mapping[str, Mapping[str, Setting]],
        pooled: Mapping[str, Setting],
        records: Mapping[str, int],
        start: Tensors,
        seed: Seed,
        judge: Judge,
    ) -> None:
        self.plan, self.script, self.versions = plan, script, versions
        self.pooled, self.start, self.judge = pooled, start, judge
        self.holders, self._records, self._seed = holders, records, seed
        self.scores: dict[str, Score] = {}
        self.failed: dict[str, str] = {}
        self._steps = self._trained()

    @property
    def noiseless(self) -> bool:
        """Whether holders alone train without the noise that the plan adds to updates."""
        return isinstance(self.plan.section.privacy, ClientPrivacySection)

    def step(self) -> bool:
        """Trains one step; returns whether there was one left."""
        return next(self._steps, None) is not None

    def finish(self, say: Say) -> None:
        """Takes all steps that are left."""
        how = ", without noise" if self.noiseless else ""
        told = None
        for name in self._steps:
            if name != told:
                say(f"for comparison, trains {name} alone{how}")
            told = name

    def _trained(self) -> Iterator[str]:
        """The name of the holder that is trained next, before each step."""
        for name, settings in self.holders.items():
            yield name
            try:
                trainer, start = self.script.make(settings), dict(self.start)
                if self.plan.section.local or self.plan.section.frozen:
                    with blamed("parameters"):
                        fresh = trainer.parameters(self._seed.derive("alone", name).integer(63))
                    start = {**fresh, **start}
                own = (self._seed, self._records.get(name))
                models = train_alone(trainer, name, start, self.versions, self.plan, *own)
                for model in models:  # noqa: B007  the last one is judged
                    yield name
                self.scores[name] = self.judge.alone(trainer, model)
            except SecurepsError as error:
                self.failed[name] = f"{name} failed alone, and is not compared: {error}"


def run_baselines(race: Race, say: Say) -> Baselines:
    """Trains all baselines that are left of a race; one that fails is left out, with a note."""
    judge = race.judge
    if not race.versions:
        return Baselines({}, None, ("nothing is compared: no version was made",))
    notes = list(judge.notes)
    if not judge.note and not race.start:
        notes.append("holders alone: left out, because version 0 is not in a checkpoint")
    if race.script.own_code:
        notes.append(f"holders alone: left out, {race.script.own_code}")
    elif not judge.note and race.start:
        race.finish(say)
        notes += together(race.failed)
    central, why = _central(race, say)
    notes += [f"central training: left out{why}"] if why else []
    measure = next((score.measure for score in race.scores.values()), "")
    known = goal(measure, race.plan)
    if measure and known is None:
        notes.append(
            f"nothing says whether more or less {measure} is better: best in the plan's "
            "[evaluation] does"
        )
    return Baselines(race.scores, central, tuple(notes), race.noiseless, known)


def _central(race: Race, say: Say) -> tuple[Score | None, str]:
    if why := race.script.not_central:
        return None, f", {why}"
    say("for comparison, trains centrally, without privacy")
    try:
        found = race.script.central(race.pooled)
        if found is None:
            return None, ", central(settings) returned None"
        return Score.of(checked("central(settings)", found, race.plan), race.plan), ""
    except SecurepsError as error:
        return None, f": {error}"
