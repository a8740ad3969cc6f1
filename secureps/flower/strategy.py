"""`SecureFedAvg`: a strategy of Flower's that sees only the mean of all updates.

    strategy = SecureFedAvg(plan="plan.toml")
    result = strategy.start(grid, initial_arrays=arrays, num_rounds=3)

Theory of operation. Coordinator and shards are those of `secureps serve`, in threads of a
ServerApp (`Aggregator`); only clients reach them otherwise, by a `wire.waves.batch.Relay`.
`SecureFedAvg` runs Flower's loop and carries messages between Flower's grid and the relay.
`mod.secureps_mod` is the client's end, and plays one wave of a client for each message
(`service.one_wave`). `post` has the form of these messages. Key holders are threads, too, if their
private keys are in the run's kit; others connect to the coordinator, or nodes relay to them. Each
node has one message under way at a time, and the others do not wait for it. A node that does not
answer is asked again; its client then sends the update again that it has sealed already.

What happens to one update:

    asked     Flower's loop hands its train messages to `SecureFedAvg`, which sends waves instead,
              until the next version is made
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
RUN/state/NAME/, RUN/checkpoints/         files of coordinator, shards and own key holders

Guards. `refuse_unfit` refuses plans whose promises Flower's engine cannot keep. `SecureFedAvg`
refuses code that would see single updates, or continue from another model. `mod` refuses messages
that the app would answer in the clear. Look first at `_start` for the servers, and at `Waves` for
messages.
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
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore.run import Run
from numpy.typing import NDArray

from secureps.client.flower.server import optimizer_of, record_keys, strategy_name
from secureps.client.flower.trainer import FlowerModel
from secureps.client.initial_model import ServerAppRecords, write_served
from secureps.client.trainer import Array as ModelArray
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
from secureps.errors import (
    ConfigError,
    Malformed,
    NotReady,
    OperatorError,
    PlanRefused,
    SecurepsError,
    UnknownParty,
    WrongRun,
    from_wire,
    naming,
)
from secureps.exhaustion import disable_core_dumps
from secureps.flower import post
from secureps.flower.post import FORM, TOLD_KIT, TOLD_SEED, ModelForm, Said, log
from secureps.messages.orders import Invite, Published
from secureps.messages.requests import AskRun, AskStatus, GetBlock, Payload, Status, Welcome
from secureps.messages.run import COORDINATOR, TRAIN_METRICS, ShardAddress, wrong_run
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan, joint_groups, load_plan
from secureps.run import assemble
from secureps.run.initial_schema import read_initial_schema
from secureps.run.server_app import MODEL, PLAN, with_optimizer
from secureps.run.up.folder import (
    LISTEN,
    Cast,
    RunFolder,
    client_names,
    holder_names,
    make_kit,
    named_folder,
    new_folder,
    shard_names,
)
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.loop import RealLoop
from secureps.service.malloc import WHOLE, keep_pieces
from secureps.service.process import KitWatch, authenticator, choose_address, make_link, turn
from secureps.service.shard.states import ShardFolders
from secureps.store import durability
from secureps.store.atomic_file import replace_text, secure_folder
from secureps.store.backup import demand_owner
from secureps.store.journal import DatedJournal, SqliteJournal
from secureps.store.keyring import (
    FLOWER,
    check_fits,
    demand_host,
    load_private,
    load_public,
    load_seed,
)
from secureps.store.spool import DiskSpool
from secureps.wire.grpc.servers import CoordinatorServer
from secureps.wire.msgpack import encode
from secureps.wire.transport import InProcessNetwork
from secureps.wire.waves.batch import (
    CHALLENGE_BYTES,
    WAVE_DOMAIN,
    Batch,
    Entry,
    Kind,
    Relay,
    has_holder_work,
    has_work,
    make_answer,
    open_batch,
    request_digest,
    seal_batch,
)
from secureps.wording import named, printable

ANSWER = 600.0
"""Seconds within which a server must answer."""
LOOK = 2.0
"""Seconds between two checks whether a server has ended, and which nodes are there."""
MOST_BYTES_A_VALUE = 64
"""An upper bound of the bytes of one value in a sealed block, under any cipher."""

Tensors = dict[str, NDArray[Any]]
T = TypeVar("T")


class Aggregator:
    """Coordinator, shards and relay of one run; a context. KitError if the kit is not this plan's.

    Args:
        kit: the folder with the public part, and the private keys of coordinator and shards. It
            also has those of key holders that are run here.
        folder: the folder of states and checkpoints.
        listen: HOST:PORT at which other key holders reach the coordinator; empty if all are run
            here (`simulated`), or nodes relay to them.
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
            keep_pieces(WHOLE)
        with ExitStack() as starting:
            starting.callback(self._closing.close)
            self._closing.enter_context(durability.skip_waits(self.simulated))
            self._start(COORDINATOR)
            holders = self._own_holders()
            if holders and not self.simulated:
                disable_core_dumps()  # as a key holder's own process does
            for name in (*shard_names(self.plan.section.shards), *holders):
                self._start(name)
            starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _own_holders(self) -> list[str]:
        """Names the key holders that are run here; logs which others are waited for."""
        holders = () if self.relayed_holders else self.kit.roster.holders()
        own = [each.name for each in holders if (self._kit / "private" / each.name).is_dir()]
        for each in holders:
            if each.name not in own:
                log.info("waits until key holder %s connects to %s", each.name, self.address)
        return own

    # --- what clients get ---------------------------------------------------------

    @property
    def relayed_holders(self) -> frozenset[str]:
        """The key holders that nodes relay to; none if they are run here, or connect."""
        return frozenset() if self.simulated or self.address else self.roster.names("holder")

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
            looks = bool(self.address)
            founding = (self.plan, self._initial, os.urandom(32), looks)
            run = assemble.pinned_run(self.kit, *founding)
            return assemble.make_coordinator(run, checkpoints, stores, around)
        if name in self.kit.roster.names("holder"):
            identity = load_private(self._kit, name)
            minimum = min(self.plan.bounds(group).minimum for group in self.plan.all_groups)
            make = assemble.load_holder(self.kit, self._kit, identity, name, minimum)
            return make(stores, around)
        address = ShardAddress(name, "in-process:1", 1.0)
        folders = ShardFolders(stores.folder / "states", checkpoints)
        unsafe = self._unsafe_seed
        seed = load_seed(stores.folder / "seed") if unsafe is None else UnsafeSeed(unsafe)
        return assemble.make_shard(self.kit, address, seed, folders, stores, around)


