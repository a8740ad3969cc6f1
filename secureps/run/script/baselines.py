"""Trains the baselines of a federation: every holder alone, and one party with all data.

Trainers come from the data holders' script. What must not live here: processes, and any
knowledge of a data set: the script trains and evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    trainer: Trainer, name: str, start: Tensors, versions: int, plan: Plan, seed: Seed
) -> dict[str, NDArray[Any]]:
    """A holder's model after as many local trainings as the federation had versions.

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
            privacy=record_privacy(plan),
            secret=stream.words(SECRET_BYTES // 4).tobytes(),
        )
        with blamed("fit"):
            model = trainer.fit(model, config).parameters
    return model


@dataclass(frozen=True)
class Race:
    """The common start of the baselines.

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
    """Trains all baselines, one after another; `say` is told which. None where nothing was made.

    A baseline at which the script fails is left out, with a note.
    """
    if not race.versions:
        return Baselines({}, None, ("nothing is compared: no version was made",))
    notes = list(judge.notes)
    if not judge.note and not race.start:
        notes.append("holders alone: left out, because version 0 is not in a checkpoint")
    alone: dict[str, Score] = {}
    noiseless = isinstance(race.plan.section.privacy, ClientPrivacySection)
    if race.script.own_code:
        notes.append(f"holders alone: left out, {race.script.own_code}")
    elif not judge.note and race.start:
        for name, settings in race.holders.items():
            say(f"for comparison, trains {name} alone{', without noise' if noiseless else ''}")
            try:
                alone[name] = _alone(race, judge, name, settings)
            except SecurepsError as error:
                notes.append(f"{name} alone: left out: {error}")
                break  # the others have the same script
    central = None
    if not race.script.trains_centrally:
        notes.append("central training: left out, the script has no central(settings)")
        return Baselines(alone, central, tuple(notes), noiseless)
    say("for comparison, trains centrally, without privacy")
    try:
        found = race.script.central(race.pooled)
        central = None if found is None else Score.of(found)
        if central is None:
            notes.append("central training: left out, central(settings) returned None")
    except SecurepsError as error:
        notes.append(f"central training: left out: {error}")
    return Baselines(alone, central, tuple(notes), noiseless)


def _alone(race: Race, judge: Judge, name: str, settings: Mapping[str, Setting]) -> Score:
    trainer, start = race.script.make(settings), dict(race.start)
    if race.plan.section.local:
        with blamed("parameters"):
            fresh = trainer.parameters(race.seed.derive("alone", name).integer(63))
        start = {**fresh, **start}
    model = train_alone(trainer, name, start, race.versions, race.plan, race.seed)
    return judge.alone(trainer, model)
