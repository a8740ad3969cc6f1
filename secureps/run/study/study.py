"""`secureps study`: compares rules by the virtual time to a target, over several seeds.

    OUT/study.json     the study: only the same study goes on in this folder
    OUT/trials/        the result of each trial, written when it ends
    OUT/table.md       a row per rule
    OUT/study.png      scores over virtual time

Tuning is the same for every rule: all its candidates under one seed, one after another, each
given up once it is later than the best before it; then the soonest under seeds that tuning has
not seen.

Workers are processes that play the trials; none outlives the process that began it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

from rich.console import Console

from secureps.compiled import keep_in
from secureps.config.scenario import StudySection, VariantSection
from secureps.errors import ConfigError, RuleFailed, TooFew, naming
from secureps.run.processes.signals import Terminated, terminable
from secureps.run.report.plots import draw_study, undrawable
from secureps.run.run_lock import STUDY, new_folder
from secureps.run.script.scoring import Look
from secureps.run.simulate.scenario_file import Scenario, load_scenario
from secureps.run.study.trial import (
    ENDLESS,
    Candidate,
    Comparison,
    Likeness,
    Outcome,
    Point,
    Row,
    StudyResults,
    Trial,
    altered,
    charged,
    compared,
    markdown,
    play,
    section_of,
    table,
)
from secureps.run.warm import warm_once
from secureps.scenario.links import sealed_bytes
from secureps.store.atomic_file import replace_text
from secureps.wording import counted, meant

Job = Trial | Comparison
Result = Outcome | Likeness
Course = Generator[Job, Result, None]


@terminable(Terminated)
def study(path: Path, out: Path | None, workers: int, console: Console) -> tuple[Row, ...]:
    """Plays the trials that are not played yet, writes table and picture, and returns the rows.

    Args:
        path: a scenario with a study.
        out: the study's folder (default: runs/NAME-study); one of the same study goes on.
        workers: trials that are played at once.

    Raises:
        ConfigError, PlanRefused: the study is not right, the folder has another one, or a trial's
            process was killed.
        RuleFailed, TooFew: a trial could not be played to its end.
        KeyboardInterrupt: after Ctrl-C and SIGTERM; the trials that had ended are kept.
    """
    scenario = load_scenario(path)
    own = section_of(scenario)
    with naming(path, ConfigError):
        _refuse_unsound(scenario, own)
        _refuse_other_blocks(scenario, own)
    _tell_founding(scenario, own, console)
    folder = out if out is not None else Path("runs") / f"{scenario.section.name}-study"
    _claim(folder, scenario)
    results = StudyResults(own)
    courses = {each.name: _course(own, each, compared(scenario, each)) for each in own.variant}
    total = sum(_jobs(scenario, own, each) for each in own.variant)
    trials = _Workers(path, folder, results, total, console)
    trials.run(courses, workers, warm_once(console.print))
    rows = results.rows()
    (folder / "table.md").write_text(markdown(own, rows))
    draw_study(results.curves(), scenario.section.name, own.measure, own.target, folder)
    console.print(table(own, rows))
    console.print(f"{results.cpu:.0f} s of CPU; report: {folder}", soft_wrap=True)
    if why := undrawable():
        console.print(why, soft_wrap=True, highlight=False, markup=False)
    return rows


def _refuse_unsound(scenario: Scenario, own: StudySection) -> None:
    names = [variant.name for variant in own.variant]
    if len(set(names)) < len(names):
        raise ConfigError("study.variant: two have the same name")
    if own.baseline not in names:
        raise ConfigError(
            f"study.baseline: no variant {own.baseline!r}; {meant(own.baseline, names)}"
        )
    if twice := [seed for seed, count in Counter(own.seeds).items() if count > 1]:
        raise ConfigError(f"study.seeds: {twice[0]} is there twice, and would count twice")
    if own.tuning in own.seeds:
        raise ConfigError(f"study.tuning: seed {own.tuning} would be tuned on and judged on")
    for variant in own.variant:
        for candidate in _candidates(variant):
            with naming(f"study.variant {candidate.name}"):
                sealed = compared(scenario, variant) or None
                plan = altered(scenario, candidate, 1, sealed)
            start = max(plan.bounds(group).start for group in plan.groups)
            if scenario.section.clients < start:
                raise ConfigError(
                    f"study.variant {variant.name}: {scenario.section.clients} clients play, the "
                    f"rule waits for {start}"
                )


def _refuse_other_blocks(scenario: Scenario, own: StudySection) -> None:
    """Refuses (ConfigError) what would end each trial; where nothing might, no script is run."""
    first = [next(_candidates(variant)) for variant in own.variant]
    asked = {each: charged(scenario, each, ENDLESS) for each in first}
    plans = {each: plan for each, plan in asked.items() if plan is not None}
    if not plans:
        return
    script = scenario.script()
    with naming("settings", ConfigError, script.path):
        schema = Look.at(script.make(scenario.settings(0))).schema
    for each, plan in plans.items():
        with naming(f"study.variant {each.variant}", ConfigError):
            clear = altered(scenario, each, ENDLESS)
            sealed_bytes(plan, plan.layout(schema), clear.layout(schema))


def _tell_founding(scenario: Scenario, own: StudySection, console: Console) -> None:
    """Prints once what the ServerApp settles (or ConfigError, PlanRefused)."""
    told = dict[str, None]()
    for plan in scenario.plans.values():
        founding = scenario.founding(plan, own.tuning)
        told |= dict.fromkeys(() if founding is None else founding.notes)
    for note in told:
        console.print(note, soft_wrap=True, highlight=False, markup=False)


def _jobs(scenario: Scenario, own: StudySection, variant: VariantSection) -> int:
    tried = list(_candidates(variant))
    return (len(tried) > 1) * len(tried) + len(own.seeds) + compared(scenario, variant)


def _course(own: StudySection, variant: VariantSection, sealed: bool) -> Course:
    """Yields the jobs of a variant, one after another; each is sent the last one's result."""
    limit, best = own.seconds, (math.inf, math.inf)
    chosen, *others = candidates = tuple(_candidates(variant))
    for candidate in candidates if others else ():
        outcome = yield Trial(candidate, own.tuning, limit)
        assert isinstance(outcome, Outcome)
        reached = math.inf if outcome.reached is None else outcome.reached
        if (reached, -outcome.best) < best:
            chosen, best = candidate, (reached, -outcome.best)
        limit = min(limit, reached)
    for seed in own.seeds:
        yield Trial(chosen, seed, own.seconds)
    if sealed:
        yield Comparison(chosen, own.tuning)


