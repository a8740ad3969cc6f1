"""`secureps study`: compares rules by the virtual time to a target, over several seeds.

    OUT/table.md       a row per rule
    OUT/study.png      scores over virtual time

A trial plays a scenario under one rule until its model is good enough. It is played in the clear,
because a cipher gives the same models at the same virtual times. Only if bytes take time is it
played under the plan's cipher, whose bytes are to be counted.

Tuning is the same for every rule: its candidates are tried one after another under one seed, and
each is given up once it is later than the best one so far. The best is then played under seeds that
tuning has not seen.

Each trial is a process; none outlives the process that started it.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console

from secureps.config.plan import CipherSection, GroupSection, RuleSection
from secureps.config.scenario import StudySection, VariantSection
from secureps.errors import ConfigError, RuleFailed, TooFew, naming
from secureps.policy.plan import Plan
from secureps.run.processes.launcher import MODULE, Launcher, Program
from secureps.run.processes.signals import Terminated, terminable
from secureps.run.processes.supervisor import Supervisor
from secureps.run.report.plots import draw_study, why_undrawable
from secureps.run.report.status_tables import WordTable
from secureps.run.script.channel import as_failure, refuse_failure
from secureps.run.simulate.scenario_file import Scenario, load_scenario, refuse_few
from secureps.run.up.folder import new_folder
from secureps.run.up.programs import imports_of_script
from secureps.run.warm import warm_once
from secureps.service.malloc import GC_THRESHOLDS
from secureps.wording import counted, suggest

if TYPE_CHECKING:
    from secureps.run.simulate.simulation import Play

PLAIN = "plain"

_TICK = 0.05

ENDLESS = 1 << 30
"""The number of versions of a trial, which the target or the clock ends."""

CHECKPOINT_EVERY = 20
"""Versions of a trial between two checkpoints; shards and clients keep what is in none yet."""


@dataclass(frozen=True)
class Point:
    """The score of the newest model at a virtual time.

    Args:
        seconds: since version 0, which does not depend on the rule.
        version: the highest one of all groups.
    """

    seconds: float
    score: float
    version: int


@dataclass(frozen=True)
class Trial:
    """Settings to try with a variant of the plan; None leaves what the variant's plan says.

    Args:
        rule: index into the variant's `rules`.
        limit: virtual seconds after which the trial is given up.
    """

    variant: str
    rule: int | None = None
    deadline: float | None = None
    rate: float | None = None
    seed: int = 0
    limit: float = math.inf

    @property
    def name(self) -> str:
        """The name of the settings, without the seed."""
        parts = (
            self.variant,
            None if self.rule is None else str(self.rule + 1),
            None if self.deadline is None else f"within-{self.deadline:g}",
            None if self.rate is None else f"{self.rate:g}",
        )
        return "-".join(part for part in parts if part is not None)

    @property
    def title(self) -> str:
        return f"{self.name}-seed-{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """The result of a trial.

    Args:
        reached: virtual seconds to the target; None if it was not reached.
        points: all scores.
        cpu: seconds of this machine.
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


def find_crossing(points: Sequence[Point], target: float, hold: int) -> float | None:
    """Finds the first time from which `hold` scores in a row are at least `target`."""
    streak = 0
    for index, point in enumerate(points):
        streak = streak + 1 if point.score >= target else 0
        if streak == hold:
            return points[index - hold + 1].seconds
    return None


def section_of(scenario: Scenario) -> StudySection:
    if scenario.section.study is None:
        raise ConfigError(f"{scenario.section.name} has no section [study]: nothing is compared")
    return scenario.section.study


def make_plan(scenario: Scenario, trial: Trial) -> Plan:
    """Makes the plan of a trial; PlanRefused if it is unsound."""
    study, plan = section_of(scenario), scenario.plans[trial.variant]
    rule, own = rule_of(study, trial), plan.section.cipher
    update = {
        "group": tuple(_alter_group(group, rule, trial) for group in plan.section.group),
        "versions": ENDLESS,
        "checkpoint_every": CHECKPOINT_EVERY,
    }
    if scenario.delays.bandwidth is None:
        update["cipher"] = CipherSection(name=PLAIN, capacity=own.capacity)
    return Plan(plan.section.model_copy(update=update), plan.initial_digest)


