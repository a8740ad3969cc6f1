"""`secureps up` and `resume` play a whole federation on this machine, each party as a process.

Theory of operation. The parties are those of `secureps serve` and `join`, and talk by gRPC; this
process only founds, starts, watches and reports. `folder` lays out what lies on the disk,
`programs` says which processes start and in which order, `watch` reads status and logs, and `runs`
lists and stops runs. `run.processes.supervisor` starts a dead process again, and
`run.script.process` asks the data holders' script for the model, scores and baselines.

What happens to one run:

    read      `_read_plan` refuses what cannot be played
    founded   `make_folder` issues keys, and copies the plan; `Origin` notes the options
    claimed   `claim_folder` locks the folder
    started   `Programs.start` starts the coordinator, then shards, key holders and clients
    examined  `_examine_model` compares the script's model with the plan
    watched   `Watch.until_over` follows the run until it has finished
    exported  `_write_models` writes the last and the best model
    compared  `ScriptProcess.baselines` trains alone and centrally; `_play` prints tables and curves

What survives a kill. Parties continue from their journals. A party that dies too often ends the
run, and `resume` continues it in the same folder. If this process is killed, `run.processes.reaper`
ends the others. RUN/report/sofar.json has times and curves of earlier plays. Once the run is over,
RUN/report/summary.json is written, and `resume` only says so.

Guards. `claim_folder` stops a second play, which would corrupt the journals. `resume` refuses
another journal format before anything starts. After a failure or a full disk the user reads how to
continue (`_advising_resume`, `naming_full_disk`).

Look first at `programs` for a new process or option, and at `run.report` for what is shown.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from secureps.run.report.plots import CURVES, Sheet, draw, why_undrawable
from secureps.run.report.status_tables import Summary, describe_total, summary_tables
from secureps.run.report.terminal import Progress
from secureps.run.report.version_metrics import (
    DOWN,
    Extras,
    Heading,
    Metrics,
    Sinks,
    Totals,
    open_sinks,
)
from secureps.run.script.process import ScriptProcess, script_process
from secureps.run.script.scoring import Baselines
from secureps.run.server_app import run_server_app
from secureps.run.up.folder import METRICS, Cast, Origin, RunFolder, claim_folder, make_folder
from secureps.run.up.programs import NOTHING_ELSE, Order, Programs, open_spawner
from secureps.run.up.watch import Watch, read_so_far, read_version_0
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
    # the spawner imports the heavy packages while the run is founded
    with open_spawner(plan, script, order.processes) as spawns:
        founding = run_server_app(plan, script, settings, federation.clients, seed)
        # compile now, because it takes seconds that would count towards the run's deadlines
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
        # compile now, because it takes seconds that would count towards the run's deadlines
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
        summary, cuts = _federate(programs, metrics, before.seconds, console)
        sinks.close(summary.record())
    for part in summary_tables(summary):
        console.print(part)
    for cut in cuts:
        console.print(Text(f"note: {cut}", "yellow"), soft_wrap=True)
    try:
        draw(metrics.lines, _make_sheet(plan, summary.baselines, programs.unsafe), folder.report)
    except OSError as error:  # a full disk, which must not end the run
        warn(f"no curves were drawn: {error}")
    if not summary.failure:
        replace_text(folder.summary, json.dumps(summary.record(), indent=1) + "\n")
    ends = {
        "model": folder.model,
        "best": folder.best,
        "report": folder.report,
        "curves": folder.report / CURVES,
    }
    for label, path in ends.items():
        if path.exists():
            console.print(f"{label}: {path}", soft_wrap=True, highlight=False, markup=False)
    if why_no_curves := why_undrawable():
        console.print(why_no_curves, soft_wrap=True, highlight=False, markup=False)
    if summary.failure:
        raise from_wire(summary.failure, summary.finished, None)


def _federate(
    programs: Programs, metrics: Metrics, before: float, console: Console
) -> tuple[Summary, tuple[str, ...]]:
    """Runs the federation, and trains the baselines; returns its summary, and strong cuts.

    `before`: seconds of earlier plays.
    """
    began = time.monotonic() - before
    plan, folder, unsafe = programs.plan, programs.folder, programs.unsafe
    own = (programs.assignment, folder.logs, programs.order.processes, programs.spawner)
    with Progress(console, plan.section.name, unsafe) as progress, script_process(*own) as script:
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
            at = (programs, address, so_far)
            with Watch(*at, script, supervisor, progress, metrics) as watch:
                summary = watch.until_over()
        summary = _write_models(summary, watch.steps, metrics.totals, programs, script, progress)
        versions = max(0, *summary.versions.values())
        baselines = Baselines({}, None, ("nothing is compared: federation.baselines = false",))
        if not plan.has_model:  # totals have no quality to compare
            baselines = Baselines({}, None, ())
        elif programs.federation.baselines:
            baselines = script.baselines(versions, read_version_0(folder), progress.show_activity)
        notes = [*summary.baselines.notes]
        if lost := sum(summary.updates.values()) - summary.counted:
            notes.append(f"costs leave out {lost} updates, whose figures did not arrive")
        baselines = replace(baselines, notes=(*notes, *baselines.notes))
        seconds = time.monotonic() - began
        return replace(summary, baselines=baselines, wall_seconds=seconds), watch.cuts


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
    summary: Summary,
    steps: Iterable[CohortSteps],
    totals: Totals,
    programs: Programs,
    judge: ScriptProcess,
    progress: Progress,
) -> Summary:
    """Writes the last and the best model; returns the summary, completed by the last one."""
    folder = programs.folder
    if not any(summary.versions.values()):
        return summary
    try:
        model = export(folder.root, folder.model)
    except SecurepsError as error:
        progress.say(f"no model was written: {error}", "yellow")
        return summary
    for complaint in model.complaints:
        progress.say(f"passed over a damaged checkpoint: {complaint}", "yellow")
    if summary.evaluation is not None and summary.evaluation.best:
        try:
            export(folder.root, folder.best, the_best=True)
        except SecurepsError as error:
            progress.say(f"the best version was not written: {error}", "yellow")
    sizes = {group.name: group.size for group in model.layout.groups}
    up, down = (totals.ratio(name, sizes) for name in (UP, DOWN))
    sums = _newest_totals(programs.plan, model, steps)
    known = replace(summary, ratio_up=up, ratio_down=down, totals=sums)
    if summary.score is None:
        return replace(known, versions=model.versions, score=judge.score(model.tensors))
    if summary.versions == model.versions:
        return known
    note = f"the newest checkpoint, and model.safetensors with it, is version {model.version}"
    before = summary.baselines
    return replace(known, baselines=replace(before, notes=(*before.notes, note)))


def _newest_totals(plan: Plan, model: Model, steps: Iterable[CohortSteps]) -> dict[str, Any]:
    members = {(s.group, s.version): s.members for s in steps if s.committed is not None}
    return {
        spec.name: describe_total(model.tensors[spec.name], members.get((group.name, version)))
        for group in model.layout.groups
        if plan.is_sum(group.name) and (version := model.versions[group.name])  # 0 is zeros
        for spec in group.tensors
    }


def _make_heading(order: Order, plan: Plan, root: Path) -> Heading:
    settings = plan.section.model_dump(mode="json")
    unsafe = order.unsafe_seed is not None
    return Heading(plan.section.name, root.resolve().name, settings, len(plan.groups), unsafe)


def _make_sheet(plan: Plan, baselines: Baselines, unsafe: bool) -> Sheet:
    privacy = plan.section.privacy
    sheet = Sheet(plan.section.name, "time", unsafe, plan.groups, adjacency=adjacency(plan))
    if privacy is not None:
        sheet = replace(sheet, budget=privacy.budget, delta=privacy.delta)
    if baselines.central is None:
        return sheet
    scores = {"all data at one party": baselines.central}
    scores |= {f"one holder alone, {which}": score for which, score in baselines.outer.items()}
    references = {name: score.value for name, score in scores.items()}
    return replace(sheet, measure=baselines.central.measure, references=references)


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
