"""The servers of a run inside Flower's engine: coordinator and shards, in threads of a ServerApp.

Theory of operation. The servers are those of `secureps serve`; only clients reach them otherwise,
by a `wire.waves.batch.Relay`. `strategy.SecureFedAvg` runs Flower's loop and carries messages
between Flower's grid and the relay. `mod.secureps_mod` is the client's end, and plays one wave of a
client for each message (`service.one_wave`). `post` has the form of these messages. Key holders
connect to the coordinator as processes (`run_holders`), or nodes relay to them.

What happens to one update:

    asked     Flower's loop hands its train messages to `strategy`, which sends waves instead, until
              the next version is made
    sent      `Waves` puts the relay's news for a node, and the published blocks that it will ask
              for (`Aggregator.answer_ahead`), into one signed batch
    sealed    `mod.secureps_mod` lets the client's machine train by the app, and seal
    taken     `Waves` verifies the node's batch, and the relay performs it at coordinator and shards
    made      the shards make the version; `Aggregator.model` gives it to Flower's loop

What survives a kill. Journals are on disk, and a ServerApp that starts again in the same folder
continues (`found_run`). A node's client has its own state folder. A simulation does not wait for
the disk (`durability.skip_waits`), because it has no real records.

RUN/plan.toml, RUN/initial.safetensors    the plan and version 0
RUN/kit/                                  the kit of a simulation, for all parties
RUN/state/NAME/, RUN/checkpoints/         files of coordinator and shards
RUN/config/, RUN/logs/                    files of key holders that are started here

Guards. `refuse_unfit` refuses plans whose promises Flower's engine cannot keep. `strategy` refuses
code that would see single updates, or continue from another model. `mod` refuses messages that the
app would answer in the clear. Look first at `_start` for the servers, and at `Waves` for messages.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from secureps.client.flower.server import optimizer_of
from secureps.client.initial_model import ServerAppRecords, write_served
from secureps.client.trainer import Array
from secureps.config.plan import (
    GroupSection,
    OptimizerSection,
    PlanSection,
    RecordPrivacySection,
    SyncSection,
)
from secureps.config.sections import toml_tables
from secureps.crypto.cipher import Opening
from secureps.crypto.identity import Identity
from secureps.crypto.roster import Roster
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ConfigError, NotReady, PlanRefused, SecurepsError, from_wire
from secureps.flower.post import log
from secureps.messages.orders import Published
from secureps.messages.requests import AskRun, AskStatus, GetBlock, Payload, Status, Welcome
from secureps.messages.run import COORDINATOR, TRAIN_METRICS, ShardAddress
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan, load_plan
from secureps.run import assemble
from secureps.run.initial_schema import read_initial_schema
from secureps.run.processes.spawning import SECUREPS, Program
from secureps.run.processes.supervisor import Died, Supervisor
from secureps.run.server_app import MODEL, PLAN, with_optimizer
from secureps.run.up.folder import (
    Cast,
    RunFolder,
    client_names,
    holder_names,
    make_kit,
    new_folder,
    shard_names,
    write_holders,
)
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.loop import RealLoop
from secureps.service.malloc import keep_whole
from secureps.service.process import KitWatch, authenticator, choose_address, make_link, turn
from secureps.service.shard.states import ShardFolders
from secureps.store import durability
from secureps.store.atomic_file import replace_text, secure_folder
from secureps.store.backup import demand_owner
from secureps.store.journal import DatedJournal, SqliteJournal
from secureps.store.keyring import FLOWER, check_fits, load_private, load_public, load_seed
from secureps.store.spool import DiskSpool
from secureps.wire.grpc.servers import CoordinatorServer
from secureps.wire.msgpack import encode
from secureps.wire.transport import InProcessNetwork
from secureps.wire.waves.batch import WAVE_DOMAIN, Entry, Relay, make_answer, request_digest

ANSWER, LOOK = 600.0, 1.0
"""Seconds within which a server must answer, and between two checks whether it has ended."""
MOST_BYTES_A_VALUE = 64
"""An upper bound of the bytes of one value in a sealed block, under any cipher."""

Tensors = dict[str, NDArray[Any]]
T = TypeVar("T")


class Aggregator:
    """Coordinator, shards and relay of one run; a context. KitError if the kit is not this plan's.

    Args:
        kit: the folder with the public part, and the private keys of coordinator and shards.
        folder: the folder of states and checkpoints.
        listen: HOST:PORT at which key holders reach the coordinator; empty if they are nodes.
        simulated: whether all parties are on this machine.
    """

    def __init__(
        self,
        plan: Plan,
        kit: Path,
        folder: Path,
        listen: str,
        simulated: bool,
        unsafe_seed: int | None = None,
    ) -> None:
        self.plan = plan
        self.simulated = simulated
        self.kit = load_public(kit)
        check_fits(self.kit, plan.opening, plan.holders)
        self._folder, self._kit, self._unsafe_seed = RunFolder(folder), kit, unsafe_seed
        self._identity: Identity = load_private(kit, COORDINATOR)
        self._initial = read_initial_schema(plan)
        self.news = threading.Event()
        """Is set when there may be something to send to a client."""
        self._parties: dict[str, Executor] = {}
        self._closing = ExitStack()
        state = self._folder.state(COORDINATOR)
        secure_folder(state)
        held = choose_address(state, listen) if listen else nullcontext("")
        self.address = self._closing.enter_context(held)
        self._blocks: dict[tuple[str, int, int], Payload] = {}
        self.relay: Relay

    def __enter__(self) -> Self:
        if self.simulated:  # all of Flower's simulation is in this process
            keep_whole()
        with ExitStack() as starting:
            starting.callback(self._closing.close)
            self._closing.enter_context(durability.skip_waits(self.simulated))
            self._start(COORDINATOR)
            for name in shard_names(self.plan.section.shards):
                self._start(name)
            starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    # --- what clients get ---------------------------------------------------------

    @property
    def roster(self) -> Roster:
        followed = self._parties[COORDINATOR].roster or self.kit.roster
        return max(self.kit.roster, followed, key=lambda each: each.place)

    @property
    def run(self) -> bytes:
        """The run's id; empty before it is founded."""
        return self._parties[COORDINATOR].run

    def sign_wave(self, data: bytes) -> bytes:
        return self._identity.sign(WAVE_DOMAIN, data)

    @property
    def update_bytes(self) -> int:
        """An upper bound of the bytes of one update's blocks, under any cipher."""
        tensors = () if self._initial is None else self._initial.tensors
        return MOST_BYTES_A_VALUE * sum(math.prod(spec.shape) for spec in tensors)

    def flush_orders(self) -> None:
        """Waits until the coordinator has sent all orders that follow from the requests so far."""
        told: Future[None] = Future()
        self._parties[COORDINATOR].later(partial(told.set_result, None))
        self._wait_for(COORDINATOR, told)

    def answer_ahead(self, orders: Iterable[object]) -> tuple[list[Entry], dict[bytes, bytes]]:
        """Answers, with payloads, what a client will ask for after these orders."""
        entries, payloads = list[Entry](), dict[bytes, bytes]()
        newest = {order.group: order for order in orders if isinstance(order, Published)}
        for order in newest.values():
            for owner, ask in self._asks(order.group, order.version):
                with suppress(SecurepsError):  # the client gets the error when it asks
                    reply = self._block(owner, ask)
                    entries.append(make_answer(request_digest(owner, encode(ask)), reply))
                    payloads[reply.digest] = bytes(reply.payload)
        return entries, payloads

    def _asks(self, group: str, version: int) -> list[tuple[str, GetBlock]]:
        """Makes the requests for all blocks of a version, each with the block's owner."""
        owners = enumerate(self._welcome.placement.of(group).owners)
        return [(owner, GetBlock(self.run, group, version, block)) for block, owner in owners]

    def _block(self, owner: str, ask: GetBlock) -> Payload:
        """Fetches a published block, once for all clients."""
        place = (ask.group, ask.version, ask.block)
        if place not in self._blocks:
            found = self._ask(owner, ask)
            assert isinstance(found, Payload)
            kept = self._blocks.items()
            self._blocks = {k: v for k, v in kept if k[0] != ask.group or k[1] >= ask.version}
            self._blocks[place] = Payload(found.digest, bytes(found.payload))
        return self._blocks[place]

    # --- how the run stands -------------------------------------------------------

    def status(self) -> Status:
        """Returns the run's status; raises what ended a server, or the run too early."""
        self._refuse_ended()
        found: Status = self._ask(COORDINATOR, AskStatus())
        if found.finished and found.failure:
            raise from_wire(found.failure, found.finished, None)
        return found

    def _refuse_ended(self) -> None:
        for executor in self._parties.values():
            if executor.halted.done():
                halt = executor.halted.result()
                raise (halt.error or SecurepsError)(halt.reason)

    def model(self) -> Tensors | None:
        """Assembles the published model; None before there is one."""
        versions = {group.name: group.version for group in self.status().groups}
        if min(versions.values()) < 0:
            return None
        run = self._welcome.run
        layout = Plan.from_text(run.plan).layout(run.schema)

        def values(group: GroupLayout) -> list[NDArray[np.float32]]:
            asks = self._asks(group.name, versions[group.name])
            return [np.frombuffer(self._block(*each).payload, "<f4") for each in asks]

        return layout.assemble(values)

    @cached_property
    def _welcome(self) -> Welcome:
        found: Welcome = self._ask(COORDINATOR, AskRun())
        return found

    def _ask(self, server: str, message: Any) -> Any:
        return self._wait_for(server, self._parties[server].request(COORDINATOR, message))

    def _wait_for(self, server: str, answer: Future[T]) -> T:
        """Waits for a server's answer; raises NotReady after ANSWER, or what ended a server."""
        until = time.monotonic() + ANSWER
        while time.monotonic() < until:
            try:
                return answer.result(LOOK)
            except TimeoutError:
                self._refuse_ended()
        raise NotReady(f"{server} has not answered for {ANSWER:g} s: is this machine overloaded?")

    # --- servers ------------------------------------------------------------------

    def _start(self, name: str) -> None:
        state = self._folder.state(name)
        secure_folder(state)
        rows, role = SqliteJournal(state / "journal.db"), self.kit.roster.find(name).role
        journal = DatedJournal(rows, name, role, time.time)
        self._closing.enter_context(closing(journal))
        demand_owner(state, role, name)
        loop = RealLoop(journal.last)
        if name == COORDINATOR:
            self._network = InProcessNetwork(loop)
            self.relay = Relay(self._network, loop, lambda party: self.news.set())
        jitter = random.SystemRandom()
        around = Environment(self._network.transport(name), loop, lambda: jitter.uniform(0.5, 1.5))
        executor = self._make(name, Stores(journal, DiskSpool(state / "spool"), state), around)
        self._parties[name] = executor
        self._network.attach(name, executor)
        executor.start()
        KitWatch(name, executor, self._kit).start()
        thread = threading.Thread(target=turn, args=(loop, executor), name=name, daemon=True)
        thread.start()

        def stop() -> None:
            executor.stop()
            loop.stop()
            thread.join(ANSWER)

        self._closing.callback(stop)
        if name == COORDINATOR and self.plan.holders and self.address:
            link = make_link(self._kit, name, self.kit.ca, insecure=False)
            check = authenticator(lambda: self.roster)
            server = CoordinatorServer(link, executor, self.address, check)
            server.start()
            self._closing.callback(lambda: server.stop(0.0))

    def _make(self, name: str, stores: Stores, around: Environment) -> Executor:
        checkpoints = self._folder.checkpoints
        if name == COORDINATOR:
            # If holders checked cohorts beforehand, every round would cost another wave if they are
            # nodes, and in a simulation a round trip during which all wait.
            looks = bool(self.address) and not self.simulated
            founding = (self.plan, self._initial, os.urandom(32), looks)
            run = assemble.pinned_run(self.kit, *founding)
            return assemble.make_coordinator(run, checkpoints, stores, around)
        address = ShardAddress(name, "in-process:1", 1.0)
        folders = ShardFolders(stores.folder / "states", checkpoints)
        unsafe = self._unsafe_seed
        seed = load_seed(stores.folder / "seed") if unsafe is None else UnsafeSeed(unsafe)
        return assemble.make_shard(self.kit, address, seed, folders, stores, around)


