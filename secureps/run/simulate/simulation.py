"""`secureps simulate`: plays a whole federation in one process, in virtual time.

Theory of operation. Machines, workers and executors are those of the real processes. Only the
transport (`InProcessNetwork`), the clock (`VirtualLoop`) and most stores are others, in memory.
`simulate` plays a scenario and writes its report; tests use `Simulation` alone.

What happens in one play:

    made      `make_memory_kit` makes keys for all parties; `start` makes each party (`_make`)
    played    `run` performs the loop's next action until `until`, or until every client has ended.
              Training and adding take the virtual seconds that `Cast` and `Conditions` say.
    disturbed `kill`, `start` and `lose` act on a party like SIGKILL, a service manager and a dead
              disk
    examined  `coordinator`, `versions` and `model` read what came of it

What survives a `kill` are the party's `Stores`, as files would; `lose` empties them. A client's
ledger (`_ledgers`) outlives both. A simulation is a function of its inputs, so it can be repeated.

Nothing here protects data: the seeds are known, and no attacker is kept out. `run` raises the error
of a party that should not have ended, and fails when no event is left, so that a deadlock shows.

    OUT/metrics.jsonl       one line per version (`run.report.version_metrics`), in virtual time
    OUT/curves.png          scores and bytes over virtual time
    OUT/waiting.png         the clients that versions waited for
    OUT/summary.json        the results
    OUT/checkpoints/        as a coordinator and its shards write them
    OUT/model.safetensors   the final model, by tensor name

Look first at `Conditions` for what a play may vary.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from secureps.client.initial_model import LocalTensors
from secureps.client.runner import make_member
from secureps.client.trainer import Setting, Trainer
from secureps.client.worker import Site
from secureps.crypto.identity import Identity, Role
from secureps.crypto.roster import certify, sign_roster
from secureps.crypto.sampling import NO_PRIVACY, Seed, UnsafeSeed
from secureps.crypto.secret import Secret
from secureps.crypto.suite import cipher, refuse_unsealable
from secureps.errors import (
    ConfigError,
    DiskFailed,
    InternalError,
    Refused,
    ScriptFailed,
    SecurepsError,
    from_wire,
    naming,
)
from secureps.files.objects import ObjectStore
from secureps.messages.encoding import file_digest, payload_digest
from secureps.messages.requests import UP, Prepared
from secureps.messages.run import COORDINATOR, STANDBY, Schema, ShardAddress
from secureps.messages.submission import Outcome
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency, total_epsilon
from secureps.policy.tensor_kinds import refuse_statistics, refuse_trained
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.reign import TAKES_OVER
from secureps.roles.holder.holder import HolderRules
from secureps.roles.machine import (
    Halt,
)
from secureps.roles.member.tasks import Contribute
from secureps.roles.member.terms import Terms, custom_reports
from secureps.roles.shard.state import Limit, model_key
from secureps.run import assemble
from secureps.run.initial_schema import settle_schema
from secureps.run.processes.signals import Terminated, terminable
from secureps.run.report.plots import CURVES, Sheet, draw, why_undrawable
from secureps.run.report.terminal import fold_versions
from secureps.run.report.version_metrics import DOWN, Extras, Metrics, Sinks, Tell, open_sinks
from secureps.run.script.scoring import Judge, Look, Score
from secureps.run.simulate.ray_cluster import Cluster, RayCalls, SpreadTrainer, ray_cluster
from secureps.run.simulate.scenario_file import Scenario, load_scenario
from secureps.run.up.folder import METRICS, holder_names, new_folder, shard_names
from secureps.run.warm import warm_once
from secureps.scenario.delays import Links
from secureps.service.checkpoint_copies import CheckpointCopies
from secureps.service.environment import Environment, Meter, Stores
from secureps.service.executor import Executor
from secureps.service.lead import ALONE
from secureps.service.loop import VirtualLoop
from secureps.service.shard.states import ShardFolders
from secureps.service.shard.worker import ShardWorker
from secureps.store.budget import BudgetLedger, MemoryLedger
from secureps.store.checkpoint import write_state
from secureps.store.envelope_keys import wrap_secret
from secureps.store.journal import Journal, MemoryJournal
from secureps.store.keyring import KINDS, PublicKit
from secureps.store.spool import MemorySpool, Spool
from secureps.tracebacks import dump_crashes
from secureps.wire.transport import Clock, DelayOf, InProcessNetwork, no_delay
from secureps.wording import join_alike


@dataclass(frozen=True)
class MemoryKit:
    """A start-up kit in memory, for one process that plays all parties.

    Changes that key holders make to their secrets outlive their machines, as files would.
    """

    public: PublicKit
    identities: Mapping[str, Identity]
    secrets: Mapping[str, Secret]


def make_memory_kit(plan: Plan, clients: tuple[str, ...], spares: int = 0) -> MemoryKit:
    """Makes keys for every party of a plan, and for `spares` more shards."""
    ca = Identity.generate()
    shards, holders = shard_names(plan.section.shards + spares), holder_names(plan.holders)
    roles: dict[str, Role] = {COORDINATOR: "coordinator"}
    roles |= dict.fromkeys(shards, "shard")
    roles |= dict.fromkeys(holders, "holder")
    roles |= dict.fromkeys(clients, "client")
    identities = {name: Identity.generate() for name in roles}
    secrets, keys, own = dict[str, Secret](), dict[str, bytes](), dict[str, bytes]()
    kind = KINDS.get(cipher(plan.cipher_parameters).opening)
    if kind is not None:
        for holder in holders:
            secret, public = kind.generate()
            own_key, keys[holder] = kind.secret(secret), kind.public(public)
            secrets[holder], own[holder] = wrap_secret(own_key), file_digest(public)
    roster = sign_roster(
        ca,
        [
            certify(ca, name, role, identities[name].public.key, own.get(name, b""))
            for name, role in roles.items()
        ],
    )
    return MemoryKit(PublicKit(ca.public, roster, keys), identities, secrets)


@dataclass(frozen=True)
class Cast:
    """The trainers of all clients by name, and the seed of their randomness.

    Args:
        cost: the virtual seconds of a client's task.
        records: the stated numbers of clients' records, by name; default: the plan's.
    """

    trainers: Mapping[str, Trainer]
    seed: Seed
    cost: Callable[[str, object], float] = lambda name, task: 0.0
    records: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Conditions:
    """The conditions of a simulation; stores are in memory by default.

    Args:
        late: parties that start when `Simulation.start` is called.
        spares: the number of shards beyond those of the plan, which start late too.
        standby: the coordinator has a standby.
        memory: the limit of each shard in bytes.
        adding: the virtual seconds that a shard takes to add up so many blocks of updates.
    """

    delay: DelayOf = no_delay
    network: Callable[[Clock, DelayOf], InProcessNetwork] = InProcessNetwork
    journal: Callable[[str], Journal] = lambda name: MemoryJournal()
    spool: Callable[[str], Spool] = lambda name: MemorySpool()
    late: frozenset[str] = frozenset()
    spares: int = 0
    standby: bool = False
    memory: int | None = None
    meter: Callable[[str], Meter] = lambda name: Meter()
    adding: Callable[[str, int], float] = lambda shard, blocks: 0.0


class Simulation:
    """A federation that plays in virtual time, with files of shards and checkpoints in `folder`."""

    def __init__(
        self,
        plan: Plan,
        cast: Cast,
        folder: Path,
        conditions: Conditions | None = None,
        initial: Schema | None = None,
    ) -> None:
        self.loop = VirtualLoop()
        self.plan = plan
        self.checkpoints = folder / "checkpoints"
        self._cast = cast
        self._folder = folder
        self._conditions = conditions or Conditions()
        self._initial = initial
        more = plan.section.most_shards - plan.section.shards
        self._kit = make_memory_kit(plan, tuple(cast.trainers), self._conditions.spares + more)
        self.network = self._conditions.network(self.loop, self._conditions.delay)
        self._stores: dict[str, Stores] = {}
        self._ledgers = defaultdict[str, BudgetLedger](MemoryLedger)
        self._seeds: dict[str, Seed] = {}
        self.parties: dict[str, Executor] = {}
        self._failed: set[str] = set()
        self.playing: set[str] = set()
        """Clients that have started, and neither ended nor were killed since."""
        self.ruler = COORDINATOR
        self._terms = Terms(messages=custom_reports(plan))  # simulated data needs no protection
        shards, holders = shard_names(plan.section.most_shards), holder_names(plan.holders)
        standby = (STANDBY,) if self._conditions.standby else ()
        for name in (COORDINATOR, *shards, *holders, *cast.trainers, *standby):
            if name not in self._conditions.late:
                self.start(name)

    # --- processes ----------------------------------------------------------------

    def start(self, name: str) -> None:
        executor = self._make(name)
        self.parties[name] = executor
        self._failed.discard(name)
        if name in self._cast.trainers:
            self.playing.add(name)
        executor.halted.add_done_callback(lambda done: self._ended(name, done))
        if name in (COORDINATOR, STANDBY) or name.startswith("shard-"):
            self.network.attach(name, executor)
        executor.start()

    def kill(self, name: str) -> None:
        """Ends a party at once, like SIGKILL; its journal and payloads stay."""
        self.network.detach(name)
        self.parties[name].stop()
        self._failed.discard(name)

    def lose(self, name: str, seed: Seed | None = None) -> None:
        """Empties the stores of a party that was killed, as if its disk were lost.

        `seed` replaces its lost secret seed (None: the same again); a coordinator derives the
        run's id from it. A client's ledger lies elsewhere and stays.
        """
        del self._stores[name]
        if seed is not None:
            self._seeds[name] = seed
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def close(self) -> None:
        for stores in self._stores.values():
            stores.journal.close()

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Plays until `until()`, or until the run has ended and every client knows.

        Raises:
            SecurepsError: the error of a party that should not have ended.
            InternalError: no event is left, and `until()` is false; if a client has left by an
                error, that error instead.
        """
        if not self.loop.run(lambda: bool(self._failed) or (until or self._over)()):
            self.refuse_failed()
            for error in self.left.values():  # the others wait for this client in vain
                raise error
            over = "after the end of the run, " if self.coordinator.federation.finished else ""
            raise InternalError(f"the simulation stands still: {over}{self.reasons()}")
        for name in self._failed:
            raise Refused(self.parties[name].halted.result().reason)

    def refuse_failed(self) -> None:
        federation = self.coordinator.federation
        if federation.finished and federation.failure:
            raise from_wire(federation.failure, federation.finished, None)

    @property
    def left(self) -> dict[str, SecurepsError]:
        ended = {n: e.halted for n, e in self.parties.items() if e.halted.done()}
        halts = {name: done.result() for name, done in ended.items() if not done.exception()}
        return {n: halt.error(f"{n}: {halt.reason}") for n, halt in halts.items() if halt.error}

    def _ended(self, name: str, halted: Future[Halt]) -> None:
        """Notes the end of a party, so that the loop need not check all parties."""
        self.playing.discard(name)
        if halted.exception() is None and halted.result().reason in (ALONE, TAKES_OVER):
            self.loop.call_later(0.0, lambda: self._restart(name))  # as its process does
            return
        stops = name not in self._cast.trainers  # the run goes on without a client
        if halted.exception() is not None or (stops and halted.result().error is not None):
            self._failed.add(name)

    def _restart(self, name: str) -> None:
        if self.parties[name].halted.done():  # false if it was killed and started meanwhile
            if self.parties[name].halted.result().reason == TAKES_OVER:
                self.ruler = name
            self.kill(name)
            self.start(name)

    def _over(self) -> bool:
        started = self._cast.trainers.keys() <= self.parties.keys()
        return bool(self.coordinator.federation.finished) and started and not self.playing

    # --- inspection ---------------------------------------------------------------

    @property
    def coordinator(self) -> Coordinator:
        machine = self.parties[self.ruler].machine
        assert isinstance(machine, Coordinator)
        return machine

    def reasons(self) -> str:
        groups = self.coordinator.federation.groups.values()
        return "; ".join(self.plan.head(group.name) + group.reason for group in groups)

    def versions(self) -> dict[str, int]:
        groups = self.coordinator.federation.model_groups
        return {group.name: group.version for group in groups}

    def model(self) -> dict[str, NDArray[np.generic]]:
        """The committed model, without local tensors, by name."""
        federation = self.coordinator.federation
        assert federation.pinned is not None
        layout = self.plan.layout(federation.pinned.run.schema)
        placement = federation.pinned.placement

        def values(group: GroupLayout) -> list[NDArray[np.float32]]:
            version = federation.groups[group.name].version
            return [
                np.frombuffer(
                    self._shard(owner).fetch(model_key(group.name, version, block)), dtype="<f4"
                )
                for block, owner in enumerate(placement.of(group.name).owners)
            ]

        return layout.assemble(values)

    def _shard(self, name: str) -> ShardWorker:
        worker = self.parties[name].worker
        assert isinstance(worker, ShardWorker)
        return worker

    # --- making parties -----------------------------------------------------------

    def _make(self, name: str) -> Executor:
        stores = self._stores.get(name)
        if stores is None:
            journal, spool = self._conditions.journal(name), self._conditions.spool(name)
            stores = self._stores[name] = Stores(journal, spool, self._folder / name)
        meter = self._conditions.meter(name)
        both = (COORDINATOR, STANDBY) if self._conditions.standby else (COORDINATOR,)
        places = tuple(place for place in both if place != name) or both
        way = self.network.transport(name, places)
        around = Environment(way, self.loop, lambda: 1.0, meter)
        public = self._kit.public
        if name == STANDBY and self.ruler != STANDBY:
            return assemble.make_standby(public, self.plan, payload_digest(b"1"), stores, around)
        if name in (COORDINATOR, STANDBY):
            nonce = payload_digest(name.encode())
            if name in self._seeds:
                nonce = self._seeds[name].derive("nonce").words(8).tobytes()
            founding = (self.plan, self._initial, nonce)
            run = assemble.pinned_run(public, *founding, elsewhere=self._conditions.standby)
            return assemble.make_coordinator(run, self.checkpoints, stores, around)
        if name.startswith("shard-"):
            address = ShardAddress(name, "in-process", 1.0)
            seed = self._seeds.get(name, self._cast.seed)
            memory, add = self._conditions.memory, partial(self._conditions.adding, name)
            folders = ShardFolders(stores.folder / "states", self.checkpoints)
            own = (address, seed, folders, stores, around, Limit(memory), add)
            return assemble.make_shard(public, *own)
        identity = self._kit.identities[name]
        if name in self._kit.secrets:
            minimum = min(self.plan.bounds(group).minimum for group in self.plan.all_groups)
            secret, rules = self._kit.secrets[name], HolderRules(minimum)
            return assemble.make_holder(public, name, identity, secret, rules, stores, around)
        cost, site = partial(self._cast.cost, name), self._site(name, stores.folder)
        return make_member(public, site, stores, around, cost, self._terms)

    def _site(self, name: str, folder: Path) -> Site:
        seed, keys = self._seeds.get(name, self._cast.seed), self._kit.public.holder_keys
        trainer, identity = self._cast.trainers[name], self._kit.identities[name]
        ledger = self._ledgers[name]
        own = (name, trainer, identity, seed, keys, folder)
        return Site(*own, records=self._cast.records.get(name), ledger=ledger)


