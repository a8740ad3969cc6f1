"""`secureps up` and `resume` play a whole federation on this machine, each party as a process.

Theory of operation. The parties are those of `secureps serve` and `join`, and talk by gRPC; this
process only founds, starts, watches and reports. `folder` lays out what lies on the disk,
`programs` says which processes start and in which order, `Watch` reads status and logs, and `runs`
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
run, and `resume` continues it in the same folder. If this process is killed, a launcher
(`run.processes.launcher`) ends the others. RUN/report/sofar.json has times and curves of earlier
plays. Once the run is over, RUN/report/summary.json is written, and `resume` only says so.

Guards. `claim_folder` stops a second play, which would corrupt the journals. `resume` refuses
another journal format before anything starts. After a failure or a full disk the user reads how to
continue (`_advising_resume`, `naming_full_disk`).

Clients log why they send nothing, and when a clip or range cuts off most of an update. No noise
protects the latter, so a client prints it only on its own terminal. Under `up` all clients belong
to the user of this terminal, so `Watch` repeats the first such line with the client's name.

Look first at `programs` for a new process or option, and at `run.report` for what is shown.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text

from secureps.client.script import refuse_privacy
from secureps.config.plan import FederationSection
from secureps.crypto.sampling import SecretSeed, UnsafeSeed
from secureps.crypto.suite import refuse_unsealable
from secureps.errors import (
    ConfigError,
    DamagedStore,
    Diverged,
    OperatorError,
    PeerError,
    PlanRefused,
    SecurepsError,
    TooFew,
    from_wire,
    naming,
)
from secureps.files.objects import ObjectStore
from secureps.messages.requests import FAILED, UP, CohortSteps, GroupStatus, Status
from secureps.policy.plan import Plan, load_plan
from secureps.policy.spending import adjacency, refuse_unaffordable
from secureps.policy.tensor_kinds import refuse_statistics, refuse_trained, remarks
from secureps.run.export import Model, export, read_model
from secureps.run.initial_schema import settle_schema
from secureps.run.processes.signals import terminable
from secureps.run.processes.supervisor import Finished, Supervisor
from secureps.run.report.plots import CURVES, Sheet, draw, why_undrawable
from secureps.run.report.status_tables import Summary, describe_total, summary_tables
from secureps.run.report.terminal import Progress, fold_versions, score_text, spent_text
from secureps.run.report.version_metrics import (
    DOWN,
    SECONDS,
    Extras,
    Gathered,
    Heading,
    Metrics,
    Sinks,
    Totals,
    open_sinks,
)
from secureps.run.script.process import ScriptProcess, script_process
from secureps.run.script.scoring import Baselines, Score
from secureps.run.server_app import run_server_app
from secureps.run.simulate.scenario_file import refuse_few
from secureps.run.status_client import StatusClient
from secureps.run.up.folder import (
    METRICS,
    Cast,
    Origin,
    RunFolder,
    claim_folder,
    make_folder,
    named_folder,
)
from secureps.run.up.programs import NOTHING_ELSE, Order, Programs, open_launchers, tell_deaths
from secureps.run.up.runs import LogReader
from secureps.run.warm import warm_once
from secureps.service.pinning import refuse_pin
from secureps.store.atomic_file import replace_text
from secureps.store.backup import JOURNAL
from secureps.store.checkpoint import checkpoint_path
from secureps.store.journal import last_row
from secureps.store.journal_rows import NO_SPACE
from secureps.tracebacks import TEXT_LIMIT
from secureps.wording import join_alike, numberless, one_line, size

# --- what earlier plays of a run measured --------------------------------------------


def read_so_far(folder: RunFolder) -> Gathered:
    """Reads the metrics of earlier plays of a run; ConfigError if the file cannot be read."""
    path = folder.report / "sofar.json"
    try:
        return TypeAdapter(Gathered).validate_json(path.read_bytes())
    except FileNotFoundError:
        return Gathered()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def write_so_far(folder: RunFolder, gathered: Gathered) -> None:
    """Writes the metrics so far, with Infinity for an epsilon, which strict JSON lacks."""
    record = json.dumps(dataclasses.asdict(gathered))
    replace_text(folder.report / "sofar.json", record + "\n")


# --- warnings in the logs of clients -------------------------------------------------

MOST_LEFT = 50.0
"""Percent of an update: if a clip leaves more of it, no warning is printed."""

LOG_PIECE = 1 << 16
"""The most bytes of a log that are read at a time."""

LONGEST_LINE = 4 * TEXT_LIMIT
"""Characters of a line that are searched: a script may write lines of any length."""

_SILENCE = re.compile(r"sends no (update|evaluation)\b.*")

_CUT = re.compile(
    r"update norm \S+, clip \S+: cut to (?P<left>\d+(\.\d+)?(e[+-]?\d+)?) %"
    r"|[\d,]+ of the update's [\d,]+ values are beyond range \S+: cut to it"
)


class ClientWarnings:
    """Finds in the logs of clients (NAME.log) why little or nothing of an update was sent."""

    def __init__(self, logs: Path, clients: Iterable[str]) -> None:
        self._logs = {client: LogReader(logs / f"{client}.log", False) for client in clients}
        self._told = set[tuple[str, str]]()

    def news(self) -> Iterator[str]:
        """Yields why each client sends nothing, and the first strong cut by a clip and by a range.

        Clients that have said the same since the last call share a line.
        """
        alike = dict[str, dict[str, str]]()
        for client, log in self._logs.items():
            with suppress(OSError):  # no log yet
                for _, line in log.read_new(True, LOG_PIECE):
                    kind, text = _read_warning(line[:LONGEST_LINE])
                    once = kind, "" if kind in ("clip", "range") else client
                    if kind and once not in self._told:
                        self._told.add(once)
                        alike.setdefault(kind, {})[client] = f"{client} {text}"
        for said in alike.values():
            yield from join_alike(said)


def _read_warning(line: str) -> tuple[str, str]:
    """Returns the kind of a warning, and its text; both are empty for any other line."""
    if found := _SILENCE.search(line):
        return numberless(found.group()), found.group()
    for found in _CUT.finditer(line):
        if float(found["left"] or 0) <= MOST_LEFT:
            text = line[found.start() :][: 2 * TEXT_LIMIT]
            return "clip" if found["left"] else "range", f"says: {text} (in its log each time)"
    return "", ""


# --- watch ---------------------------------------------------------------------------

ASK_EVERY = 0.25
"""Seconds between two requests for the status."""

LEAVE_SECONDS = 30.0
"""Seconds for clients to hear of the run's end, and leave."""

