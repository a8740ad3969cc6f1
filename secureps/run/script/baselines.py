"""Trains the baselines of a federation: every holder alone, and one party with all data.

Trainers come from the data holders' script. What must not live here: processes, and any
knowledge of a data set: the script trains and evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from secureps.client.script import Script
from secureps.client.script_errors import blamed
from secureps.client.trainer import SECRET_BYTES, FitConfig, Setting, Trainer, record_privacy
from secureps.config.plan import ClientPrivacySection
from secureps.crypto.sampling import Seed
from secureps.errors import SecurepsError
from secureps.policy.plan import Plan
from secureps.run.script.scoring import Judge, Score, Tensors

Say = Callable[[str], None]


@dataclass(frozen=True)
class Baselines:
    """The scores of holders alone (by name) and of central training, and notes on missing ones.

    `noiseless`: holders alone trained without the noise that the plan adds to their updates.
    """

    alone: Mapping[str, Score]
    central: Score | None
    notes: tuple[str, ...]
    noiseless: bool = False

    @property
    def best(self) -> Score | None:
        """The score of the best holder alone."""
        scores = list(self.alone.values())

        def merit(score: Score) -> float:
            return -score.value if "loss" in score.measure.lower() else score.value

        return max(scores, key=merit, default=None)


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
    model = {tensor: array.copy() for tensor, array in start.items()}
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
            model = trainer.fit(model, config).parameters
        yield model


@dataclass(frozen=True)
class Race:
    """The common start of the baselines.

    Args:
        plan, script: of the federation; versions: how many it made.
        holders: the settings of every data holder, by name.
        pooled: the settings of nobody in particular.
        records: the public number that a holder counts by, by its name; empty for the plan's.
        start: version 0; empty if it is not known.
        seed: of the holders' trainings.
    """

    plan: Plan
    script: Script
    versions: int
    holders: Mapping[str, Mapping[str, Setting]]
    pooled: Mapping[str, Setting]
    records: Mapping[str, int]
    start: Tensors
    seed: Seed


class HoldersAlone:
    """Trains every holder alone, in steps of one local training.

    Steps may be taken while the federation is still at work: what they come to is the same. Once
    a holder failed, there are no more: the others have the same script.
    """

    def __init__(self, race: Race, judge: Judge) -> None:
        self.race = race
        self.scores: dict[str, Score] = {}
        self.failed = ""
        self._judge = judge
        self._steps = self._trained()

    def step(self) -> bool:
        """Takes a step; whether there was one to take."""
        return next(self._steps, None) is not None

    def finish(self, say: Say) -> None:
        """Takes all steps that are left; `say` is told which holders they are of."""
        how = ", without noise" if _noiseless(self.race) else ""
        told = None
        for name in self._steps:
            if name != told:
                say(f"for comparison, trains {name} alone{how}")
            told = name

    def _trained(self) -> Iterator[str]:
        """The name of the holder that is trained next, before each step."""
        race = self.race
        for name, settings in race.holders.items():
            yield name
            try:
                trainer, start = race.script.make(settings), dict(race.start)
                if race.plan.section.local or race.plan.section.frozen:
                    with blamed("parameters"):
                        fresh = trainer.parameters(race.seed.derive("alone", name).integer(63))
                    start = {**fresh, **start}
                own = (race.seed, race.records.get(name))
                models = train_alone(trainer, name, start, race.versions, race.plan, *own)
                for model in models:  # noqa: B007  the last one is judged
                    yield name
                self.scores[name] = self._judge.alone(trainer, model)
            except SecurepsError as error:
                self.failed = f"{name} alone: left out: {error}"
                return


def run_baselines(
    race: Race, judge: Judge, say: Say, begun: HoldersAlone | None = None
) -> Baselines:
    """Trains all baselines, one after another; `say` is told which. None where nothing was made.

    A baseline at which the script fails is left out, with a note.

    Args:
        begun: trainings alone of the same race, which are finished.
    """
    if not race.versions:
        return Baselines({}, None, ("nothing is compared: no version was made",))
    notes = list(judge.notes)
    if not judge.note and not race.start:
        notes.append("holders alone: left out, because version 0 is not in a checkpoint")
    alone = begun or HoldersAlone(race, judge)
    if race.script.own_code:
        notes.append(f"holders alone: left out, {race.script.own_code}")
    elif not judge.note and race.start:
        alone.finish(say)
        notes += [alone.failed] if alone.failed else []
    central, why = _central(race, say)
    notes += [f"central training: left out{why}"] if why else []
    return Baselines(alone.scores, central, tuple(notes), _noiseless(race))


def _central(race: Race, say: Say) -> tuple[Score | None, str]:
    """The score of central training, or why there is none."""
    if why := race.script.not_central:
        return None, f", {why}"
    say("for comparison, trains centrally, without privacy")
    try:
        found = race.script.central(race.pooled)
        if found is None:
            return None, ", central(settings) returned None"
        return Score.of(found), ""
    except SecurepsError as error:
        return None, f": {error}"


def _noiseless(race: Race) -> bool:
    return isinstance(race.plan.section.privacy, ClientPrivacySection)