# --- one command, and its report ---------------------------------------------------

Say = Callable[[str], None]


@terminable(Terminated)
def simulate(
    path: Path,
    out: Path | None = None,
    say: Say = print,
    extras: Extras | None = None,
    engine: Literal["here", "ray"] = "here",
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
        dump_crashes()
        with Sinks(opened, say) as sinks:
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

REPEATABLE = (UP, DOWN, "network_seconds")
"""The figures that are the same in each play; all others are seconds of this machine."""

READ_AFTER = 2000
"""Actions after which the coordinator's window of reports is read, before it overflows: each action
is at most one request, with at most two reports."""


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
        self._unread = 0
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
                adding=lambda shard, blocks: self._links.adding(
                    shard, blocks, self.simulation.loop.now()
                ),
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
        def until() -> bool:
            coordinator, versions = self.simulation.coordinator, self.simulation.versions()
            if versions != self._seen:
                self._gather()
                say(self._publish(versions))
                self._seen = versions
                if self.copies is not None:
                    self.copies.copy()  # an error that persists is reported at the end
            elif self._unread >= READ_AFTER:
                self.metrics.take(coordinator.telemetry)
                self._unread = 0
            self._unread += 1
            return bool(coordinator.federation.finished) and not self.simulation.playing

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
        if not isinstance(task, Contribute) or not task.aims:
            return 0.0
        version = task.aims[0].version
        delays, seed = self.scenario.delays, self.scenario.section.seed
        seconds = task.work * delays.train_seconds(seed, name, version)
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