_LEFT_EVERY = 0.02
"""Seconds between two checks whether all clients have left."""

STUCK_SECONDS = 10.0
"""Seconds without a step after which a run with too few clients is given up."""

BETWEEN_ROUNDS = ("waiting", "done")
BY_CLIENTS = (*BETWEEN_ROUNDS, "founding", "collecting")
"""The steps that only clients can finish."""


class Watch:
    """Watches one run, in a `with`; `metrics` gets every version.

    Args:
        address: of the run's coordinator.
        began: `time.monotonic` at the run's start, plus the times when nobody played it.
    """

    def __init__(
        self,
        programs: Programs,
        address: str,
        began: float,
        judge: ScriptProcess,
        supervisor: Supervisor,
        progress: Progress,
        metrics: Metrics,
    ) -> None:
        self._programs = programs
        self._plan, self._folder = programs.plan, programs.folder
        self._names = programs.cast.clients
        self._address = address
        self._judge = judge
        self._supervisor = supervisor
        self._started = set(supervisor.running())
        self._progress = progress
        self._observer = StatusClient(self._folder.kit, None, address)
        self._metrics = metrics
        self._status: Status | None = None
        self._scored: tuple[Score | None, str] = (None, "")
        self._judged: dict[str, int] = {}
        self._began, self._moved_at = began, time.monotonic()
        self._gone: dict[str, str] = {}
        self._told: set[str] = set()
        self._failures = list[str]()
        self._echo = ClientWarnings(self._folder.logs, self._names)
        self._unprotected = math.inf if self._plan.section.privacy is None else None
        self._unkept = False

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.close()
        self._metrics.settle()
        self._save()

    def _save(self) -> None:
        seconds, known = time.monotonic() - self._began, self._metrics.gathered
        try:
            write_so_far(self._folder, dataclasses.replace(known, seconds=seconds))
        except OSError as error:  # a full disk loses only times and curves here
            if not self._unkept:
                text = f"what `secureps resume` shows of these versions is not kept: {error}"
                self._progress.say(text, "yellow")
            self._unkept = True

    def until_over(self) -> Summary:
        """Watches until the run has finished; OperatorError if it cannot go on.

        It is ScriptFailed if too few clients are left because their script failed.
        """
        pause = self._poll_status()
        while not (finished := self._find_end()):
            self._programs.start_added(self._supervisor, self._started)
            time.sleep(pause)
            pause = self._poll_status()
        with suppress(OSError):  # a full disk; then nobody says why the coordinator is silent
            replace_text(self._folder.over, finished)
        self._supervisor.expect_end()
        until = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < until and self._running_clients():
            time.sleep(_LEFT_EVERY)
            self._poll_processes()
        self._poll_status()
        assert self._status is not None
        return self._sum_up(finished, self._status)

    @property
    def steps(self) -> tuple[CohortSteps, ...]:
        return () if self._status is None else self._status.steps

    def _sum_up(self, finished: str, status: Status) -> Summary:
        plan, totals, privacy = self._plan, self._metrics.totals, self._plan.section.privacy
        versions = {group.name: group.version for group in status.groups}
        arrived = totals.updates_by_party()
        return Summary(
            name=plan.section.name,
            finished=finished,
            versions=versions,
            score=self._scored[0] if versions == self._judged else None,
            baselines=Baselines({}, None, tuple(self._failures)),
            delta=privacy.delta if privacy is not None else None,
            adjacency=adjacency(plan),
            budget=privacy.budget if privacy is not None else None,
            members=status.members,
            bytes_up=totals.total(UP),
            bytes_down=totals.total(DOWN),
            seconds={stage: totals.total(f"{stage}_seconds") for stage in SECONDS},
            updates={m.name: max(arrived[m.name], m.submissions) for m in status.members},
            counted=totals.updates().total(),
            unsafe=self._programs.unsafe,
            evaluation=status.evaluation,
            # a run that its coordinator did not end has lost its clients
            failure=status.failure if status.finished else TooFew.__name__,
        )

    # --- one look -----------------------------------------------------------------

    def _poll_processes(self) -> None:
        news = self._supervisor.poll()
        tell_deaths(self._progress, news)
        for line in self._echo.news():
            self._progress.say(line, "yellow")
        self._gone |= {each.name: each.last for each in news if isinstance(each, Finished)}
        self._tell_failed()

    def _poll_status(self) -> float:
        self._poll_processes()
        asked = time.monotonic()
        try:
            status = self._observer.status()
        except PeerError:
            return ASK_EVERY  # the coordinator is being restarted
        took = time.monotonic() - asked
        self._metrics.take(status.telemetry)
        if status.evaluation is not None:
            groups = [group.name for group in status.groups]
            self._metrics.add_evaluations(status.evaluation.results, groups)
        self._metrics.settle()
        self._notice(status)
        self._tell_leavers(status)
        self._judge_newest(status)
        elapsed = time.monotonic() - self._began
        self._progress.show(elapsed, status.groups, self._facts(status, elapsed))
        # each request takes time of the coordinator, so a slow answer means fewer requests
        return min(max(ASK_EVERY, 2 * took), 8 * ASK_EVERY)

    def _notice(self, status: Status) -> None:
        before = self._status.groups if self._status is not None else ()
        if status.groups != before:
            self._moved_at = time.monotonic()
        versions = {group.name: group.version for group in before}
        # In a resumed run versions may be older than this process.
        committed = {(each.group, each.version): each.committed for each in status.steps}
        for group in status.groups:
            for version in range(max(versions.get(group.name, -1) + 1, 0), group.version + 1):
                elapsed = committed.get((group.name, version))
                if elapsed is None:
                    elapsed = time.monotonic() - self._began
                self._metrics.publish(group.name, version, elapsed, self._unprotected)
        if status.groups != before:
            self._save()
        self._status = status

    def _tell_leavers(self, status: Status) -> None:
        """Reports parties that left early: a client without budget or that was left out, or a
        removed shard.
        """
        left = {each.name for each in status.members if each.state == "left out"}
        for line in sorted({f"{name} is left out of the run" for name in left} - self._told):
            self._told.add(line)
            self._progress.say(f"{line}: the coordinator's log says why", "yellow")
        for name in () if status.finished else self._gone.keys() - self._told:
            self._told.add(name)
            why = self._gone[name] or "it said nothing; its script ended the process"
            self._progress.say(f"{name} has ended by itself: {why}", "yellow")

    def _tell_failed(self) -> None:
        """Reports clients that failed for good, and has no round wait for them."""
        failed = self._supervisor.failed
        said = join_alike({name: str(failed[name]) for name in failed.keys() - self._told})
        for name in failed.keys() - self._told:
            why = str(failed[name]).removeprefix(f"{name} ").rpartition("; see ")[0]
            self._let_rest(name, f"{FAILED}{why}")
        self._told |= failed.keys()
        self._failures += said
        for each in said:
            self._progress.say(f"{each}; the run goes on while it can", "red")

    def _let_rest(self, client: str, why: str) -> None:
        """Tells the coordinator that a client is gone, so that no round waits for it."""
        with (
            suppress(SecurepsError),  # its lease ends in any case
            closing(StatusClient(self._folder.kit, client, self._address)) as own,
        ):
            own.rest(client, why)

    def _judge_newest(self, status: Status) -> None:
        versions = {group.name: group.version for group in status.groups}
        if self._judge.note or versions == self._judged or min(versions.values()) < 0:
            return
        try:
            model = self._observer.model()
        except PeerError:
            return
        if model is None:
            return
        versions, tensors = model
        failed = self._judge.failed
        score = self._judge.score(tensors)
        if self._judge.failed != failed:
            self._progress.say(f"{self._judge.failed}; the run goes on", "yellow")
        self._judged = versions
        self._scored = (score, fold_versions(versions))
        if score is not None:
            self._metrics.add_scores(versions, score.metrics)

    def _facts(self, status: Status, elapsed: float) -> dict[str, str]:
        plan, privacy, totals = self._plan, self._plan.section.privacy, self._metrics.totals
        versions = {group.name: group.version for group in status.groups}
        facts = {"time": f"{int(elapsed) // 60}:{int(elapsed) % 60:02d}"}
        if any(version >= 0 for version in versions.values()):
            score, scored = self._scored
            wanted = {group: plan.versions(group) for group in plan.groups}
            facts["version"] = fold_versions(versions, wanted)
            if score is not None:
                facts[f"held-out {score.measure}"] = score_text(score, scored, versions)
            if privacy is not None:
                own = (privacy.budget, privacy.delta, adjacency(plan))
                spent = max((member.epsilon for member in status.members), default=0.0)
                facts["epsilon"] = spent_text(spent, *own)
            facts["bytes"] = f"{size(totals.total(UP))} up, {size(totals.total(DOWN))} down"
        here = sum(member.live for member in status.members)
        return facts | {"clients": f"{here} of {len(self._names)} are there"}

    # --- the end ------------------------------------------------------------------

    def _find_end(self) -> str:
        if self._status is None:
            return ""
        if self._status.finished:
            return self._status.finished
        here, plan = self._running_clients(), self._plan
        needed = min(plan.bounds(name).start for name in plan.groups)
        quiet = time.monotonic() - self._moved_at
        if len(here) >= needed or (here and not self._is_between_rounds(self._status.groups)):
            return ""
        clients, failed = self._names, self._supervisor.failed
        ends = BETWEEN_ROUNDS if here else BY_CLIENTS
        nothing_moves = failed and all(group.step in ends for group in self._status.groups)
        if quiet < STUCK_SECONDS and not nothing_moves:
            return ""
        gone = f"{len(clients) - len(here)} of {len(clients)} clients have ended"
        if failed:  # `resume` continues once the script is mended
            why = "; ".join(join_alike({name: str(error) for name, error in failed.items()}))
            kind = type(next(iter(failed.values())))
            raise kind(f"{gone}, and a round waits for {needed}: {why}")
        return f"stopped before its time: {gone} by themselves, a round waits for {needed}"

    def _is_between_rounds(self, groups: tuple[GroupStatus, ...]) -> bool:
        """True if no round is open that the remaining clients may still finish.

        Rules without rounds collect updates all the time; there the remaining clients cannot finish
        a version once others have failed.
        """
        bounds, failed = self._plan.bounds, self._supervisor.failed
        return all(
            group.step in BETWEEN_ROUNDS or (failed and not bounds(group.name).rounds)
            for group in groups
        )

    def _running_clients(self) -> tuple[str, ...]:
        return tuple(n for n in self._supervisor.running() if n in self._names)


