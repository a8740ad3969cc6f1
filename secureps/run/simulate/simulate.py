"""`secureps simulate`: plays a scenario in virtual time, and writes its report folder.

    OUT/metrics.jsonl       one line per version (`run.report.version_metrics`), in virtual time
    OUT/curves.png          scores and bytes over virtual time
    OUT/waiting.png         the clients that versions waited for
    OUT/summary.json        the results
    OUT/checkpoints/        as a coordinator and its shards write them
    OUT/model.safetensors   the final model, by tensor name

The same scenario gives the same metrics and the same model, bit for bit. What must not live here:
the parties in one process (`run.simulate.simulation`).
"""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal

from secureps.client.local_tensors import LocalTensors
from secureps.client.script import Script, refuse_privacy
from secureps.client.trainer import Setting
from secureps.config.scenario import ScenarioSection, StaySection
from secureps.config.sections import parse, placed, read_toml, refuse_misplaced
from secureps.crypto.sampling import NO_PRIVACY, UnsafeSeed
from secureps.crypto.suite import refuse_unsealable
from secureps.errors import ConfigError, DiskFailed, naming
from secureps.files.objects import ObjectStore
from secureps.messages.outcome import Outcome
from secureps.messages.requests import Prepared
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan, load_plan
from secureps.policy.spending import adjacency, spent
from secureps.policy.tensor_kinds import refuse_statistics, refuse_trained
from secureps.roles.coordinator.telemetry import UP
from secureps.run.initial_schema import initial_schema
from secureps.run.party_names import client_names
from secureps.run.report.group_labels import folded
from secureps.run.report.plots import CURVES, Sheet, draw, undrawable
from secureps.run.report.sinks import METRICS, Sinks
from secureps.run.report.totals import DOWN
from secureps.run.report.trackers import Extras, Heading, open_sinks
from secureps.run.report.version_metrics import Metrics, Tell
from secureps.run.run_lock import new_folder
from secureps.run.script.scoring import Judge, Look, Score
from secureps.run.server_app import Founding, found
from secureps.run.simulate.last_words import last_words
from secureps.run.simulate.ray_cluster import Spread, here, ray_cluster, spread_over
from secureps.run.simulate.scenario_checks import refuse_unknown_parties
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.run.warm import warm_once
from secureps.scenario.delays import Delays
from secureps.scenario.links import Links
from secureps.service.checkpoint_copies import CheckpointCopies
from secureps.store.checkpoint import write_state

Say = Callable[[str], None]
Engine = Literal["here", "ray"]
"""Where clients train."""

REPEATABLE = (UP, DOWN, "network_seconds")
"""The figures in virtual time: all others are seconds of this machine."""

FIRST = 1
"""The version that is made when all have joined who come at the beginning: what is in memory then
stays, and no collection of what is not used any more need look at it."""

OFTEN = 1000
"""Events between two reads of the window of reports, which must not overflow."""


@dataclass(frozen=True)
class Scenario:
    """A scenario file and the files that it names, read and checked."""

    section: ScenarioSection
    plan: Plan
    script: Callable[[], Script]
    """Imports it, once."""
    delays: Delays
    plans: Mapping[str, Plan]
    """Of the variants of its study."""
    source: Path
    """The script's file."""

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The clients' names."""
        return client_names(self.section.clients)

    @property
    def stays(self) -> dict[str, StaySection]:
        """The stays of clients that come late or leave, by name."""
        names, stays = self.clients, self.section.stay
        return {names[s.first + k]: s for s in stays for k in range(s.count)}

    def settings(self, partition: int) -> dict[str, Setting]:
        """The settings of a client's script."""
        own: dict[str, Setting] = {"partition": partition, "partitions": self.section.clients}
        initial = self.plan.section.initial
        if initial is not None and self.script().takes_initial:
            own["initial"] = initial
        return {**self.section.settings, **own}

    def founding(self, plan: Plan, seed: int) -> Founding | None:
        """Runs the script's ServerApp for a plan, if it has one that has not been run."""
        own = self.section
        return found(plan, self.source, own.settings, own.clients, UnsafeSeed(seed))

    def heading(self, folder: Path) -> Heading:
        """The heading of its charts."""
        settings = {
            "scenario": self.section.model_dump(mode="json"),
            "plan": self.plan.section.model_dump(mode="json", exclude={"federation"}),
        }
        groups = len(self.plan.groups)
        return Heading(self.section.name, folder.resolve().name, settings, groups, True)