def _candidates(variant: VariantSection) -> Iterator[Candidate]:
    for rule in range(len(variant.rules)) or (None,):
        for deadline in variant.deadlines or (None,):
            for rate in variant.rates or (None,):
                yield Candidate(variant.name, rule, deadline, rate)


class _Workers:
    """Hands jobs to workers, and keeps and tells their results."""

    def __init__(
        self, path: Path, folder: Path, results: StudyResults, total: int, console: Console
    ) -> None:
        self._path = path
        self._trials = folder / "trials"
        self._results = results
        self._total = total
        self._console = console
        self._count = 0

    def run(self, courses: Mapping[str, Course], workers: int, kernels: Path) -> None:
        """Runs all courses, one job of each at a time; workers find kernels in `kernels`."""
        context = get_context("spawn")  # a fork would copy torch's threads
        workers = min(workers, len(courses))
        self._say(
            f"plays {counted(self._total, 'trial')} at most, {workers} at a time; up to "
            f"{self._results.study.seconds:g} virtual seconds each"
        )
        ready: list[tuple[Course, Result | None]] = [(each, None) for each in courses.values()]
        running = dict[Future[Result], tuple[Course, Job]]()
        try:
            with (
                ProcessPoolExecutor(workers, context, begin, (kernels,)) as pool,
                none_left_over(),
            ):
                while ready or running:
                    while ready and len(running) < workers:
                        course, last = ready.pop(0)
                        job = self._next(course, last)
                        if job is not None:
                            running[pool.submit(play_to_end, self._path, job)] = course, job
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        course, job = running.pop(future)
                        ready.append((course, self._keep(job, _result(job, future))))
        except BrokenProcessPool as error:
            raise ConfigError(
                "a process that played a trial was killed, or had no memory left: what has ended "
                "is kept, and the same command goes on; --workers 1 needs less"
            ) from error
        except (KeyboardInterrupt, RuleFailed, TooFew):
            self._say("stopped; the same command goes on with it")
            raise

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _next(self, course: Course, last: Result | None) -> Job | None:
        """The next job that no earlier play of the study has done; None at the end."""
        try:
            job = next(course) if last is None else course.send(last)
            while (known := _read(self._trials / f"{job.name}.json", job)) is not None:
                self._take(job, known, "known")
                job = course.send(known)
        except StopIteration:
            return None
        return job

    def _keep(self, job: Job, result: Result) -> Result:
        _write(self._trials / f"{job.name}.json", asdict(result))
        self._take(job, result, f"{result.cpu:.0f} s of CPU")
        return result

    def _take(self, job: Job, result: Result, note: str) -> None:
        self._count += 1
        text = self._results.take(job, result)
        self._say(f"[{self._count}/{self._total}] {job.name}: {text} ({note})")