def read_version_0(folder: RunFolder) -> dict[str, Any]:
    with suppress(SecurepsError):
        model = read_model(checkpoint_path(folder.checkpoints, 0))
        if not any(model.versions.values()):
            return model.tensors
    return {}


# --- play ----------------------------------------------------------------------------


def up(order: Order, console: Console) -> Path:
    """Plays a plan's whole federation on this machine; returns the run's folder.

    Raises ConfigError or PlanRefused for a plan that cannot be played, OperatorError if a process
    died too often, or another error that ended the run. No process is left in any case.
    """
    plan, federation = _read_plan(order.plan, order.plan.parent)
    if order.copies is not None:
        with naming("--copies", ConfigError):
            ObjectStore(order.copies)  # refuse a bad URL now rather than in every server
    refuse_pin(order.pin)
    cast = Cast.of(plan, federation.clients)
    with named_folder(order.out, plan.section.name) as root:
        heading = _make_heading(order, plan, root)
        order.extras.require(heading)
        refuse_unsealable(plan.opening)
        script, settings = (order.plan.parent / federation.script).resolve(), federation.settings
        unsafe = order.unsafe_seed
        seed = SecretSeed.from_os() if unsafe is None else UnsafeSeed(unsafe)
        # launchers import the heavy packages while the run is founded
        with open_launchers(plan, script, order.processes) as launchers:
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
                _play(Programs(order, folder, plan, federation, cast, launchers), heading, console)
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
        open_launchers(plan, script, order.processes) as launchers,
        chdir(origin.directory),
        claim_folder(folder.root),
        _advising_resume(folder, console),
    ):
        # compile now, because it takes seconds that would count towards the run's deadlines
        warm_once(lambda text: console.print(Text(text), soft_wrap=True))
        _play(Programs(order, folder, plan, federation, cast, launchers), heading, console)
    return folder.root