def _alter_group(group: GroupSection, rule: RuleSection | None, trial: Trial) -> GroupSection:
    rule = group.rule if rule is None else rule
    if trial.deadline is not None:
        rule = rule.model_copy(update={"deadline": trial.deadline})
    update: dict[str, object] = {"rule": rule, "versions": None}
    if trial.rate is not None:
        update["optimizer"] = group.optimizer.model_copy(update={"learning_rate": trial.rate})
    return group.model_copy(update=update)


def play(path: Path, trial: Trial) -> Outcome:
    from secureps.run.simulate.simulation import Play

    scenario, began = load_scenario(path), time.process_time()
    study = section_of(scenario)
    with TemporaryDirectory() as folder:
        founded = _found_variant(scenario, trial, folder)
        own = replace(
            founded,
            section=scenario.section.model_copy(update={"seed": trial.seed}),
            plan=make_plan(founded, trial),
        )
        played = Play(own, Path(folder), lambda line: None)
        points = _play_to_target(played, study, trial.limit)
    reached = find_crossing(points, study.target, study.hold)
    return Outcome(reached, tuple(points), round(time.process_time() - began, 2))


def variant_of(study: StudySection, trial: Trial) -> VariantSection:
    return next(each for each in study.variant if each.name == trial.variant)


def rule_of(study: StudySection, trial: Trial) -> RuleSection | None:
    return None if trial.rule is None else variant_of(study, trial).rules[trial.rule]


def _found_variant(scenario: Scenario, trial: Trial, folder: str) -> Scenario:
    variant = trial.variant
    founding = scenario.founding(scenario.plans[variant], trial.seed)
    if founding is None:
        return scenario
    plan = founding.write(Path(folder))
    return replace(scenario, plans={**scenario.plans, variant: plan})


def _play_to_target(played: Play, study: StudySection, limit: float) -> list[Point]:
    """Plays until the target is held, or until it cannot be reached before the limit."""
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
        held = find_crossing(points, study.target, study.hold) is not None
        hopeful = points[-1].score >= study.target
        over[0] = held or (now >= limit and not hopeful)
        loop.call_later(study.every, judge)

    def done() -> bool:
        simulation.refuse_failed()
        if not began and min(simulation.versions().values()) >= 0:
            began.append(loop.now())
            loop.call_later(0.0, judge)
        return over[0]

    simulation.run(done)
    return points


@dataclass(frozen=True)
class Row:
    """The results of a variant, for the settings that tuning chose, under all seeds.

    Args:
        settings: what tuning chose, in words.
        seconds: the sorted virtual times to the target, of the seeds that reached it.
        median: over all seeds, where a seed that did not reach the target counts as infinite; None
            if the median is infinite.
        times: how many times sooner than the baseline, by medians; None if one is infinite.
        versions, best: the versions until then and the best score, as medians over seeds.
    """

    variant: str
    settings: str
    seconds: tuple[float, ...]
    median: float | None
    times: float | None
    versions: float
    best: float


class StudyResults:
    """Collects the results of a study, in any order."""

    def __init__(self, study: StudySection) -> None:
        self.study = study
        self._judged: dict[str, dict[int, tuple[Trial, Outcome]]] = {}
        self.count, self.cpu = 0, 0.0

    def take(self, trial: Trial, result: Outcome) -> str:
        self.count += 1
        self.cpu += result.cpu
        if trial.seed != self.study.tuning:
            self._judged.setdefault(trial.variant, {})[trial.seed] = trial, result
        goal = f"{self.study.measure} {self.study.target:g}"
        if result.reached is None:
            return f"no {goal} within {trial.limit:g} s, at best {result.best:.3f}"
        return f"{goal} after {result.reached:g} s, {result.versions} versions"

    def rows(self) -> tuple[Row, ...]:
        base = _median_seconds(self._outcomes(self.study.baseline))
        return tuple(self._row(variant.name, base) for variant in self.study.variant)

    def curves(self) -> dict[str, list[list[tuple[float, float]]]]:
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
        trial = next(iter(self._judged[name].values()))[0]
        outcomes = self._outcomes(name)
        median = _median_seconds(outcomes)
        return Row(
            variant=name,
            settings=settings(self.study, trial),
            seconds=tuple(sorted(o.reached for o in outcomes if o.reached is not None)),
            median=None if median == math.inf else median,
            times=None if math.inf in (median, base) else base / median,
            versions=statistics.median(outcome.versions for outcome in outcomes),
            best=statistics.median(outcome.best for outcome in outcomes),
        )


