"""Plays trials of a study, and sums them up.

A trial is a scenario under one rule until its model is good enough. It is played in the clear:
under a cipher it comes to the same models at the same virtual times, which a `Comparison` checks on
the first versions. Where bytes take time, those of the plan's own cipher do; and unless versions
are compared, that cipher is played.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from secureps.config.plan import AsyncSection, CipherSection, GroupSection, RuleSection
from secureps.config.scenario import StudySection, VariantSection
from secureps.errors import ConfigError
from secureps.policy.plan import Plan
from secureps.run.report.tables import WholeTable
from secureps.run.simulate.garbage import seldom_collected
from secureps.run.simulate.play import Play
from secureps.run.simulate.scenario_file import Scenario, load_scenario

PLAIN = "plain"

ENDLESS = 1 << 30
"""Versions of a plan that the target ends, or the clock."""

CHECKPOINT_EVERY = 20
"""Versions of a trial between two checkpoints: what is in none is kept by shards and clients."""


@dataclass(frozen=True)
class Point:
    """The score of the newest model at a time of the virtual clock.

    Args:
        seconds: since the first model was there, whose sender no rule chooses.
        version: of the group that has made most.
    """

    seconds: float
    score: float
    version: int


@dataclass(frozen=True)
class Candidate:
    """A choice of settings for a variant; None: as in its plan.

    Args:
        rule: index into the variant's.
        deadline: of all groups' rules, in seconds.
        rate: the server's learning rate, of all groups.
    """

    variant: str
    rule: int | None = None
    deadline: float | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """The candidate in words, which also name a file."""
        parts = (
            self.variant,
            None if self.rule is None else str(self.rule + 1),
            None if self.deadline is None else f"within-{self.deadline:g}",
            None if self.rate is None else f"{self.rate:g}",
        )
        return "-".join(part for part in parts if part is not None)


@dataclass(frozen=True)
class Trial:
    """A candidate under a seed; given up after `limit` virtual seconds without the target."""

    candidate: Candidate
    seed: int
    limit: float

    @property
    def name(self) -> str:
        return f"{self.candidate.name}-seed-{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    Args:
        reached: virtual seconds to the target; None if it was not reached.
        points: all judgements; cpu: seconds that this machine spent.
    """

    reached: float | None
    points: tuple[Point, ...]
    cpu: float

    @property
    def versions(self) -> int:
        until = [p for p in self.points if self.reached is None or p.seconds <= self.reached]
        return until[-1].version if until else 0

    @property
    def best(self) -> float:
        return max((point.score for point in self.points), default=0.0)


@dataclass(frozen=True)
class Comparison:
    """A check of a candidate's first versions in the clear against the plan's own cipher."""

    candidate: Candidate
    seed: int

    @property
    def name(self) -> str:
        return f"{self.candidate.name}-sealed"


@dataclass(frozen=True)
class Likeness:
    """The result of a comparison: whether model (bit for bit) and virtual time are the same."""

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
    scenario: Scenario, candidate: Candidate, versions: int, sealed: bool | None = None
) -> Plan:
    """Makes a candidate's plan (PlanRefused), without an evaluation that none of its versions has.

    Args:
        sealed: under the plan's cipher; else in the clear (default: as trials are).
    """
    study, plan = section_of(scenario), scenario.plans[candidate.variant]
    rule, own = rule_of(study, candidate), plan.section.cipher
    groups = tuple(_group(group, rule, candidate) for group in plan.section.group)
    if sealed is None:
        sealed = scenario.delays.bandwidth is not None and not study.sealed
    judged = plan.section.evaluation
    update = {
        "group": groups,
        "versions": versions,
        "evaluation": None if judged is None or judged.every > versions else judged,
        "checkpoint_every": min(versions, CHECKPOINT_EVERY),
        "cipher": own if sealed else CipherSection(name=PLAIN, capacity=own.capacity),
    }
    return Plan(plan.section.model_copy(update=update), plan.initial_digest)


def compared(scenario: Scenario, variant: VariantSection) -> bool:
    """Whether a variant has an encrypted self to compare: if its plan encrypts, and allows it."""
    section = scenario.plans[variant.name].section
    rules = variant.rules or [group.rule for group in section.group]
    alone = any(isinstance(rule, AsyncSection) for rule in rules)
    return section_of(scenario).sealed > 0 and section.cipher.name != PLAIN and not alone


def charged(scenario: Scenario, candidate: Candidate, versions: int) -> Plan | None:
    """The plan whose cipher's bytes take time, where another is played; None where none do."""
    variant = variant_of(section_of(scenario), candidate)
    if scenario.delays.bandwidth is None or not compared(scenario, variant):
        return None
    return altered(scenario, candidate, versions, sealed=True)


def _group(group: GroupSection, rule: RuleSection | None, candidate: Candidate) -> GroupSection:
    rule = group.rule if rule is None else rule
    if candidate.deadline is not None:
        rule = rule.model_copy(update={"deadline": candidate.deadline})
    update: dict[str, object] = {"rule": rule, "versions": None}
    if candidate.rate is not None:
        update["optimizer"] = group.optimizer.model_copy(update={"learning_rate": candidate.rate})
    return group.model_copy(update=update)