@contextmanager
def _advising_resume(folder: RunFolder, console: Console) -> Iterator[None]:
    """Notes why a play failed, for `secureps runs` and `secureps log`, and says how to go on."""
    for earlier in (folder.failed, folder.over):
        earlier.unlink(missing_ok=True)
    try:
        with naming_full_disk(folder.root, "go on"):
            yield
    except SecurepsError as error:
        with suppress(OSError):  # the disk may be what failed
            replace_text(folder.failed, one_line(error))
            folder.logs.mkdir(exist_ok=True)
            with (folder.logs / "up.log").open("a") as log:
                stamp = logging.Formatter().formatTime(logging.makeLogRecord({}))
                log.write(f"{stamp} up: failed: {one_line(error)} ({error.fault} fault)\n")
        if isinstance(error, PlanRefused):  # resuming cannot help: the run keeps its copy
            raise
        text = f"the run failed; once that is mended, this goes on: secureps resume {folder.root}"
        if isinstance(error, Diverged):
            text += "; with another learning rate in the plan it is another run: secureps up"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        raise


def _play(programs: Programs, heading: Heading, console: Console) -> None:
    folder, extras = programs.folder, programs.order.extras
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
        began = time.monotonic() - before.seconds
        summary = _federate(programs, metrics, began, console)
        sinks.close(summary.record())
    for part in summary_tables(summary):
        console.print(part)
    _draw(programs, metrics, summary.baselines, warn)
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