def settings(study: StudySection, trial: Trial) -> str:
    """The settings that distinguish a trial from others of its variant."""
    every = [rule.model_dump() for rule in variant_of(study, trial).rules]
    rule, words = rule_of(study, trial), list[str]()
    if rule is not None:
        own = rule.model_dump()
        keys = [key for key in own if any(rule.get(key) != own[key] for rule in every)]
        words += [f"{key} {own[key]}" for key in keys]
    if trial.deadline is not None:
        words.append(f"deadline {trial.deadline:g}")
    if trial.rate is not None:
        words.append(f"rate {trial.rate:g}")
    return ", ".join(words)


def _median_seconds(outcomes: Sequence[Outcome]) -> float:
    """The median of seconds to the target; infinite if a middle one is."""
    times = [math.inf if o.reached is None else o.reached for o in outcomes]
    return statistics.median(times)


# --- tables -----------------------------------------------------------------------


def _row_cells(study: StudySection, row: Row) -> tuple[str, ...]:
    spread = f"{row.seconds[0]:g} - {row.seconds[-1]:g}" if row.seconds else ""
    return (
        row.variant,
        row.settings,
        f"not in {study.seconds:g}" if row.median is None else f"{row.median:g}",
        spread,
        f"{len(row.seconds)} of {len(study.seeds)}",
        "" if row.times is None else f"{row.times:.2f}",
        f"{row.versions:g}",
    )


HEADS = ("rule", "tuned", "median", "least - most", "seeds", "sooner", "versions")


def _title(study: StudySection) -> str:
    goal = f"virtual seconds to {study.measure} {study.target:g}"
    return f"{goal}; times sooner than {study.baseline}"