# --- key holders --------------------------------------------------------------------


DEPLOYED = (*SECUREPS, "serve", "keyholder", "--config")
SIMULATED = (sys.executable, "-P", "-m", "secureps.flower.simulated_holder")
"""The commands that start a key holder; its configuration's file is the last argument."""


@contextmanager
def run_holders(
    plan: Plan, root: Path, kit: Path, address: str, simulated: bool
) -> Iterator[Callable[[], None]]:
    """Runs key holders as processes on this machine while the `with` lasts.

    A holder whose private keys are in the run's kit is started here, as `secureps serve keyholder`,
    or in a simulation as `flower.simulated_holder`, which does not wait for the disk. Other holders
    connect to the coordinator's address, which is empty if nodes relay to key holders.

    Yields a function that starts dead processes again; OperatorError if they die repeatedly.
    """
    folder, program = RunFolder(root), SIMULATED if simulated else DEPLOYED
    holders = [each.name for each in load_public(kit).roster.holders()] if address else []
    own = [name for name in holders if (kit / "private" / name).is_dir()]
    write_holders(folder, plan, tuple(own), address, kit)
    with Supervisor(folder.logs) as supervisor:
        for name in own:
            command = (*program, str(folder.config(name)))
            supervisor.start(Program(name, command, dict(os.environ), may_finish=True))
        for name in sorted(set(holders) - set(own)):
            log.info("waits until key holder %s connects to %s", name, address)

        def restart_dead() -> None:
            for each in supervisor.poll():
                if isinstance(each, Died):
                    log.warning("%s died (%s), and is started again", each.name, each.how)

        yield restart_dead