def _result(job: Job, future: Future[Result]) -> Result:
    try:
        return future.result()
    except (RuleFailed, TooFew) as error:
        raise type(error)(f"variant {job.candidate.variant}: {error}") from None


# --- the folder -------------------------------------------------------------------


def _claim(folder: Path, scenario: Scenario) -> None:
    settings = {
        "scenario": scenario.section.model_dump(mode="json"),
        "plans": {
            name: plan.section.model_dump(mode="json", exclude={"federation"})
            for name, plan in scenario.plans.items()
        },
    }
    path = folder / STUDY
    if not path.exists():
        new_folder(folder)
        _write(path, settings)
    else:
        with _readable(path, "remove the folder or give another --out"):
            if json.loads(path.read_text()) != settings:
                raise ConfigError(f"{folder} holds another study; remove it or give another --out")
    (folder / "trials").mkdir(exist_ok=True)


def _write(path: Path, record: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(record, indent=1) + "\n")


def _read(path: Path, job: Job) -> Result | None:
    if not path.exists():
        return None
    with _readable(path, "remove it, and that trial is played again"):
        record = json.loads(path.read_text())
        if isinstance(job, Comparison):
            return Likeness(**record)
        points = tuple(Point(**point) for point in record.pop("points"))
        return Outcome(points=points, **record)


@contextmanager
def _readable(path: Path, advice: str) -> Iterator[None]:
    """Turns errors of reading a study's file into a ConfigError with advice."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; {advice}") from None


GRACE = 5.0
"""Seconds for a worker to remove its trial's temporary files."""


def begin(kernels: Path) -> None:
    """Sets a worker up to ignore Ctrl-C, after which the main process ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_in(kernels)


def play_to_end(path: Path, job: Job) -> Result:
    """Plays a job in a worker; SIGTERM ends the worker."""
    try:
        with terminable(Terminated):
            return play(path, job)
    except Terminated as ended:  # else the pool would send it as a result, and go on
        os._exit(128 + int(ended.args[0]))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


@contextmanager
def none_left_over() -> Iterator[None]:
    """Ends all workers where a signal or an error ends the block, and with them what they play."""
    try:
        yield
    except BaseException:
        workers = active_children()
        for worker in workers:
            worker.terminate()
        until = time.monotonic() + GRACE
        for worker in workers:
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                worker.kill()
        raise