def _federate(programs: Programs, metrics: Metrics, began: float, console: Console) -> Summary:
    """Runs the federation, and trains the baselines; returns its summary."""
    plan, folder, unsafe = programs.plan, programs.folder, programs.unsafe
    own = (programs.assignment, folder.logs, programs.order.processes, programs.launchers[1])
    with Progress(console, plan.section.name, unsafe) as progress, script_process(*own) as script:
        progress.say(f"the run's folder: {folder.root}")
        with (
            programs.pair() as pair,
            Supervisor(folder.logs) as supervisor,
            telling_of_stop(lambda: progress.say("stopping ...")),
        ):
            address = programs.start(supervisor, progress, pair)
            progress.show_activity(f"looks at {programs.script.name}, while they start")
            _examine_model(programs, script, progress)
            with Watch(programs, address, began, script, supervisor, progress, metrics) as watch:
                summary = watch.until_over()
        summary = _write_models(summary, watch.steps, metrics.totals, programs, script, progress)
        versions = max(0, *summary.versions.values())
        baselines = Baselines({}, None, ("nothing is compared: federation.baselines = false",))
        if not plan.has_model:  # totals have no quality to compare
            baselines = Baselines({}, None, ())
        elif programs.federation.baselines:
            # first the federation's own curves: baselines take long, and may be interrupted
            _draw(programs, metrics, summary.baselines, lambda text: progress.say(text, "yellow"))
            baselines = script.baselines(versions, read_version_0(folder), progress.show_activity)
        notes = [*summary.baselines.notes]
        if lost := sum(summary.updates.values()) - summary.counted:
            notes.append(f"costs leave out {lost} updates, whose figures did not arrive")
        baselines = replace(baselines, notes=(*notes, *baselines.notes))
        seconds = time.monotonic() - began
        return replace(summary, baselines=baselines, wall_seconds=seconds)