def play(path: Path, job: Trial | Comparison) -> Outcome | Likeness:
    """Plays a trial or a comparison, in any process."""
    scenario, began = _loaded(path), time.process_time()
    played = _try(scenario, job) if isinstance(job, Trial) else _compare(scenario, job)
    return replace(played, cpu=round(time.process_time() - began, 2))


@cache
def _loaded(path: Path) -> Scenario:
    return load_scenario(path)


def variant_of(study: StudySection, candidate: Candidate) -> VariantSection:
    """The variant of a candidate."""
    return next(each for each in study.variant if each.name == candidate.variant)


def rule_of(study: StudySection, candidate: Candidate) -> RuleSection | None:
    """The rule of a candidate; None if it is the plan's."""
    if candidate.rule is None:
        return None
    return variant_of(study, candidate).rules[candidate.rule]


def _founded(scenario: Scenario, job: Trial | Comparison, folder: str) -> Scenario:
    variant = job.candidate.variant
    founding = scenario.founding(scenario.plans[variant], job.seed)
    if founding is None:
        return scenario
    plan = founding.write(Path(folder))
    return replace(scenario, plans={**scenario.plans, variant: plan})


def _cast(
    scenario: Scenario, plan: Plan, seed: int, folder: str, charged: Plan | None = None
) -> Play:
    section = scenario.section.model_copy(update={"seed": seed})
    own = replace(scenario, section=section, plan=plan)
    return Play(own, Path(folder), lambda line: None, charged=charged)


def _try(scenario: Scenario, trial: Trial) -> Outcome:
    study = section_of(scenario)
    with TemporaryDirectory() as folder:
        founded = _founded(scenario, trial, folder)
        plan = altered(founded, trial.candidate, ENDLESS)
        charges = charged(founded, trial.candidate, ENDLESS)
        played = _cast(scenario, plan, trial.seed, folder, charges)
        points = _judged(played, study, trial)
    return Outcome(crossed(points, study.target, study.hold), tuple(points), 0.0)


def _judged(played: Play, study: StudySection, trial: Trial) -> list[Point]:
    """Plays until the target is held, or until it can no longer be reached before the limit."""
    simulation, own = played.simulation, played.judge
    if own.note:
        raise ConfigError(f"a study needs a script with make_evaluator(settings): {own.note}")
    loop, points = simulation.loop, list[Point]()
    seen, began = dict[str, int](), list[float]()
    over = [False]

    def judge() -> None:
        now, versions = loop.now() - began[0], simulation.versions()
        if versions == seen:
            points.append(replace(points[-1], seconds=now))
        else:
            seen.update(versions)
            scores = own.evaluate(simulation.model()).metrics
            if study.measure not in scores:
                known = ", ".join(scores)
                raise ConfigError(f"study.measure: no {study.measure!r}; the script has {known}")
            points.append(Point(now, scores[study.measure], max(versions.values())))
        held = crossed(points, study.target, study.hold) is not None
        hopeful = points[-1].score >= study.target
        over[0] = held or (now >= trial.limit and not hopeful)
        loop.call_later(study.every, judge)

    def done() -> bool:
        simulation.refuse_failed()
        if not began and min(simulation.versions().values()) >= 0:
            began.append(loop.now())
            settled()
            loop.call_later(0.0, judge)
        return over[0]

    with seldom_collected() as settled:
        simulation.run(done)
    return points


def _compare(scenario: Scenario, job: Comparison) -> Likeness:
    study = section_of(scenario)
    with TemporaryDirectory() as folder:
        scenario = _founded(scenario, job, folder)
        charges = charged(scenario, job.candidate, study.sealed)
        plans = [altered(scenario, job.candidate, study.sealed, sealed) for sealed in (True, False)]
        (model, seconds), (clear, clear_seconds) = (
            _first_versions(scenario, plan, job.seed, charge)
            for plan, charge in zip(plans, (None, charges), strict=True)
        )
    same = all(model[name].tobytes() == clear[name].tobytes() for name in model)
    return Likeness(same, seconds == clear_seconds, study.sealed, 0.0)


def _first_versions(
    scenario: Scenario, plan: Plan, seed: int, charged: Plan | None
) -> tuple[dict[str, NDArray[np.generic]], float]:
    with TemporaryDirectory() as folder:
        simulation = _cast(scenario, plan, seed, folder, charged).simulation
        simulation.run(lambda: min(simulation.versions().values()) >= plan.section.versions)
        return simulation.model(), simulation.loop.now()


@dataclass(frozen=True)
class Row:
    """The results of a variant: of the candidate that tuning chose, under all seeds.

    Args:
        settings: what tuning chose, in words.
        seconds: virtual, to the target, of every seed that reached it; sorted.
        median: over all seeds, one that did not reach it counting as for ever; None: for ever.
        times: how many times sooner than the baseline, by medians; None if either is for ever.
        versions, best: made until then, and the best score of a seed; medians.
        sealed: whether its encrypted self is the same; None: not compared.
    """

    variant: str
    settings: str
    seconds: tuple[float, ...]
    median: float | None
    times: float | None
    versions: float
    best: float
    sealed: bool | None