def load_scenario(path: Path) -> Scenario:
    """Reads a scenario file.

    Raises:
        ConfigError, PlanRefused: it, its plan or its script are not right.
    """
    values = read_toml(path)
    if "plan" not in values and "group" in values:
        raise ConfigError(f"{path} is a plan: name the scenario that plays it (simulations/)")
    section = parse(ScenarioSection, values, str(path))
    refuse_misplaced(section.settings, path)
    settings = placed(section.settings, path.parent)
    section = section.model_copy(update={"settings": settings})
    plan, script = load_plan(path.parent / section.plan), path.parent / section.script
    if not os.path.exists(script):
        raise ConfigError(f"{script}: no such script")
    variants = () if section.study is None else section.study.variant
    plans = {
        variant.name: plan if variant.plan is None else load_plan(path.parent / variant.plan)
        for variant in variants
    }
    for each in (plan, *plans.values()):
        refuse_privacy(script, each)
    start = max(plan.bounds(name).start for name in plan.all_groups)
    if section.clients < start:
        raise ConfigError(
            f"{path}: clients: {section.clients} play, the plan's rounds wait for {start}"
        )
    refuse_unknown_parties(section, (plan, *plans.values()), path)
    with naming(path, ConfigError):
        delays = Delays.of(section.delays)
    return Scenario(section, plan, cache(lambda: Script(script)), delays, plans, script)


def simulate(
    path: Path,
    out: Path | None = None,
    say: Say = print,
    extras: Extras | None = None,
    engine: Engine = "here",
    copies: str | None = None,
) -> Path:
    """Plays a scenario and writes its report.

    Args:
        path: the scenario file.
        out: the report folder (default: runs/NAME); it must not hold anything.
        say: hears one line per version.
        extras: where else its figures are written.
        engine: where clients train: in this process, or on a Ray cluster.
        copies: the URL of an object store below which checkpoints are copied, in a place that is
            called as the report's folder.

    Returns:
        the report folder.

    Raises:
        ConfigError: the folder holds something, or the scenario is not right.
        DiskFailed: a checkpoint is not at the store; the report is written before.
        SecurepsError: whatever ended the run before its time; of a rule that failed, and of
            members who are too few, the report is written before.
    """
    scenario, extras = load_scenario(path), extras or Extras()
    folder = out if out is not None else Path("runs") / scenario.section.name
    heading = scenario.heading(folder)
    extras.require(heading)
    refuse_unsealable(scenario.plan.opening)
    copy = None if copies is None else _copying(copies, folder)
    with trained_by(engine, scenario) as spread:
        return _simulated(scenario, folder, (heading, extras), (spread, copy), say)


def _copying(url: str, folder: Path) -> CheckpointCopies:
    """What copies the checkpoints of a report's folder to a place of its own below a URL.

    Raises:
        ConfigError: the URL is none, or the place has something of another run.
        DiskFailed: the store refuses, or cannot be reached.
    """
    with naming("--copies", ConfigError):
        store = ObjectStore(f"{url.rstrip('/')}/{folder.resolve().name}/checkpoints")
        if store.sizes():
            raise ConfigError(f"{store.name} has something: name another --out, or another URL")
        store.demand_bucket()
    return CheckpointCopies(COORDINATOR, folder / "checkpoints", store)


def _simulated(
    scenario: Scenario,
    folder: Path,
    shown: tuple[Heading, Extras],
    around: tuple[Spread, CheckpointCopies | None],
    say: Say,
) -> Path:
    """Plays a scenario that can be played; see `simulate`."""
    new_folder(folder)
    spread, copies = around
    say(
        f"{scenario.section.name}: {scenario.section.clients} clients in virtual time, seed "
        f"{scenario.section.seed}; {NO_PRIVACY}, everybody can repeat the noise"
    )
    founding = scenario.founding(scenario.plan, scenario.section.seed)
    if founding is not None:
        for note in founding.notes:
            say(note)
        scenario = replace(scenario, plan=founding.write(folder))
    warm_once(say)
    heading, extras = shown
    with last_words(), Sinks(open_sinks(heading, folder / METRICS, extras), say) as sinks:
        play = Play(scenario, folder, sinks.add, spread, copies)
        try:
            play.run(say)
        except KeyboardInterrupt:
            say(f"stopped: {folder} has what there was until then; to play again, remove it")
            raise
        summary = play.summary()
        sinks.close(summary)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    sheet = Sheet(scenario.section.name, "virtual time", True, scenario.plan.groups)
    draw(play.metrics.lines, sheet, folder)
    model = play.simulation.model()
    write_state(folder / "model.safetensors", model, {"privacy": NO_PRIVACY}, None)
    privacy = scenario.plan.section.privacy
    if privacy is not None:
        say(
            f"epsilon {play.epsilon:.3f} of {privacy.budget:g} (delta {privacy.delta:g}, "
            f"{adjacency(scenario.plan)}), the most of all clients, had the noise been secret"
        )
    for note in summary["notes"]:
        say(note)
    say(NO_PRIVACY)
    say(f"report: {folder}")
    say(undrawable() or f"curves: {folder / CURVES}")
    left = "" if copies is None else copies.copy()
    play.simulation.refuse_failed()
    if left:
        raise DiskFailed(f"checkpoints are in {folder}, and not all of them at the store: {left}")
    return folder


