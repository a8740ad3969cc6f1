"""One trial of a study: a scenario under one rule, until its model is good enough.

Trials are played in the clear: under a cipher they come to the same models at the same virtual
times, which a `Comparison` checks on the first versions. What must not live here: which trials
there are (`run.study`), and what they come to together (`run.findings`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from secureps.config import CipherSection, RuleSection, StudySection
from secureps.errors import ConfigError
from secureps.policy.plan import Plan
from secureps.run.simulate import Play, Scenario, load_scenario

PLAIN = "plain"

ENDLESS = 1 << 30
"""Versions of a plan that the target ends, or the clock."""


@dataclass(frozen=True)
class Point:
    """The newest model, judged at a time of the virtual clock."""

    seconds: float
    score: float
    version: int


@dataclass(frozen=True)
class Candidate:
    """Rule `rule` of a variant, with the server's learning rate `rate`."""

    variant: str
    rule: int
    rate: float


@dataclass(frozen=True)
class Trial:
    """A candidate under a seed; given up after `limit` virtual seconds without the target."""

    candidate: Candidate
    seed: int
    limit: float

    @property
    def name(self) -> str:
        of = self.candidate
        return f"{of.variant}-{of.rule}-{of.rate:g}-seed-{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What a trial came to.

    Args:
        reached: virtual seconds to the target; None if it was not reached.
        points: all judgements; cpu: seconds that this machine spent.
    """

    reached: float | None
    points: tuple[Point, ...]
    cpu: float

    @property
    def versions(self) -> int:
        """How many were made to the target, or to the end."""
        until = [p for p in self.points if self.reached is None or p.seconds <= self.reached]
        return until[-1].version if until else 0

    @property
    def best(self) -> float:
        """The best score that was seen."""
        return max((point.score for point in self.points), default=0.0)


@dataclass(frozen=True)
class Comparison:
    """A candidate's first versions in the clear and under the plan's own cipher."""

    candidate: Candidate
    seed: int

    @property
    def name(self) -> str:
        of = self.candidate
        return f"{of.variant}-{of.rule}-{of.rate:g}-sealed"


@dataclass(frozen=True)
class Likeness:
    """Whether a comparison found the same: every bit of the model, and the virtual time."""

    model: bool
    seconds: bool
    versions: int
    cpu: float


def crossed(points: Sequence[Point], target: float, hold: int) -> float | None:
    """The first time from which `hold` scores in a row are at least `target`."""
    streak = 0
    for index, point in enumerate(points):
        streak = streak + 1 if point.score >= target else 0
        if streak == hold:
            return points[index - hold + 1].seconds
    return None


def section_of(scenario: Scenario) -> StudySection:
    """The scenario's study; ConfigError if it has none."""
    if scenario.section.study is None:
        raise ConfigError(f"{scenario.section.name} has no section [study]: nothing is compared")
    return scenario.section.study


def altered(
    scenario: Scenario, rule: RuleSection, rate: float, versions: int, sealed: bool = False
) -> Plan:
    """The scenario's plan with this rule and server's rate in every group.

    Args:
        sealed: under the plan's cipher; else in the clear.
    Raises:
        PlanRefused: such a plan is unsound.
    """
    plan = scenario.plan
    groups = tuple(
        group.model_copy(
            update={
                "rule": rule,
                "versions": None,
                "optimizer": group.optimizer.model_copy(update={"learning_rate": rate}),
            }
        )
        for group in plan.section.group
    )
    own = plan.section.cipher
    update = {
        "group": groups,
        "versions": versions,
        "checkpoint_every": versions,
        "cipher": own if sealed else CipherSection(name=PLAIN, capacity=own.capacity),
    }
    return Plan(plan.section.model_copy(update=update), plan.initial_digest)


def play(path: Path, job: Trial | Comparison) -> Outcome | Likeness:
    """Plays it; in any process."""
    scenario, began = _loaded(path), time.process_time()
    done = _try(scenario, job) if isinstance(job, Trial) else _compare(scenario, job)
    return replace(done, cpu=round(time.process_time() - began, 2))


@cache
def _loaded(path: Path) -> Scenario:
    return load_scenario(path)


def rule_of(study: StudySection, candidate: Candidate) -> RuleSection:
    """The rule of a candidate."""
    variant = next(each for each in study.variant if each.name == candidate.variant)
    return variant.rules[candidate.rule]


def _cast(scenario: Scenario, plan: Plan, seed: int, folder: str) -> Play:
    section = scenario.section.model_copy(update={"seed": seed})
    return Play(replace(scenario, section=section, plan=plan), Path(folder), lambda line: None)


def _try(scenario: Scenario, trial: Trial) -> Outcome:
    study = section_of(scenario)
    rule = rule_of(study, trial.candidate)
    plan = altered(scenario, rule, trial.candidate.rate, ENDLESS)
    with TemporaryDirectory() as folder:
        played = _cast(scenario, plan, trial.seed, folder)
        points = _judged(played, study, trial.limit)
    return Outcome(crossed(points, study.target, study.hold), tuple(points), 0.0)


def _judged(played: Play, study: StudySection, limit: float) -> list[Point]:
    """Plays until the target is held, or until it can no longer be reached before `limit`."""
    simulation, evaluator = played.simulation, played.evaluator
    if evaluator is None:
        raise ConfigError("a study needs a script with make_evaluator(settings)")
    points: list[Point] = []
    over = [False]

    def judge() -> None:
        now, version = simulation.loop.now(), min(simulation.versions().values())
        if points and points[-1].version == version:
            points.append(replace(points[-1], seconds=now))
        elif version >= 0:
            scores = evaluator.evaluate(simulation.model()).metrics
            if study.measure not in scores:
                known = ", ".join(scores)
                raise ConfigError(f"study.measure: no {study.measure!r}; the script has {known}")
            points.append(Point(now, scores[study.measure], version))
        held = crossed(points, study.target, study.hold) is not None
        hopeful = bool(points) and points[-1].score >= study.target
        over[0] = held or (now >= limit and not hopeful)
        simulation.loop.call_later(study.every, judge)

    simulation.loop.call_later(study.every, judge)
    simulation.run(lambda: over[0])
    return points


def _compare(scenario: Scenario, job: Comparison) -> Likeness:
    study = section_of(scenario)
    rule, rate = rule_of(study, job.candidate), job.candidate.rate
    (model, seconds), (clear, clear_seconds) = (
        _first_versions(scenario, altered(scenario, rule, rate, study.sealed, sealed), job.seed)
        for sealed in (True, False)
    )
    same = all(model[name].tobytes() == clear[name].tobytes() for name in model)
    return Likeness(same, seconds == clear_seconds, study.sealed, 0.0)


def _first_versions(
    scenario: Scenario, plan: Plan, seed: int
) -> tuple[dict[str, NDArray[np.generic]], float]:
    with TemporaryDirectory() as folder:
        simulation = _cast(scenario, plan, seed, folder).simulation
        wanted = plan.section.versions
        simulation.run(lambda: min(simulation.versions().values()) >= wanted)
        return simulation.model(), simulation.loop.now()