class StudyResults:
    """Collects the results of a study, in any order."""

    def __init__(self, study: StudySection) -> None:
        self.study = study
        self._judged: dict[str, dict[int, tuple[Candidate, Outcome]]] = {}
        self._sealed: dict[str, Likeness] = {}
        self.cpu = 0.0

    def take(self, job: Trial | Comparison, result: Outcome | Likeness) -> str:
        self.cpu += result.cpu
        name = job.candidate.variant
        if isinstance(result, Likeness):
            self._sealed[name] = result
            return _likeness(result)
        assert isinstance(job, Trial)
        if job.seed != self.study.tuning:
            self._judged.setdefault(name, {})[job.seed] = job.candidate, result
        goal = f"{self.study.measure} {self.study.target:g}"
        if result.reached is None:
            return f"no {goal} within {job.limit:g} s, at best {result.best:.3f}"
        return f"{goal} after {result.reached:g} s, {result.versions} versions"

    def rows(self) -> tuple[Row, ...]:
        base = _median(self._outcomes(self.study.baseline))
        return tuple(self._row(variant.name, base) for variant in self.study.variant)

    def curves(self) -> dict[str, list[list[tuple[float, float]]]]:
        """(Virtual seconds, score), by variant and seed."""
        return {
            variant.name: [
                [(point.seconds, point.score) for point in outcome.points]
                for outcome in self._outcomes(variant.name)
            ]
            for variant in self.study.variant
        }

    def _outcomes(self, name: str) -> list[Outcome]:
        return [outcome for _, outcome in self._judged[name].values()]

    def _row(self, name: str, base: float) -> Row:
        candidate = next(iter(self._judged[name].values()))[0]
        outcomes, likeness = self._outcomes(name), self._sealed.get(name)
        median = _median(outcomes)
        return Row(
            variant=name,
            settings=settings(self.study, candidate),
            seconds=tuple(sorted(o.reached for o in outcomes if o.reached is not None)),
            median=None if median == math.inf else median,
            times=None if math.inf in (median, base) else base / median,
            versions=statistics.median(outcome.versions for outcome in outcomes),
            best=statistics.median(outcome.best for outcome in outcomes),
            sealed=None if likeness is None else likeness.model and likeness.seconds,
        )


def settings(study: StudySection, candidate: Candidate) -> str:
    """The settings that distinguish a candidate from others of its variant."""
    every = [rule.model_dump() for rule in variant_of(study, candidate).rules]
    rule, words = rule_of(study, candidate), list[str]()
    if rule is not None:
        own = rule.model_dump()
        keys = [key for key in own if any(rule.get(key) != own[key] for rule in every)]
        words += [f"{key} {own[key]}" for key in keys]
    if candidate.deadline is not None:
        words.append(f"deadline {candidate.deadline:g}")
    if candidate.rate is not None:
        words.append(f"rate {candidate.rate:g}")
    return ", ".join(words)


def _median(outcomes: Sequence[Outcome]) -> float:
    """Seconds to the target; for ever if a middle one is: it has no half."""
    times = [math.inf if o.reached is None else o.reached for o in outcomes]
    return statistics.median(times)


def _likeness(found: Likeness) -> str:
    if found.model and found.seconds:
        return f"{found.versions} versions under encryption: the same bits at the same times"
    what = "another model" if not found.model else "the same model, at another time"
    return f"{found.versions} versions under encryption: {what}"


# --- tables -----------------------------------------------------------------------


def _cells(study: StudySection, row: Row) -> tuple[str, ...]:
    spread = f"{row.seconds[0]:g} - {row.seconds[-1]:g}" if row.seconds else ""
    return (
        row.variant,
        row.settings,
        f"not in {study.seconds:g}" if row.median is None else f"{row.median:g}",
        spread,
        f"{len(row.seconds)} of {len(study.seeds)}",
        "" if row.times is None else f"{row.times:.2f}",
        f"{row.versions:g}",
        {None: "not compared", True: "the same", False: "NOT THE SAME"}[row.sealed],
    )


def _heads(study: StudySection) -> tuple[str, ...]:
    return (
        "rule",
        "tuned",
        f"virtual s to {study.measure} {study.target:g}, median",
        "least - most",
        "seeds that reached it",
        f"times sooner than {study.baseline}",
        "versions",
        "encrypted",
    )


def table(study: StudySection, rows: Sequence[Row]) -> Table:
    """The table for a terminal, which may be narrow."""
    shown = WholeTable(
        f"virtual seconds to {study.measure} {study.target:g}; times sooner than {study.baseline}"
    )
    heads = ("median", "least - most", "seeds", "sooner", "versions", "encrypted")
    for head in ("rule, as tuned", *heads):
        shown.add_column(head, overflow="fold")
    for row in rows:
        name, tuned, *cells = _cells(study, row)
        shown.add_row(f"{name}: {tuned}" if tuned else name, *cells)
    return shown


def markdown(study: StudySection, rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    heads = _heads(study)
    lines = [heads, ("---",) * len(heads), *(_cells(study, row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