@contextmanager
def trained_by(engine: Engine, scenario: Scenario) -> Iterator[Spread]:
    """Where clients train while the `with` lasts; ConfigError if it cannot be had."""
    if engine == "here":
        yield here
        return
    with ray_cluster() as cluster:
        yield spread_over(cluster, scenario.source)


@dataclass
class Play:
    """A scenario being played: the drop-outs, and a line for every version."""

    scenario: Scenario
    folder: Path
    tell: Tell
    spread: Spread = here
    copies: CheckpointCopies | None = None

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.metrics = Metrics(self.tell, True, REPEATABLE)
        self._dropped: set[tuple[str, int]] = set()
        self._gone: set[str] = set()
        self._waited = 0
        self._links = Links(scenario.delays, scenario.section.seed, scenario.section.shards)
        self._away = {name for name, stay in scenario.stays.items() if stay.comes}
        self._seen: dict[str, int] = dict.fromkeys(scenario.plan.groups, -1)
        script = scenario.script()
        holders = {name: scenario.settings(i) for i, name in enumerate(scenario.clients)}
        with naming(f"{scenario.section.name}: settings", ConfigError, script.path):
            trainers = {
                name: self.spread(script.make(settings), settings, self.folder / name)
                for name, settings in holders.items()
            }
        first = scenario.clients[0]
        look = Look.at(trainers[first])
        with naming(scenario.section.name):
            refuse_statistics(scenario.plan, look.schema, look.kinds)
            refuse_trained(scenario.plan, look.schema, look.kinds)
            look.refuse_infinite(scenario.plan)
            initial = initial_schema(scenario.plan)
        self.judge = Judge(
            *(scenario.plan, script, holders, holders[first], look),
            lambda name: LocalTensors(self.folder / name).load(),
            trainers,
        )
        self._score: Score | None = None
        seed = UnsafeSeed(scenario.section.seed)
        self.simulation = Simulation(
            scenario.plan,
            Cast(trainers, seed, self._cost),
            self.folder,
            Conditions(delay=self._delay, late=frozenset(self._away), adding=self._adding),
            initial,
        )
        for name, stay in scenario.stays.items():
            if stay.comes:
                self.simulation.loop.call_later(stay.comes, partial(self._come, name))
            if stay.leaves is not None:
                self.simulation.loop.call_later(stay.leaves, partial(self._leave, name))

    def run(self, say: Say) -> None:
        """Plays to the end."""

        events = 0

        def until() -> bool:
            nonlocal events
            events += 1
            versions = self.simulation.versions()
            if versions != self._seen:
                self._gather()
                say(self._publish(versions))
                if max(self._seen.values()) < FIRST:
                    gc.freeze()  # all clients are there by now, and stay
                self._seen = versions
                if self.copies is not None:
                    self.copies.copy()  # what is in the way now is told at the end, if it still is
            elif events % OFTEN == 0:
                self.metrics.take(self.simulation.coordinator.telemetry)
            return self._over()

        gc.freeze()
        try:
            self.simulation.run(until)
        finally:
            gc.unfreeze()
        self._gather()

    def _gather(self) -> None:
        coordinator = self.simulation.coordinator
        self.metrics.take(coordinator.telemetry)
        results = coordinator.federation.evaluations.newest
        self.metrics.evaluated(results, self.scenario.plan.groups)
        self.metrics.settle()

    @property
    def epsilon(self) -> float | None:
        """The largest epsilon of a client, had its noise been secret; None without privacy."""
        plan, ledger = self.scenario.plan, self.simulation.coordinator.federation.ledger
        if plan.section.privacy is None:
            return None
        return max(spent(plan, ledger.tally(name)) for name in self.scenario.clients)

    def summary(self) -> dict[str, Any]:
        """The summary as plain values."""
        totals, clients = self.metrics.totals, self.scenario.clients
        federation = self.simulation.coordinator.federation
        return {
            "name": self.scenario.section.name,
            "finished": federation.finished,
            "failure": federation.failure,
            "virtual_seconds": self.simulation.loop.now(),
            "versions": self.simulation.versions(),
            "score": asdict(self._score) if self._score is not None else None,
            "notes": list(self.judge.notes),
            "evaluations": [asdict(result) for result in federation.evaluations.newest],
            "bytes_up": totals.total(UP),
            "bytes_down": totals.total(DOWN),
            "updates": {name: totals.updates_of(name) for name in clients},
            "epsilon": self.epsilon,
            "adjacency": adjacency(self.scenario.plan),
            "unsafe": True,
            "privacy": NO_PRIVACY,
        }

    def _over(self) -> bool:
        if not self.simulation.coordinator.federation.finished:
            return False
        names = self.scenario.clients
        for _ in names:  # on from whoever was waited for last: nobody looks at all at every event
            if self._plays(names[self._waited]):
                return False
            self._waited = (self._waited + 1) % len(names)
        return True

    def _plays(self, name: str) -> bool:
        here = name not in self._gone and name not in self._away
        return here and not self.simulation.parties[name].halted.done()

    def _publish(self, versions: Mapping[str, int]) -> str:
        """Adds lines for the groups with a new version; returns them in words."""
        simulation, now = self.simulation, self.simulation.loop.now()
        fates, included = simulation.coordinator.federation.fates, 0
        for group, version in versions.items():
            if version == self._seen[group]:
                continue
            included = sum(
                fate.outcome in (Outcome.INCLUDED, Outcome.DURABLE)
                and (id.group, fate.version) == (group, version)
                for id, fate in fates.items()
            )
            figures = {"clients": included, "gone": len(self._gone | self._away)}
            self.metrics.publish(group, version, now, math.inf, figures)
        wanted = {group: self.scenario.plan.versions(group) for group in versions}
        score = ""
        if not self.judge.note and min(versions.values()) >= 0:
            result = self.judge.result(simulation.model())
            if result is not None:
                self._score = Score.of(result)
                loss = {} if result.loss is None else {"loss": result.loss}
                self.metrics.judged(versions, {**loss, **result.metrics})
                score = f", {self._score.measure} {self._score.value:.3f}"
        return (
            f"t={now:9.1f} s  version {folded(versions, wanted)}{score}, {included} included, "
            f"{len(self._gone | self._away)} away, {self.metrics.totals.total(UP) / 1e6:.1f} MB up"
        )

    # --- what goes wrong ----------------------------------------------------------

    def _cost(self, name: str, task: Any) -> float:
        """Virtual seconds of a client's task; a drop-out is planned here."""
        aims = getattr(task, "aims", None)
        if not aims:
            return 0.0
        version = int(aims[0].version)
        delays, seed = self.scenario.delays, self.scenario.section.seed
        seconds = float(task.work) * delays.train_seconds(seed, name, version)
        if delays.drops(seed, name, version) and (name, version) not in self._dropped:
            self._dropped.add((name, version))
            loop, downtime = self.simulation.loop, self.scenario.section.downtime
            loop.call_later(seconds / 2, lambda: self._drop(name))
            loop.call_later(seconds / 2 + downtime, lambda: self._come_back(name))
        return seconds

    def _come(self, name: str) -> None:
        self._away.discard(name)
        self.simulation.start(name)

    def _leave(self, name: str) -> None:
        self._away.add(name)
        self._gone.discard(name)
        self._kill(name)

    def _drop(self, name: str) -> None:
        if name not in self._away and not self.simulation.parties[name].halted.done():
            self._gone.add(name)
            self._kill(name)

    def _kill(self, name: str) -> None:
        self.simulation.kill(name)
        self._links.cut(name)

    def _come_back(self, name: str) -> None:
        if name in self._gone:
            self._gone.discard(name)
            self.simulation.start(name)

    def _delay(self, sender: str, to: str, message: Any) -> float:
        if isinstance(message, Prepared):
            own = self.scenario
            return own.delays.version_seconds(own.section.seed, message.group, message.version)
        return self._links.between(sender, to, message, self.simulation.loop.now())

    def _adding(self, shard: str, blocks: int) -> float:
        return self._links.adding(shard, blocks, self.simulation.loop.now())
