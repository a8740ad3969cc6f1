"""`secureps simulate`: plays a scenario in virtual time, and writes its report folder.

    OUT/metrics.jsonl       one line per version (`run.report.version_metrics`), in virtual time
    OUT/curves.png          scores and bytes over virtual time
    OUT/waiting.png         the clients that versions waited for
    OUT/summary.json        the results
    OUT/checkpoints/        as a coordinator and its shards write them
    OUT/model.safetensors   the final model, by tensor name

Clients train, drop out, come back and leave. The same scenario gives the same metrics and the same
model, bit for bit.
"""

from __future__ import annotations

import gc
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from secureps.client.initial_model import LocalTensors
from secureps.client.trainer import Setting, Trainer
from secureps.crypto.sampling import NO_PRIVACY, UnsafeSeed
from secureps.crypto.suite import refuse_unsealable
from secureps.errors import ConfigError, DiskFailed, ScriptFailed, naming
from secureps.files.objects import ObjectStore
from secureps.messages.requests import UP, Prepared, Reply, Request
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import Outcome
from secureps.policy.explain.explanation import row_block_words, touched_by_few
from secureps.policy.spending import adjacency, total_epsilon
from secureps.policy.tensor_kinds import refuse_statistics, refuse_trained
from secureps.roles.machine import Machine
from secureps.run.initial_schema import settle_schema
from secureps.run.processes.signals import Terminated, terminable
from secureps.run.report.plots import CURVES, Sheet, draw, why_undrawable
from secureps.run.report.terminal import fold_versions
from secureps.run.report.version_metrics import DOWN, Extras, Metrics, Sinks, Tell, open_sinks
from secureps.run.script.scoring import Judge, Look, Score
from secureps.run.simulate.last_words import naming_last_call
from secureps.run.simulate.ray_cluster import Cluster, RayCalls, SpreadTrainer, ray_cluster
from secureps.run.simulate.scenario_file import Scenario, load_scenario
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.run.up.folder import METRICS, new_folder
from secureps.run.warm import warm_once
from secureps.scenario.delays import Links
from secureps.service.checkpoint_copies import CheckpointCopies
from secureps.service.environment import Meter
from secureps.store.checkpoint import write_state
from secureps.wording import join_alike

Engine = Literal["here", "ray"]
"""The place where clients train."""


@terminable(Terminated)
def simulate(
    path: Path,
    out: Path | None = None,
    say: Say = print,
    extras: Extras | None = None,
    engine: Engine = "here",
    copies: str | None = None,
) -> Path:
    """Plays a scenario, and writes its report into a folder that it returns.

    Args:
        out: the report's folder, which must be empty; default: runs/NAME.
        copies: the URL below which checkpoints are copied, under the name of the report's folder.

    Raises:
        ConfigError: the folder is not empty, or the scenario is wrong.
        DiskFailed: a checkpoint was not copied; the report is written before.
        SecurepsError: something ended the run early; if a rule failed or members were too few, the
            report is written before.
    """
    scenario, extras = load_scenario(path), extras or Extras()
    folder = out if out is not None else Path("runs") / scenario.section.name
    heading = scenario.heading(folder)
    extras.require(heading)
    refuse_unsealable(scenario.plan.opening)
    copy = None if copies is None else _make_copies(copies, folder)
    with ray_cluster() if engine == "ray" else nullcontext() as cluster:
        new_folder(folder)
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
        opened = open_sinks(heading, folder / METRICS, extras)
        with naming_last_call(), Sinks(opened, say) as sinks:
            play = Play(scenario, folder, sinks.add, cluster, copy)
            try:
                play.run(say)
            except KeyboardInterrupt:
                say(f"stopped: {folder} has what there was until then; to play again, remove it")
                raise
            summary = play.summary()
            sinks.close(summary)
    _write_report(play, summary, say)
    left = "" if copy is None else copy.copy()
    play.simulation.refuse_failed()
    if left:
        raise DiskFailed(f"checkpoints are in {folder}, and not all of them at the store: {left}")
    return folder


def _make_copies(url: str, folder: Path) -> CheckpointCopies:
    """Opens an empty place below a URL for copies; ConfigError or DiskFailed."""
    with naming("--copies", ConfigError):
        store = ObjectStore(f"{url.rstrip('/')}/{folder.resolve().name}/checkpoints")
        if store.sizes():
            raise ConfigError(f"{store.name} has something: name another --out, or another URL")
        store.demand_bucket()
    return CheckpointCopies(COORDINATOR, folder / "checkpoints", store)