# --- federation --------------------------------------------------------------------

KIT = "kit"


def found_run(
    root: Path,
    plan: PlanSection,
    model: Mapping[str, Array],
    strategy: Any,
    rounds: int,
    clients: int,
    metrics: Mapping[str, float],
) -> Plan:
    """Makes a run's folder with its plan and version 0, or continues an existing run.

    The plan is the app's own, with the optimizer and the number of training nodes from Flower's
    `strategy`. `metrics` gives the largest magnitude of each training metric. Raises ConfigError or
    PlanRefused if the plan cannot run inside Flower's engine.
    """
    if (root / PLAN).exists():
        return load_plan(root / PLAN)
    section, _ = with_optimizer(plan, optimizer_of(strategy))
    groups = tuple(_set_fraction(group, strategy, clients) for group in section.group)
    if metrics:
        model = {**model, TRAIN_METRICS: np.zeros(len(metrics), np.float32)}
        groups = (_group_of_metrics(section, groups[0], len(metrics)), *groups)
    initial = (root / MODEL).resolve()
    update = {"group": groups, "versions": rounds, "initial": str(initial)}
    section = section.model_copy(update=update)
    refuse_unfit(section)
    new_folder(root)
    write_served(initial, model, ServerAppRecords(names=tuple(model)))
    body = section.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    fresh = root / f"{PLAN}.new"
    replace_text(fresh, toml_tables(body))
    load_plan(fresh)
    shutil.move(fresh, root / PLAN)
    return load_plan(root / PLAN)