def _examine_model(programs: Programs, script: ScriptProcess, progress: Progress) -> None:
    path = programs.order.plan
    with naming(path), naming(path, ConfigError, programs.script.absolute()):
        made, kinds = script.look()
        schema = settle_schema(programs.plan, made)
        refuse_statistics(programs.plan, schema, kinds)
        refuse_trained(programs.plan, schema, kinds)
        for remark in remarks(programs.plan, schema, kinds):
            progress.say(remark, "yellow")


def _read_plan(path: Path, base: Path) -> tuple[Plan, FederationSection]:
    plan = load_plan(path, base)
    federation = plan.section.federation
    if federation is None:
        raise ConfigError(
            f"{path}: federation: `up` needs this section, with a script and a number of clients; "
            "a plan without it is played by a scenario: `secureps simulate`"
        )
    refuse_few(path, plan, federation.clients)
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


def _draw(
    programs: Programs, metrics: Metrics, baselines: Baselines, warn: Callable[[str], None]
) -> None:
    """Draws the curves, with lines for the known baselines."""
    sheet = _make_sheet(programs.plan, baselines, programs.unsafe)
    try:
        draw(metrics.lines, sheet, programs.folder.report)
    except OSError as error:  # a full disk, which must not end the run
        warn(f"no curves were drawn: {error}")


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