def _write_report(play: Play, summary: Mapping[str, Any], say: Say) -> None:
    scenario, folder = play.scenario, play.folder
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
    say(why_undrawable() or f"curves: {folder / CURVES}")


# --- play --------------------------------------------------------------------------


Say = Callable[[str], None]

REPEATABLE = (UP, DOWN, "network_seconds")
"""The figures that are the same in each play; all others are seconds of this machine."""

FIRST = 1
"""The version by which all clients that come at the beginning have joined."""

OFTEN = 1000
"""Requests after which the coordinator's window of reports is read, before it overflows."""


class CoordinatorWatch(Meter):
    """Notes when the coordinator changes, so that the run is not inspected after each event.

    Most of a simulation's millions of events are its clients'. `changed` says that the coordinator
    has handled something, and `requests` counts requests, each with at most two reports; the
    reader resets both.
    """

    def __init__(self) -> None:
        self.changed = True
        self.requests = 0

    def on_request(self, message: Request, answer: Future[Reply]) -> None:
        self.requests += 1

    def on_state(self, machine: Machine, now: float) -> None:
        self.changed = True


class Play:
    """Plays a scenario: drop-outs, stays, and a line for every version.

    Args:
        cluster: trains the clients; None: this process does.
    """

    def __init__(
        self,
        scenario: Scenario,
        folder: Path,
        tell: Tell,
        cluster: Cluster | None = None,
        copies: CheckpointCopies | None = None,
    ) -> None:
        self.scenario, self.folder, self.cluster, self.copies = scenario, folder, cluster, copies
        self.metrics = Metrics(tell, True, REPEATABLE)
        self._dropped: set[tuple[str, int]] = set()
        self._gone: set[str] = set()
        self._waited = 0
        self._watch, self._finished = CoordinatorWatch(), False
        self._away = {name for name, stay in scenario.stays.items() if stay.comes}
        self._seen: dict[str, int] = dict.fromkeys(scenario.plan.groups, -1)
        script = scenario.script()
        holders = {name: scenario.settings(i) for i, name in enumerate(scenario.clients)}
        with naming(f"{scenario.section.name}: settings", ConfigError, script.path):
            trainers = {
                name: self._spread(script.make(settings), settings, self.folder / name)
                for name, settings in holders.items()
            }
        first = scenario.clients[0]
        look = Look.at(trainers[first])
        with naming(scenario.section.name):
            refuse_statistics(scenario.plan, look.schema, look.kinds)
            refuse_trained(scenario.plan, look.schema, look.kinds)
            look.refuse_unusable(scenario.plan)
            given = scenario.plan.section.initial
            initial = None if given is None else settle_schema(scenario.plan, look.schema)
            asked = trainers if scenario.plan.section.tables else {}
            touching = Counter(
                block
                for name, trainer in asked.items()
                if name != scenario.plan.evaluator
                for block in look.find_touched(scenario.plan, trainer)
            )
        few = touched_by_few(scenario.plan, touching)
        self._remarks = tuple(row_block_words(scenario.plan, few))
        self._links = Links(scenario.delays, scenario.section.seed, scenario.section.shards)
        self.judge = Judge(
            *(scenario.plan, script, holders, holders[first], look),
            lambda name: LocalTensors(self.folder / name).load(),
            trainers,
        )
        self._score: Score | None = None
        seed = UnsafeSeed(scenario.section.seed)
        self.simulation = Simulation(
            scenario.plan,
            Cast(trainers, seed, self._cost, scenario.records),
            self.folder,
            Conditions(
                delay=self._delay,
                late=frozenset(self._away),
                meter=lambda name: self._watch if name == COORDINATOR else Meter(),
                adding=lambda shard, blocks: self._links.adding(
                    shard, blocks, self.simulation.loop.now()
                ),
                idle=True,
            ),
            initial,
        )
        for name, stay in scenario.stays.items():
            if stay.comes:
                self.simulation.loop.call_later(stay.comes, partial(self._come, name))
            if stay.leaves is not None:
                self.simulation.loop.call_later(stay.leaves, partial(self._leave, name))

    def _spread(self, own: Trainer, settings: Mapping[str, Setting], state: Path) -> Trainer:
        if self.cluster is None:
            return own
        return SpreadTrainer(own, RayCalls(self.cluster, self.scenario.source, settings, state))

    def run(self, say: Say) -> None:
        for remark in self._remarks:
            say(remark)

        def until() -> bool:
            watch = self._watch
            if watch.changed:
                watch.changed, versions = False, self.simulation.versions()
                if versions != self._seen:
                    self._gather()
                    say(self._publish(versions))
                    if max(self._seen.values()) < FIRST:
                        settled()
                    self._seen = versions
                    if self.copies is not None:
                        self.copies.copy()  # an error that persists is reported at the end
                elif watch.requests >= OFTEN:
                    self.metrics.take(self.simulation.coordinator.telemetry)
                    watch.requests = 0
                self._finished = bool(self.simulation.coordinator.federation.finished)
            return self._finished and self._is_nobody_playing()

        with collecting_seldom() as settled:
            self.simulation.run(until)
        self._gather()

    def _gather(self) -> None:
        coordinator = self.simulation.coordinator
        self.metrics.take(coordinator.telemetry)
        results = coordinator.federation.trail.newest
        self.metrics.add_evaluations(results, self.scenario.plan.groups)
        self.metrics.settle()

    @property
    def epsilon(self) -> float | None:
        """The largest epsilon of a client, as if the noise were secret; None without privacy."""
        plan, ledger = self.scenario.plan, self.simulation.coordinator.federation.ledger
        if plan.section.privacy is None:
            return None
        return max(total_epsilon(plan, ledger.tally(name)) for name in self.scenario.clients)

    def summary(self) -> dict[str, Any]:
        totals, clients = self.metrics.totals, self.scenario.clients
        updates = totals.updates_by_party()
        federation = self.simulation.coordinator.federation
        return {
            "name": self.scenario.section.name,
            "finished": federation.finished,
            "failure": federation.failure,
            "virtual_seconds": self.simulation.loop.now(),
            "versions": self.simulation.versions(),
            "score": asdict(self._score) if self._score is not None else None,
            "notes": [*self._failed(), *self.judge.notes],
            "evaluations": [asdict(result) for result in federation.trail.newest],
            "bytes_up": totals.total(UP),
            "bytes_down": totals.total(DOWN),
            "updates": {name: updates[name] for name in clients},
            "epsilon": self.epsilon,
            "adjacency": adjacency(self.scenario.plan),
            "unsafe": True,
            "privacy": NO_PRIVACY,
        }

    def _failed(self) -> list[str]:
        left = self.simulation.left.items()
        return join_alike({name: str(e) for name, e in left if isinstance(e, ScriptFailed)})

    def _is_nobody_playing(self) -> bool:
        names = self.scenario.clients
        for _ in names:  # begin at the client found last: checking all at every event is slow
            if self._is_playing(names[self._waited]):
                return False
            self._waited = (self._waited + 1) % len(names)
        return True

    def _is_playing(self, name: str) -> bool:
        here = name not in self._gone and name not in self._away
        return here and not self.simulation.parties[name].halted.done()

    def _publish(self, versions: Mapping[str, int]) -> str:
        """Adds lines for the groups with a new version; returns a line of progress."""
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
            found = self.judge.score(simulation.model())
            if found is not None:
                self._score = found
                self.metrics.add_scores(versions, found.metrics)
                score = f", {self._score.measure} {self._score.value:.3f}"
        newest = fold_versions(versions, wanted)
        return (
            f"t={now:9.1f} s  version {newest}{score}, {included} included, "
            f"{len(self._gone | self._away)} away, {self.metrics.totals.total(UP) / 1e6:.1f} MB up"
        )

    # --- drop-outs and stays ------------------------------------------------------

    def _cost(self, name: str, task: Any) -> float:
        """Returns the virtual seconds of a client's task, and schedules its drop-out."""
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


# --- garbage collection -----------------------------------------------------------

SELDOM = (50_000, 10, 10)
"""The thresholds of the garbage collector (`gc.set_threshold`; by default 700, 10, 10)."""


@contextmanager
def collecting_seldom() -> Iterator[Callable[[], None]]:
    """Makes the garbage collector run seldom, and ignore objects that exist now.

    Clients keep millions of objects, among which the collector would search in vain. Call the
    yielded function once all clients are there, to ignore theirs too. In a process that has frozen
    objects already nothing is frozen, because `gc.unfreeze` would free its objects too.
    """
    before, held = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(*SELDOM)
    try:
        if held:
            yield lambda: None
        else:
            gc.freeze()
            yield gc.freeze
    finally:
        gc.set_threshold(*before)
        if not held:
            gc.unfreeze()