def markdown(study: StudySection, rows: Sequence[Row]) -> str:
    lines = [HEADS, ("---",) * len(HEADS), *(_row_cells(study, row) for row in rows)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{_title(study)}\n\n{table}"


# --- the study --------------------------------------------------------------------

Course = Generator[Trial, Outcome, None]
Take = Callable[[Trial, Outcome], None]


@terminable(Terminated)
def study(scenario: Path, out: Path | None = None, workers: int = 2) -> tuple[Row, ...]:
    """Plays all trials of a scenario's study; writes one table and one picture to `out`."""
    console = Console()
    read = load_scenario(scenario)
    own = section_of(read)
    with naming(scenario, ConfigError):
        _refuse_unsound(read, own)
    folder = out if out is not None else Path("runs") / f"{read.section.name}-study"
    new_folder(folder)
    results = StudyResults(own)
    courses = [_plan_trials(own, each) for each in own.variant]
    workers = min(workers, len(courses))
    total = sum(_count_trials(own, each) for each in own.variant)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    def take(trial: Trial, outcome: Outcome) -> None:
        text = f"{results.take(trial, outcome)} ({outcome.cpu:.0f} s of CPU)"
        say(f"[{results.count}/{total}] {trial.title}: {text}")

    say(
        f"plays {counted(total, 'trial')} at most, {workers} at a time; up to {own.seconds:g} "
        "virtual seconds each"
    )
    _play_all(scenario, read, courses, workers, warm_once(console.print), take)
    rows = results.rows()
    (folder / "table.md").write_text(markdown(own, rows))
    draw_study(results.curves(), read.section.name, own.measure, own.target, folder)
    console.print(WordTable(_title(own), HEADS, [_row_cells(own, row) for row in rows]))
    console.print(f"{results.cpu:.0f} s of CPU; report: {folder}", soft_wrap=True)
    if why := why_undrawable():
        say(why)
    return rows


def _refuse_unsound(scenario: Scenario, own: StudySection) -> None:
    names = [variant.name for variant in own.variant]
    if len(set(names)) < len(names):
        raise ConfigError("study.variant: two have the same name")
    if own.baseline not in names:
        raise ConfigError(
            f"study.baseline: no variant {own.baseline!r}; {suggest(own.baseline, names)}"
        )
    if twice := [seed for seed, count in Counter(own.seeds).items() if count > 1]:
        raise ConfigError(f"study.seeds: {twice[0]} is there twice, and would count twice")
    if own.tuning in own.seeds:
        raise ConfigError(f"study.tuning: seed {own.tuning} would be tuned on and judged on")
    for variant in own.variant:
        for trial in _candidates(variant):
            with naming(f"study.variant {trial.name}"):
                plan = make_plan(scenario, trial)
            refuse_few(f"study.variant {variant.name}", plan, scenario.section.clients, "clients")


def _count_trials(own: StudySection, variant: VariantSection) -> int:
    tried = list(_candidates(variant))
    return (len(tried) > 1) * len(tried) + len(own.seeds)


def _plan_trials(own: StudySection, variant: VariantSection) -> Course:
    """Yields the trials of a variant; the caller sends each result before the next trial."""
    limit, best = own.seconds, (math.inf, math.inf)
    chosen, *others = candidates = tuple(_candidates(variant))
    for candidate in candidates if others else ():
        outcome = yield replace(candidate, seed=own.tuning, limit=limit)
        reached = math.inf if outcome.reached is None else outcome.reached
        if (reached, -outcome.best) < best:
            chosen, best = candidate, (reached, -outcome.best)
        limit = min(limit, reached)
    for seed in own.seeds:
        yield replace(chosen, seed=seed, limit=own.seconds)


def _candidates(variant: VariantSection) -> Iterator[Trial]:
    """Yields trials of all combinations of a variant's settings, without seeds."""
    for rule in range(len(variant.rules)) or (None,):
        for deadline in variant.deadlines or (None,):
            for rate in variant.rates or (None,):
                yield Trial(variant.name, rule, deadline, rate)


def _play_all(
    path: Path, read: Scenario, courses: Sequence[Course], workers: int, kernels: Path, take: Take
) -> None:
    """Plays all courses, one trial of each at a time, and each trial as a process.

    `kernels` is the folder of compiled kernels.
    """
    ready: list[tuple[Course, Outcome | None]] = [(each, None) for each in courses]
    running = dict[str, tuple[Course, Trial]]()
    environment = {**os.environ, "SECUREPS_KERNELS": str(kernels)}
    ahead = ("secureps.run.simulate.simulation", *imports_of_script(read.plan, read.source))
    with (
        TemporaryDirectory(prefix="secureps-") as folder,
        Launcher(ahead, environment) as launcher,
        Supervisor(Path(folder), restarts=0) as supervisor,
    ):
        while ready or running:
            while ready and len(running) < workers:
                course, last = ready.pop(0)
                with suppress(StopIteration):
                    trial = next(course) if last is None else course.send(last)
                    result, text = Path(folder) / f"{trial.title}.json", json.dumps(asdict(trial))
                    words = (*MODULE, __name__, str(path), text, str(result))
                    program = Program(trial.title, words, environment, True, launcher)
                    supervisor.start(program)
                    running[trial.title] = course, trial
            time.sleep(_TICK)
            for ended in supervisor.poll():
                course, trial = running.pop(ended.name)
                outcome = _read_outcome(trial, Path(folder) / f"{trial.title}.json")
                take(trial, outcome)
                ready.append((course, outcome))


def _read_outcome(trial: Trial, path: Path) -> Outcome:
    """Reads what a trial's process has written; raises the error that it has written instead."""
    made = json.loads(path.read_text())
    try:
        refuse_failure(made)
    except (RuleFailed, TooFew) as error:
        raise type(error)(f"variant {trial.variant}: {error}") from None
    return Outcome(made["reached"], tuple(Point(*each) for each in made["points"]), made["cpu"])


def main(path: str, trial: str, result: str) -> None:
    """Plays one trial, and writes its outcome into a file."""
    try:
        gc.set_threshold(*GC_THRESHOLDS)
        with terminable(Terminated):
            outcome = play(Path(path), Trial(**json.loads(trial)))
            points = [astuple(point) for point in outcome.points]
            made = {"reached": outcome.reached, "points": points, "cpu": outcome.cpu}
    except Terminated as ended:
        os._exit(int(ended.args[0]))
    except Exception as error:
        made = as_failure(error)
    Path(result).write_text(json.dumps(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