def _set_fraction(group: GroupSection, strategy: Any, clients: int) -> GroupSection:
    """Sets the fraction that draws as many nodes as Flower's strategy would."""
    fraction = float(getattr(strategy, "fraction_train", 1.0))
    least = int(getattr(strategy, "min_train_nodes", 1))
    rule, wanted = group.rule, max(int(clients * fraction), least)
    if not isinstance(rule, SyncSection) or "fraction" in rule.model_fields_set:
        return group
    if wanted >= clients:
        return group
    exact = int(clients * fraction) == wanted
    share = fraction if exact else (wanted + 0.5) / clients
    return group.model_copy(update={"rule": rule.model_copy(update={"fraction": share})})


def _group_of_metrics(section: PlanSection, first: GroupSection, count: int) -> GroupSection:
    """Makes the group of the metrics' tensor, which trains with the first group.

    Raises PlanRefused under privacy, where metrics would need noise, and a charge, of their own.
    """
    if section.privacy is not None:
        raise PlanRefused(
            "train_metrics: under [privacy] they would have noise, and be charged, as the update "
            "is: leave them out"
        )
    step = OptimizerSection(name="sgd", learning_rate=1.0)
    own: dict[str, Any] = {"name": "train_metrics", "pattern": TRAIN_METRICS, "optimizer": step}
    # Each metric lies in [-1, 1] (`AppTrainer`), so its mean moves by 2 at most.
    bounds = {"range": 2.0, "clip": 2.0 * math.sqrt(count), "bits": 16}
    plain = {"adaptive": None, "codec": (), "feedback": False, "pull_bits": None}
    return first.model_copy(update=own | bounds | plain | {"sparse": None, "tier": None})


def refuse_unfit(section: PlanSection) -> None:
    """Raises PlanRefused for a plan that cannot run inside Flower's engine."""
    if isinstance(section.privacy, RecordPrivacySection):
        raise PlanRefused(
            'privacy: a Flower app takes steps of its own, which nobody accounts: unit = "client" '
            "protects its updates as a whole, inside Flower too"
        )
    if section.evaluation is not None:
        raise PlanRefused(
            "evaluation: inside Flower's engine its own messages evaluate: fraction_evaluate of "
            "SecureFedAvg; their metrics are not encrypted"
        )
    for key in ("frozen", "local"):
        if getattr(section, key):
            raise PlanRefused(
                f"{key}: inside Flower's engine a node has no model of its own before the run: "
                "send only the tensors that are trained, as the app's ArrayRecord"
            )
    if Plan(section).opening is Opening.HOLDER:
        raise PlanRefused(
            'cipher.name = "bfv": its key holder fetches sums from shards, which are reached by '
            'nobody inside Flower\'s engine: take "rlwe"'
        )


def simulated_kit(root: Path, plan: Plan, clients: int) -> Path:
    """Makes a kit for all parties of a simulation; KitError if the disk refuses."""
    kit = root / KIT
    if kit.exists():
        return kit.resolve()
    shards, holders = shard_names(plan.section.shards), holder_names(plan.holders)
    make_kit(kit, plan, Cast(shards, holders, client_names(clients)), host=FLOWER)
    return kit.resolve()


def find_plan(given: str | Path, places: tuple[Path, ...]) -> Path:
    """Finds the plan's file in the working folder or in `places`; else ConfigError."""
    for place in (Path(), *places):
        if (place / given).is_file():
            return (place / given).resolve()
    raise ConfigError(
        f"{given}: no such plan in the working folder, nor among the app's files: is it part of "
        "what `flwr run` sends (fab-include in pyproject.toml)?"
    )
