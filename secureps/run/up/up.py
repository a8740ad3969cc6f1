"""`secureps up` and `resume`: play a whole federation on this machine, each party as a process.

`up` makes keys and configuration, starts coordinator, shards, key holders and clients, shows their
progress, and compares the result with training alone and centrally. `resume` continues a run that
was stopped.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import chdir, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from secureps.client.script import refuse_privacy
from secureps.config.plan import FederationSection
from secureps.config.sections import refuse_misplaced
from secureps.crypto.sampling import SecretSeed, UnsafeSeed
from secureps.crypto.suite import refuse_unsealable
from secureps.errors import (
    ConfigError,
    DamagedStore,
    Diverged,
    OperatorError,
    PlanRefused,
    SecurepsError,
    from_wire,
    naming,
)
from secureps.files.objects import ObjectStore
from secureps.messages.requests import UP, CohortSteps
from secureps.policy.plan import Plan, load_plan
from secureps.policy.spending import adjacency, refuse_unaffordable
from secureps.policy.tensor_kinds import refuse_statistics, refuse_trained, remarks
from secureps.run.check import refuse_few
from secureps.run.export import Model, export
from secureps.run.initial_schema import settle_schema
from secureps.run.processes.signals import terminable
from secureps.run.processes.supervisor import Supervisor
from secureps.run.report.plots import CURVES, Sheet, draw, draw_curves, why_undrawable
from secureps.run.report.status_tables import Summary, Total, summary_tables
from secureps.run.report.terminal import Progress
from secureps.run.report.version_metrics import (
    DOWN,
    SECONDS,
    Extras,
    Heading,
    Line,
    Metrics,
    Sinks,
    open_sinks,
)
from secureps.run.script.process import ScriptProcess, script_process
from secureps.run.script.scoring import Baselines
from secureps.run.server_app import run_server_app
from secureps.run.up.folder import (
    METRICS,
    Cast,
    Origin,
    RunFolder,
    claim_folder,
    make_folder,
)
from secureps.run.up.programs import NOTHING_ELSE, Order, Programs, open_spawner
from secureps.run.up.watch import Outcome, Watch, read_so_far, read_version_0
from secureps.run.warm import warm_once
from secureps.service.pinning import refuse_pin
from secureps.store.atomic_file import replace_text
from secureps.store.backup import JOURNAL
from secureps.store.journal import last_row
from secureps.store.journal_rows import NO_SPACE
from secureps.wording import one_line


def up(order: Order, console: Console) -> Path:
    """Plays a plan's whole federation on this machine; returns the run's folder.

    Raises ConfigError or PlanRefused for a plan that cannot be played, OperatorError if a process
    died too often, or another error that ended the run. No process is left in any case.
    """
    plan, federation = _read_plan(order.plan, order.plan.parent)
    refuse_misplaced(federation.settings, order.plan)
    if order.copies is not None:
        with naming("--copies", ConfigError):
            ObjectStore(order.copies)  # refuse a bad URL now rather than in every server
    refuse_pin(order.pin)
    cast = Cast.of(plan, federation.clients)
    now = time.strftime("%Y%m%d-%H%M%S")
    root = order.out if order.out is not None else Path("runs") / f"{plan.section.name}-{now}"
    heading = _make_heading(order, plan, root)
    order.extras.require(heading)
    refuse_unsealable(plan.opening)
    script, settings = (order.plan.parent / federation.script).resolve(), federation.settings
    unsafe = order.unsafe_seed
    seed = SecretSeed.from_os() if unsafe is None else UnsafeSeed(unsafe)
    with open_spawner(
        plan, script, order.processes
    ) as spawns:  # it imports while the run is founded
        founding = run_server_app(plan, script, settings, federation.clients, seed)
        # compiling takes seconds that no deadline of the run should count
        warm_once(lambda text: console.print(Text(text), soft_wrap=True))
        folder = make_folder(root, order.plan, plan, cast)
        if founding is not None:
            founding.tell(console)
            plan = founding.write(folder.root)
        began, own = (Path.cwd(), unsafe, time.time()), (order.copies, order.standby, order.pin)
        with naming_full_disk(root, "begin the run anew in another folder"):
            Origin(order.plan.resolve(), *began, *own).write(folder)
        with claim_folder(folder.root), _advising_resume(folder, console):
            _play(Programs(order, folder, plan, federation, cast, spawns), heading, console)
    return folder.root


def resume(
    root: Path, environment: Mapping[str, str], console: Console, extras: Extras = NOTHING_ELSE
) -> Path:
    """Continues a stopped run of `up` from its parties' journals; returns its folder.

    Servers keep their ports, by which other parties know them.

    Args:
        extras: further sinks, which get all metrics of the run, also earlier ones.

    Raises:
        ConfigError: the folder has no run, or one of another format, or files are missing.
        OperatorError: the run is being played now, or a process died too often.
        SecurepsError: another error ended the run. No process is left in any case.
    """
    folder = RunFolder(root.resolve())
    origin = Origin.read(folder)
    if folder.summary.exists():
        finished = json.loads(folder.summary.read_text())["finished"]
        text = f"this run is over: {finished}; its model is {folder.model}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        return folder.root
    for journal in sorted(folder.root.glob(f"state/*/{JOURNAL}")):
        with suppress(DamagedStore):  # its party reports the damage, with what to do
            last_row(journal)  # refuses another format before anything starts
    if not origin.directory.is_dir():
        raise ConfigError(
            f"{root}: the run began in {origin.directory}, which is gone: bring that folder back, "
            "or begin a new run"
        )
    plan, federation = _read_plan(folder.plan, origin.plan.parent)
    own = (origin.unsafe_seed, environment, extras.absolute(), origin.copies)
    order = Order(origin.plan, folder.root, *own, standby=origin.standby, pin=origin.pin)
    # Sinks of the stopped play stay as they are; this play gets new ones, with all versions.
    again = Path(f"{folder.root.name}-resumed-{time.strftime('%Y%m%d-%H%M%S')}")
    heading = _make_heading(order, plan, again)
    order.extras.require(heading)
    refuse_unsealable(plan.opening)
    cast = Cast.of(plan, federation.clients, folder.kit)
    script = origin.plan.parent / federation.script
    with (
        open_spawner(plan, script, order.processes) as spawns,
        chdir(origin.directory),
        claim_folder(folder.root),
        _advising_resume(folder, console),
    ):
        # compiling takes seconds that no deadline of the run should count
        warm_once(lambda text: console.print(Text(text), soft_wrap=True))
        _play(Programs(order, folder, plan, federation, cast, spawns), heading, console)
    return folder.root


@contextmanager
def _advising_resume(folder: RunFolder, console: Console) -> Iterator[None]:
    command = f"secureps resume {folder.root}"
    with noting_failure(folder), naming_full_disk(folder.root, f"go on: {command}"):
        try:
            yield
        except PlanRefused:  # resuming cannot help: the run keeps its copy of the plan
            raise
        except SecurepsError as error:
            text = f"the run failed; once that is mended, this goes on: {command}"
            if isinstance(error, Diverged):
                text += "; with another learning rate in the plan it is another run: secureps up"
            console.print(text, soft_wrap=True, highlight=False, markup=False)
            raise


def _play(programs: Programs, heading: Heading, console: Console) -> None:
    folder, plan, extras = programs.folder, programs.plan, programs.order.extras
    before = read_so_far(folder)
    began = time.monotonic() - before.seconds

    def warn(text: str) -> None:
        console.print(Text(text, "yellow"), soft_wrap=True)

    def tell_how_to_go_on() -> None:
        words = ["secureps", "resume", str(folder.root), *extras.arguments]
        console.print(Text(f"stopped; this goes on with it: {shlex.join(words)}"), soft_wrap=True)

    opened = open_sinks(heading, folder.report / METRICS, extras)
    with (
        terminable(),
        telling_of_stop(tell_how_to_go_on),
        programs.order.beside(folder.root),
        Sinks(opened, warn) as sinks,
    ):
        metrics = Metrics(sinks.add, programs.unsafe, before=before)
        outcome, baselines = _federate(programs, metrics, before.seconds, console)
        summary = _make_summary(plan, outcome, baselines, time.monotonic() - began, programs.unsafe)
        sinks.close(summary.record())
    for part in summary_tables(summary):
        console.print(part)
    for cut in outcome.cuts:
        console.print(Text(f"note: {cut}", "yellow"), soft_wrap=True)
    if not summary.failure:
        replace_text(folder.summary, json.dumps(summary.record(), indent=1) + "\n")
    why_no_curves = why_undrawable()
    if not why_no_curves:
        sheet = _make_sheet(plan, baselines, programs.unsafe)
        _warn_if_undrawn(partial(draw_curves, metrics.lines, sheet, folder.report / CURVES), warn)
    ends = {
        "model": folder.model,
        "best": folder.best,
        "report": folder.report,
        "curves": folder.report / CURVES,
    }
    for label, path in ends.items():
        if path.exists():
            console.print(f"{label}: {path}", soft_wrap=True, highlight=False, markup=False)
    if why_no_curves:
        console.print(why_no_curves, soft_wrap=True, highlight=False, markup=False)
    if summary.failure:
        raise from_wire(summary.failure, summary.finished, None)


def _federate(
    programs: Programs, metrics: Metrics, before: float, console: Console
) -> tuple[Outcome, Baselines]:
    """Runs the federation, and trains the baselines; `before`: seconds of earlier plays."""
    began = time.monotonic() - before
    plan, folder, unsafe = programs.plan, programs.folder, programs.unsafe
    with (
        Progress(console, plan.section.name, unsafe) as progress,
        script_process(programs.assignment, folder.logs, programs.spawner) as script,
    ):
        progress.say(f"the run's folder: {folder.root}")
        with (
            programs.pair() as pair,
            Supervisor(folder.logs, spawner=programs.spawner) as supervisor,
            telling_of_stop(lambda: progress.say("stopping ...")),
        ):
            address = programs.start(supervisor, progress, pair)
            progress.show_activity(f"looks at {programs.script.name}, while they start")
            _examine_model(programs, script, progress)
            # the run may have made progress by the time its script is imported
            so_far = time.monotonic() - began
            own = (programs, address, so_far, script, supervisor, progress, metrics)
            with Watch(*own) as watch:
                outcome = watch.until_over()
            drawing = _begin_drawing(metrics.lines, _make_sheet(plan, None, unsafe), folder.report)
        outcome = _write_models(outcome, plan, script, folder, progress)
        versions = max(0, *outcome.versions.values())
        baselines = Baselines({}, None, ("nothing is compared: federation.baselines = false",))
        if not plan.has_model:  # totals have no quality to compare
            baselines = Baselines({}, None, ())
        elif programs.federation.baselines:
            baselines = script.baselines(versions, read_version_0(folder), progress.show_activity)
        _warn_if_undrawn(drawing.result, lambda text: progress.say(text, "yellow"))
        notes = [*outcome.notes]
        lost = sum(_count_updates(outcome).values()) - outcome.totals.updates().total()
        if lost:
            notes.append(f"costs leave out {lost} updates, whose figures did not arrive")
        return outcome, replace(baselines, notes=(*notes, *baselines.notes))


def _begin_drawing(lines: Sequence[Line], sheet: Sheet, report: Path) -> Future[None]:
    """Draws without baselines, so that a run has curves even if it is interrupted in them."""
    pool = ThreadPoolExecutor(1)
    drawing = pool.submit(draw, lines, sheet, report)
    pool.shutdown(wait=False)
    return drawing


def _warn_if_undrawn(drawing: Callable[[], object], warn: Callable[[str], None]) -> None:
    """Draws, and warns if the disk refuses pictures, which must not end the run."""
    try:
        drawing()
    except OSError as error:
        warn(f"no curves were drawn: {error}")


def _examine_model(programs: Programs, script: ScriptProcess, progress: Progress) -> None:
    path = programs.order.plan
    with naming(path), naming(path, ConfigError, programs.script.absolute()):
        made, kinds = script.look()
        schema = settle_schema(programs.plan, made)
        refuse_statistics(programs.plan, schema, kinds)
        refuse_trained(programs.plan, schema, kinds)
        for remark in remarks(programs.plan, schema, kinds):
            progress.say(remark, "yellow")
    script.prepare()


def _read_plan(path: Path, base: Path) -> tuple[Plan, FederationSection]:
    plan = load_plan(path, base)
    federation = plan.section.federation
    if federation is None:
        raise ConfigError(
            f"{path}: federation: `up` needs this section, with a script and a number of clients; "
            "a plan without it is played by a scenario: `secureps simulate`"
        )
    refuse_few(path, plan, federation)
    script = base / federation.script
    if not script.exists():
        raise ConfigError(f"{path}: federation.script: no file {script}")
    refuse_privacy(script, plan)
    with naming(path):
        refuse_unaffordable(plan)
        plan.make_rules()
    return plan, federation


def _write_models(
    outcome: Outcome, plan: Plan, judge: ScriptProcess, folder: RunFolder, progress: Progress
) -> Outcome:
    """Writes the last and the best model; returns the outcome, completed by the last one."""
    if not any(outcome.versions.values()):
        return outcome
    try:
        model = export(folder.root, folder.model)
    except SecurepsError as error:
        progress.say(f"no model was written: {error}", "yellow")
        return outcome
    for complaint in model.complaints:
        progress.say(f"passed over a damaged checkpoint: {complaint}", "yellow")
    if outcome.evaluation is not None and outcome.evaluation.best:
        try:
            export(folder.root, folder.best, the_best=True)
        except SecurepsError as error:
            progress.say(f"the best version was not written: {error}", "yellow")
    score = judge.score(model.tensors) if outcome.score is None else None
    return replace(outcome.on_disk(model, score), sums=_newest_totals(plan, model, outcome.steps))


def _newest_totals(plan: Plan, model: Model, steps: Iterable[CohortSteps]) -> dict[str, Total]:
    members = {(s.group, s.version): s.members for s in steps if s.committed is not None}
    return {
        spec.name: Total.of(model.tensors[spec.name], members.get((group.name, version)))
        for group in model.layout.groups
        if plan.is_sum(group.name) and (version := model.versions[group.name])  # 0 is zeros
        for spec in group.tensors
    }


def _make_heading(order: Order, plan: Plan, root: Path) -> Heading:
    settings = plan.section.model_dump(mode="json")
    unsafe = order.unsafe_seed is not None
    return Heading(plan.section.name, root.resolve().name, settings, len(plan.groups), unsafe)


def _make_sheet(plan: Plan, baselines: Baselines | None, unsafe: bool) -> Sheet:
    privacy = plan.section.privacy
    sheet = Sheet(plan.section.name, "time", unsafe, plan.groups)
    if privacy is not None:
        sheet = replace(sheet, budget=privacy.budget, delta=privacy.delta)
        sheet = replace(sheet, adjacency=adjacency(plan))
    if baselines is None or baselines.central is None:
        return sheet
    scores = {"all data at one party": baselines.central}
    scores |= {f"one holder alone, {which}": score for which, score in baselines.outer.items()}
    references = {name: score.value for name, score in scores.items()}
    return replace(sheet, measure=baselines.central.measure, references=references)


def _make_summary(
    plan: Plan, outcome: Outcome, baselines: Baselines, wall_seconds: float, unsafe: bool
) -> Summary:
    totals, privacy = outcome.totals, plan.section.privacy
    return Summary(
        name=plan.section.name,
        finished=outcome.finished,
        wall_seconds=wall_seconds,
        versions=outcome.versions,
        score=outcome.score,
        baselines=baselines,
        delta=privacy.delta if privacy is not None else None,
        adjacency=adjacency(plan),
        budget=privacy.budget if privacy is not None else None,
        members=outcome.members,
        bytes_up=totals.total(UP),
        bytes_down=totals.total(DOWN),
        ratio_up=totals.ratio(UP, outcome.sizes),
        ratio_down=totals.ratio(DOWN, outcome.sizes),
        seconds={stage: totals.total(f"{stage}_seconds") for stage in SECONDS},
        updates=_count_updates(outcome),
        counted=totals.updates().total(),
        unsafe=unsafe,
        evaluation=outcome.evaluation,
        failure=outcome.failure,
        totals=outcome.sums,
    )


def _count_updates(outcome: Outcome) -> dict[str, int]:
    arrived = outcome.totals.updates_by_party()
    return {m.name: max(arrived[m.name], m.submissions) for m in outcome.members}


@contextmanager
def noting_failure(folder: RunFolder) -> Iterator[None]:
    """Writes down the error of a failed play, for `secureps runs` and `secureps log`."""
    folder.failed.unlink(missing_ok=True)
    try:
        yield
    except SecurepsError as error:
        with suppress(OSError):  # the disk may be what failed
            replace_text(folder.failed, one_line(error))
            folder.logs.mkdir(exist_ok=True)
            with (folder.logs / "up.log").open("a") as log:
                stamp = logging.Formatter().formatTime(logging.makeLogRecord({}))
                log.write(f"{stamp} up: failed: {one_line(error)} ({error.fault} fault)\n")
        raise


@contextmanager
def naming_full_disk(root: Path, then: str) -> Iterator[None]:
    """Turns the error of a full disk into one that says what to do `then`."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        where = error.filename or root
        raise OperatorError(
            f"{where}: {error.strerror}: make room on the disk, and {then}"
        ) from None


@contextmanager
def telling_of_stop(tell: Callable[[], None]) -> Iterator[None]:
    """Calls `tell` when Ctrl-C or SIGTERM ends the block."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        tell()
        raise