# --- federation --------------------------------------------------------------------

KIT = "kit"


def found_run(
    root: Path,
    plan: PlanSection,
    model: Mapping[str, ModelArray],
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
    return first.model_copy(update=own | bounds | plain | {"sparse": None})


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


class SecureFedAvg(FedAvg):
    """Federated averaging of sealed updates, inside Flower's engine.

    The plan's rule decides on rounds, and the server's optimizer is the plan's or the strategy's.
    Evaluation is Flower's own, and its metrics are not encrypted. A subclass may override
    `aggregate_train` to see the model of each version.

    Args:
        plan: the plan's file, in the working folder or among the app's files.
        strategy: another strategy of Flower's that needs only the mean (FedAdam, FedYogi,
            FedAdagrad, FedAvgM, FedProx), or a subclass of one; it configures rounds.
        kit: the folder with the keys of coordinator and shards; None in Flower's simulation, which
            makes one for all its nodes.
        run: the run's folder, where an earlier run continues. Default: runs/NAME-DATE-TIME.
        holders: "service": key holders connect to the coordinator, and cost no wave; "nodes": nodes
            relay to them (`secureps-holder` in their --node-config), with one more wave a round.
        listen: HOST:PORT at which key holders on other machines reach the coordinator.
        unsafe_seed: makes a simulation repeatable, without privacy; for tests.
        train_metrics: names of metrics that the app returns from training, and the largest
            magnitude of each. Their means, weighted by examples, are encrypted like updates.
        settings: arguments of `FedAvg`.

    Raises:
        ConfigError: the strategy needs single updates or metrics of single clients, or arguments
            contradict each other.

    Examples:
        >>> strategy = SecureFedAvg(plan="plan.toml", strategy=FedAdam(eta=0.01))
        >>> result = strategy.start(grid, initial_arrays=arrays, num_rounds=3)
    """

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        for base in (each for each in cls.__mro__ if each not in SecureFedAvg.__mro__):
            if issubclass(base, Strategy) and not issubclass(base, SecureFedAvg):
                raise ConfigError(
                    f"{cls.__name__}: {base.__name__} would aggregate what nobody can read; "
                    f"say SecureFedAvg(plan=..., strategy={base.__name__}(...)) instead"
                )

    def __init__(
        self,
        plan: str | Path,
        *,
        strategy: Strategy | None = None,
        kit: str | Path | None = None,
        run: str | Path | None = None,
        holders: Literal["service", "nodes"] = "service",
        listen: str = LISTEN,
        unsafe_seed: int | None = None,
        train_metrics: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.plan = find_plan(plan, tuple(Path(place) for place in sys.path if place))
        self.strategy: Strategy = self if strategy is None else strategy
        if strategy is not None and settings:
            raise ConfigError(f"{min(settings)}: give it to the given strategy")
        self.kit = None if kit is None else Path(kit)
        self.run = None if run is None else Path(run)
        self.listen, self.unsafe_seed, self.holders = listen, unsafe_seed, holders
        if holders == "nodes" and kit is None:
            raise ConfigError('holders = "nodes": key holders have no nodes in a simulation')
        if kit is not None and unsafe_seed is not None:
            raise ConfigError("unsafe_seed: it is for simulations, which make a kit of their own")
        self.train_metrics = dict(train_metrics or {})
        if wrong := [name for name, most in self.train_metrics.items() if not 0 < most < math.inf]:
            raise ConfigError(f"train_metrics: the largest magnitude of {wrong[0]} is a number > 0")
        self.waves = 0
        """The number of messages that the last run sent."""
        self._rounds: _Rounds | None = None
        with naming("SecureFedAvg", ConfigError):
            _refuse_aggregation(self.strategy)

    @property
    def _flowers(self) -> Strategy:
        return cast(Strategy, super()) if self.strategy is self else self.strategy

    def summary(self) -> None:
        log.info("\t├──> secureps: %s by plan %s", strategy_name(self.strategy), self.plan)
        self._flowers.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._flowers.configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configures evaluation as the strategy does, except in rounds before this start."""
        if self._rounds is not None and server_round < self._rounds.first:
            return []
        return self._flowers.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self._flowers.aggregate_evaluate(server_round, replies)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns what the shards made in a round: the model, and means of training metrics.

        `replies` is empty. An override sees the model of each version here, and cannot change it.
        """
        if self._rounds is None:
            raise ConfigError("SecureFedAvg aggregates by its own `start`: call that")
        return self._rounds.result_of(server_round)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs the federation in Flower's own loop of rounds.

        Args:
            grid: the ServerApp's grid.
            initial_arrays: version 0.
            num_rounds: the number of versions.
            timeout: seconds without any reply or version, after which it ends with an error.
            train_config, evaluate_config: settings for nodes, beside the plan's.
            evaluate_fn: called here with the number and the model of each version, from 0 on;
                returns metrics or None.

        Returns:
            Flower's result; its arrays are the model of the last version.

        Raises:
            NotReady: nothing has come for too long.
            SecurepsError: something else ended the run.
        """
        model = FlowerModel.of_record(initial_arrays)
        model.refuse_unsummable("initial_arrays")
        rounds = _Rounds(self, grid, model, initial_arrays, timeout)
        self._rounds = rounds

        def judged(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            """Skips rounds that were made before this start, because their models are not kept."""
            again = 0 < number < rounds.first
            return None if again or evaluate_fn is None else evaluate_fn(number, arrays)

        with rounds.run_servers(num_rounds):
            result = super().start(
                rounds,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else judged,
            )
            rounds.finish()
        if num_rounds:
            rounds.refuse_other(result.arrays)
        result.arrays = rounds.newest
        self.waves = rounds.sent
        return result


def _refuse_aggregation(strategy: Strategy) -> None:
    strategy_name(strategy)
    aggregate = strategy.aggregate_train
    if not isinstance(strategy, SecureFedAvg) and not aggregate.__module__.startswith("flwr."):
        raise ConfigError(
            f"aggregate_train of {type(strategy).__name__} sees every single update; to see the "
            "model of each version, override it in a subclass of SecureFedAvg"
        )
    own = getattr(strategy, "train_metrics_aggr_fn", None)
    if own is not None and not own.__module__.startswith("flwr."):
        raise ConfigError("train_metrics_aggr_fn sees the metrics of single clients: leave it out")


class _Rounds(Grid):
    """The rounds of one run: the grid to which Flower's loop sends its messages.

    Train messages become waves until the next version is made; all others go to the nodes.
    """

    def __init__(
        self,
        owner: SecureFedAvg,
        grid: Grid,
        model: FlowerModel,
        initial: ArrayRecord,
        timeout: float,
    ) -> None:
        self._owner, self._grid, self._model, self._timeout = owner, grid, model, timeout
        self._seen, self._round = frozenset[int](), 0
        self.first = 1
        """The first round without a version."""
        self.newest = initial
        """The newest version's model."""
        self._metrics = np.zeros(0)
        self._servers: Aggregator
        self._waves: Waves

    @contextmanager
    def run_servers(self, rounds: int) -> Iterator[None]:
        owner, clients = self._owner, self._nodes()
        own = load_plan(owner.plan).section
        settings = (owner.strategy, rounds, clients, owner.train_metrics)
        with named_folder(owner.run, own.name) as named:
            root = named.resolve()
            log.info("secureps: the run's folder is %s", root)
            plan = found_run(root, own, self._model.tensors, *settings)
        kit = owner.kit.resolve() if owner.kit else simulated_kit(root, plan, clients)
        simulated = owner.kit is None
        listen = "" if simulated or owner.holders == "nodes" else owner.listen
        self._servers = Aggregator(plan, kit, root, listen, simulated, owner.unsafe_seed)
        demand_host(self._servers.kit.roster, kit)
        with self._servers:
            self._waves = Waves(self._grid, self._servers, self._make_marker(kit), self._timeout)
            self.first = max(0, self._version(self._servers.status())) + 1
            if self.first > 1:
                self.newest = self._arrays()
            yield

    def _nodes(self) -> int:
        plan = load_plan(self._owner.plan)
        own = int(getattr(self._owner.strategy, "min_available_nodes", 1))
        least = max(own, *(plan.bounds(group.name).start for group in plan.section.group))
        until = time.monotonic() + self._timeout
        while (found := len(list(self.get_node_ids()))) < least:
            if time.monotonic() > until:
                raise OperatorError(f"{found} nodes are there, and {least} are waited for")
            words = "Waiting for nodes to connect: %d connected (minimum required: %d)."
            log.info(words, found, least)
            time.sleep(NODES_LOOK)
        return found

    def _make_marker(self, kit: Path) -> Said:
        owner = self._owner
        zeros = {name: np.zeros_like(each) for name, each in self._model.tensors.items()}
        model = FlowerModel(zeros, self._model.nameless)
        form = ModelForm(model, *record_keys(owner.strategy), owner.train_metrics)
        said: dict[str, str | int] = {FORM: form.to_json()}
        if owner.kit is None:
            said[TOLD_KIT] = str(kit)
            if owner.unsafe_seed is not None:
                said[TOLD_SEED] = owner.unsafe_seed
        return said

    # --- rounds -------------------------------------------------------------------

    def result_of(self, number: int) -> tuple[ArrayRecord, MetricRecord | None]:
        """Returns a round's model, and means of metrics; ConfigError if nobody trained."""
        if self._round < number:
            raise ConfigError(f"the strategy has nobody train in round {number}")
        if number < self.first:
            return self.newest, None
        parts = zip(self._owner.train_metrics.items(), self._metrics.tolist(), strict=True)
        told: dict[str, Any] = {name: part * most for (name, most), part in parts}
        return self.newest, MetricRecord(told) if told else None

    def _train(self, sent: list[Message]) -> None:
        """Waits for the next version; ConfigError if nodes get different messages or models."""
        self._round += 1
        if self._round < self.first:
            log.info("secureps: version %s was made before this start", self._round)
            return
        first = sent[0].content
        if any(each.content != first for each in sent if each.content is not first):
            raise ConfigError(
                "configure_train gives nodes of one round different messages: the plan's rule "
                "chooses who trains, and all nodes get the same message"
            )
        models = first.array_records
        self.refuse_other(*models.values())
        kept = {name: record for name, record in first.items() if name not in models}

        def over() -> bool:
            return self._version(self._servers.status()) >= self._round

        self._waves.until(over, RecordDict(kept), sent[0].metadata.message_type)
        self.newest = self._arrays()
        log.info("aggregate_train: version %s is made of sealed updates", self._round)

    def refuse_other(self, *models: ArrayRecord) -> None:
        """Raises ConfigError if the app continues from another model than the newest version."""
        if list(models) != [self.newest]:
            raise ConfigError(
                "the app continues from another model than the newest version: only shards make "
                "versions, and no code of the app may change one"
            )

    def _arrays(self) -> ArrayRecord:
        found = self._servers.model()
        tensors = self._model.tensors if found is None else found
        self._metrics = np.asarray(tensors.get(TRAIN_METRICS, np.zeros(0)))
        return self._model.record({name: tensors[name] for name in self._model.tensors})

    def finish(self) -> None:
        """Waits until the run is finished and durable."""
        until = time.monotonic() + self._timeout
        while not self._servers.status().finished and time.monotonic() < until:
            time.sleep(0.05)

    @property
    def sent(self) -> int:
        return self._waves.sent

    @staticmethod
    def _version(status: Status) -> int:
        return min((group.version for group in status.groups), default=-1)

    # --- Grid ---------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(self, *given: Any, **settings: Any) -> Message:
        return self._grid.create_message(*given, **settings)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes that were ever there, so that Flower does not wait for one that is away.

        The plan's rule decides whether a version needs that node.
        """
        self._seen |= frozenset(self._grid.get_node_ids())
        return sorted(self._seen)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Trains, without replies; sends other messages to the nodes that are there."""
        sent = list(messages)
        if sent and sent[0].metadata.message_type.partition(".")[0] == "train":
            self._train(sent)
            return []
        here = frozenset(self._grid.get_node_ids())
        away = [each.metadata.dst_node_id for each in sent if each.metadata.dst_node_id not in here]
        if away:
            log.info(
                "these nodes are away and get no message: %s",
                ", ".join(f"node {node}" for node in sorted(away)),
            )
        present = [each for each in sent if each.metadata.dst_node_id in here]
        return self._grid.send_and_receive(present, timeout=timeout) if present else []


NODES_LOOK = 1.0
"""Seconds between two counts of nodes before the run begins."""

# --- waves -------------------------------------------------------------------------

AGAIN = 60.0
"""The least seconds without a reply after which a node is asked again."""
SLOWER = 3.0
"""A node is asked again only after this many times the slowest reply's seconds, if longer."""
POLL = 0.01, 0.2
"""The least and the most seconds between two requests to the SuperLink for replies. Within them it
is a tenth of the time waited; in a simulation always the least."""
QUIET = 30.0
"""Seconds without news after which the log says what the run waits for."""
TRIES = 3
"""After so many failures in succession a node is not asked again in this round."""
NODE_UNAVAILABLE = 5
"""The SuperLink's code for a SuperNode that is away, from Flower's private `ErrorCode`."""
MOST_WORDS = 500
MOD = "has the ClientApp mods=[secureps_mod]?"
ROOM = 16 << 20
"""Bytes of a node's batch beside its blocks."""


@dataclass(eq=False)
class _Node:
    """One node of the grid; `name` is empty before it has signed anything."""

    id: int
    name: str = ""
    asked: dict[str, bytes] = field(default_factory=dict)
    """The challenges of messages that it may still answer, by message id."""
    waiting: bool = False
    since: float = 0.0
    standing: tuple[Entry, ...] = ()
    """The requests that its client's next process will make first."""
    heard: bool = False
    failures: int = 0
    failure: str = ""
    resting: float = 0.0
    ended: str = ""

    def __str__(self) -> str:
        return f"node {self.id}" + (f" ({self.name})" if self.name else "")


class Waves:
    """The waves of one run; it fails after `timeout` seconds without any reply or version."""

    def __init__(
        self, grid: Grid, servers: Aggregator, said: Mapping[str, str | int], timeout: float
    ) -> None:
        self._grid, self._servers, self._said, self._timeout = grid, servers, said, timeout
        self._longest_pause = POLL[0] if servers.simulated else POLL[1]
        self._nodes: dict[int, _Node] = {}
        self._here = frozenset[int]()
        self._looked = self._beaten = -LOOK
        self._news = time.monotonic()
        self._longest = 0.0
        self._arrays: dict[bytes, Array] = {}
        self._told = set[tuple[str, int]]()
        self.sent = 0
        """The number of messages so far."""

    def until(self, over: Callable[[], bool], records: RecordDict, kind: str) -> None:
        """Carries waves until `over()`, which is called after each publication, and now and then.

        Messages have the type `kind` and the app's own `records`. Raises NotReady if nothing has
        come for too long, or no node's app has the mod; else what ended the servers.
        """
        for node in self._nodes.values():
            node.failures, node.resting = 0, 0.0
        self._news = time.monotonic()
        least, most = POLL
        asked = pulled = -most
        told = 0
        while True:
            self._servers.news.clear()
            if self._has_news() or time.monotonic() - asked >= most:
                if over():
                    return
                asked = time.monotonic()
            self._look()
            self._push(records, kind, over)
            waited = time.monotonic() - max((n.since for n in self._nodes.values()), default=0.0)
            pause = min(self._longest_pause, max(least, waited / 10))
            if (left := pulled + pause - time.monotonic()) > 0:
                self._servers.news.wait(left)
                continue
            pulled = time.monotonic()
            if self._pull():
                self._news, told = time.monotonic(), 0
                continue
            self._refuse_failing()
            quiet = time.monotonic() - self._news
            if quiet > self._timeout:
                raise NotReady(
                    f"nothing has come for {self._timeout:g} s: {self._describe_waiting()}"
                )
            if quiet > QUIET * (1 + told):
                told += 1
                log.info("secureps waits: %s", self._describe_waiting())

    def _has_news(self) -> bool:
        names = [node.name for node in self._nodes.values() if node.name]
        orders = (order for name in names for order in self._servers.relay.orders(name))
        told = {(each.group, each.version) for each in orders if isinstance(each, Published)}
        new, self._told = not told <= self._told, told
        return new

    # --- nodes --------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            before, self._here = self._here, frozenset(self._grid.get_node_ids())
            for id in self._here - before:
                node = self._nodes.setdefault(id, _Node(id))
                if node.waiting:  # the node was away, so its message is lost
                    self._tell_again(node)
        if now - self._beaten >= min(LOOK, self._servers.plan.section.lease / 3):
            self._beaten = now
            for node in self._nodes.values():
                if node.name in self._clients and node.id in self._here and not node.ended:
                    self._servers.relay.beat(node.name)

    def _push(self, records: RecordDict, kind: str, over: Callable[[], bool]) -> None:
        versions = cache(self._versions)
        wanted = [node for node in self._nodes.values() if self._is_due(node, versions)]
        if not wanted:
            return
        self._servers.flush_orders()  # so that this wave has all orders
        messages = [(node, *self._message(node, records, kind)) for node in wanted]
        if over():  # these orders may be for the next round, which has other records
            for node in wanted:
                self._tell_again(node)
            return
        ids = list(self._grid.push_messages([message for _, message, _ in messages]))
        if len(ids) != len(messages):
            raise NotReady("the SuperLink did not take all messages of a wave; see its log")
        for (node, _, challenge), id in zip(messages, ids):
            if not id:
                self._note_failure(node, "the SuperLink did not take its message")
                continue
            node.asked[id] = challenge
            node.waiting, node.since = True, time.monotonic()
            self.sent += 1

    def _versions(self) -> dict[str, int]:
        return {group.name: group.version for group in self._servers.status().groups}

    def _is_due(self, node: _Node, versions: Callable[[], Mapping[str, int]]) -> bool:
        now = time.monotonic()
        if node.id not in self._here or node.ended or node.failures >= TRIES:
            return False
        if node.waiting:
            longest = max(AGAIN, SLOWER * self._longest) * 2 ** (len(node.asked) - 1)
            if now - node.since < longest:
                return False
            log.warning("%s has not answered for %.0f s: it is asked again", node, now - node.since)
            self._tell_again(node)
            return True
        if now < node.resting:
            return False
        if not node.name:
            return True
        relay = self._servers.relay
        if relay.has_refusal(node.name):
            return True
        if not relay.is_answered(node.name):
            return False
        orders = relay.orders(node.name)
        if node.name in self._holders:
            return has_holder_work(orders, not node.heard)
        plan = self._servers.plan
        if len(plan.groups) > 1 and has_work(orders):
            orders = tuple(each for each in orders if not is_early(plan, each, versions()))
        return has_work(orders)

    def _message(self, node: _Node, records: RecordDict, kind: str) -> tuple[Message, bytes]:
        challenge = os.urandom(CHALLENGE_BYTES)
        entries, payloads = tuple[Entry, ...](), dict[bytes, bytes]()
        if node.name:
            orders = self._servers.relay.orders(node.name)
            ahead, blocks = self._servers.answer_ahead(orders)
            own, answers = self._servers.relay.take_news(node.name)
            entries, payloads = (*ahead, *own), {**blocks, **answers}
            node.heard = node.heard or bool(orders)
        batch = Batch(COORDINATOR, node.name, self._servers.run, challenge, entries)
        sealed = seal_batch(batch, self._servers.sign_wave)
        self._arrays = {k: v for k, v in self._arrays.items() if k in payloads}
        content = RecordDict({**records, **post.pack(self._said, sealed, payloads, self._arrays)})
        ttl = self._timeout
        return Message(content, node.id, kind, ttl=ttl), challenge

    # --- replies ------------------------------------------------------------------

    def _pull(self) -> bool:
        asked = {id: node for node in self._nodes.values() for id in node.asked}
        if not asked:
            return False
        came = False
        for reply in self._grid.pull_messages(list(asked)):
            node = asked.get(reply.metadata.reply_to_message_id)
            if node is None:
                continue
            newest = next(reversed(node.asked), "")
            challenge = node.asked.pop(reply.metadata.reply_to_message_id, None)
            if challenge is None:
                continue  # Flower delivered this reply twice
            # Only the newest message counts: an earlier one was given up, and a late reply to it
            # does not end the wait.
            is_newest = reply.metadata.reply_to_message_id == newest
            if reply.has_error() and reply.error.code == NODE_UNAVAILABLE:
                if is_newest:
                    self._repeat_later(node, _shorten(reply.error.reason))
                continue
            if is_newest:
                node.waiting = False
            came = True
            self._longest = max(self._longest, time.monotonic() - node.since)
            try:
                self._take(node, reply, challenge)
                node.failures = 0
            except SecurepsError as error:
                self._note_failure(node, str(error))
        return came

    def _take(self, node: _Node, reply: Message, challenge: bytes) -> None:
        """Reads one reply; NotReady if the app failed, another SecurepsError if it is wrong."""
        if reply.has_error():
            hint = "" if node.name else f"; {MOD}"
            raise NotReady(f"{_shorten(reply.error.reason)}{hint}")
        if not post.is_ours(reply.content):
            raise Malformed(f"answered in the clear; {MOD}")
        most = ROOM + 2 * self._servers.update_bytes
        said, data, _ = post.read_wave(reply.content, most)
        if error := said.get("error"):
            raise NotReady(_shorten(error))
        batch = open_batch(data, most, self._verify)
        if batch.challenge != challenge:
            raise Malformed("answered another wave than it was asked in")
        if batch.run and (ours := self._servers.run) and batch.run != ours:
            raise WrongRun(wrong_run(batch.sender, batch.run, ours))
        if batch.sender not in self._clients | self._holders:
            raise UnknownParty(f"{batch.sender} takes no part by this run's roster; {MOD}")
        if node.name not in ("", batch.sender):
            raise Malformed(f"is {node.name}, and answered as {batch.sender}")
        others = [o.id for o in self._nodes.values() if o.name == batch.sender and o is not node]
        if [id for id in others if id in self._here]:
            raise Malformed(f"answers as {batch.sender}, as another node does: a kit is for one")
        for id in others:  # this party's SuperNode came back under a new node id
            del self._nodes[id]
        node.name = batch.sender
        node.standing = tuple(e for e in batch.entries if e.kind in (Kind.FIRST, Kind.WATCH))
        self._servers.relay.perform_batch(node.name, batch.entries)
        if ended := said.get("ended"):
            node.ended = _shorten(ended)
            log.warning("%s takes part no more: %s", node.name, node.ended)

    @property
    def _clients(self) -> frozenset[str]:
        return self._servers.roster.names("client")

    @property
    def _holders(self) -> frozenset[str]:
        return self._servers.relayed_holders

    def _verify(self, party: str, data: bytes, signature: bytes) -> None:
        self._servers.roster.identity(party).verify(WAVE_DOMAIN, data, signature)

    def _note_failure(self, node: _Node, text: str) -> None:
        node.failures, node.failure = node.failures + 1, text
        self._repeat_later(node, text, min(LOOK, 0.5 * node.failures))

    def _repeat_later(self, node: _Node, text: str, rest: float = LOOK) -> None:
        """Asks a node again a little later, without counting a failure of its app."""
        node.resting = time.monotonic() + rest
        log.warning("%s: %s", node, text)
        self._tell_again(node)

    def _tell_again(self, node: _Node) -> None:
        """Repeats the last wave's orders in the next one: the client may not have got them."""
        node.waiting = node.heard = False
        if node.name and node.standing:
            self._servers.relay.perform_batch(node.name, node.standing)

    def _refuse_failing(self) -> None:
        """Raises NotReady if the app has failed at every node that is there too often."""
        here = [self._nodes[id] for id in self._here if self._nodes[id].name not in self._holders]
        if not here or any(node.failures < TRIES for node in here):
            return
        raise NotReady(
            f"the app fails at every node that is there, each asked {TRIES} times: {here[0]}: "
            f"{here[0].failure}"
        )

    def _describe_waiting(self) -> str:
        status = self._servers.status()
        why = "; ".join(f"{group.name}: {group.reason}" for group in status.groups)
        silent = [node.name or str(node.id) for node in self._nodes.values() if node.waiting]
        whom = f"; no answer from {named(sorted(silent), 5)}" if silent else ""
        nodes = f"{len(self._here)} nodes are there"
        return f"{why}{whom}; {nodes}"


def is_early(plan: Plan, order: object, versions: Mapping[str, int]) -> bool:
    """Tells whether a client must wait for another invitation before it can follow this one.

    Groups of one rule are trained together, but their versions are committed one after another.
    """
    return isinstance(order, Invite) and any(
        versions[group] < min(order.version, plan.versions(group))
        for group in joint_groups(plan, order.group)
    )


def _shorten(text: object) -> str:
    line = printable(str(text))
    if len(line) > MOST_WORDS:  # a traceback's end says what went wrong
        return f"{line[:100]} ... {line[105 - MOST_WORDS :]}"
    return line
