"""Simulates a whole federation in one process, with its own loop and network.

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

Idle clients. When there are very many clients, few of them train. `IdleClient` stands for a client
that was asked for nothing, and keeps only the few messages that it has received. The end of the
run, published versions, and news of key holders that another client has heard need no machine. For
any other event the machine is made, and replays those messages with their times. It decides as it
would have, because a machine is a function of its events.

Nothing here protects data: the seeds are known, and no attacker is kept out. `run` raises the error
of a party that should not have ended, and fails when no event is left, so that a deadlock shows.

Look first at `Conditions` for what a play may vary, and at `MOST_HEARD` for idle clients.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.runner import machine_and_worker, make_member, member_settings
from secureps.client.trainer import Trainer
from secureps.client.worker import ClientWorker, Site
from secureps.crypto.identity import Identity, Role
from secureps.crypto.roster import certify, sign_roster
from secureps.crypto.sampling import Seed
from secureps.crypto.secret import Secret
from secureps.crypto.suite import cipher
from secureps.errors import InternalError, Refused, SecurepsError, from_wire
from secureps.messages.encoding import file_digest, payload_digest
from secureps.messages.orders import Finish, Published, SealFor
from secureps.messages.requests import PutBlock, Request, Subscribe
from secureps.messages.run import COORDINATOR, STANDBY, Schema, ShardAddress, Task
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.reign import TAKES_OVER
from secureps.roles.holder.holder import HolderRules
from secureps.roles.machine import (
    Answered,
    Effect,
    Event,
    Failed,
    Halt,
    Record,
    Step,
    Sweep,
    TaskResult,
    Tick,
    Watch,
)
from secureps.roles.member.member import Member
from secureps.roles.member.terms import MemberSettings, Terms, custom_reports
from secureps.roles.shard.state import Limit, model_key
from secureps.run import assemble
from secureps.run.up.folder import holder_names, shard_names
from secureps.service.environment import Environment, Meter, Stores, Worker
from secureps.service.executor import Executor
from secureps.service.lead import ALONE
from secureps.service.loop import VirtualLoop
from secureps.service.shard.states import ShardFolders
from secureps.service.shard.worker import ShardWorker
from secureps.store.budget import BudgetLedger, MemoryLedger
from secureps.store.envelope_keys import wrap_secret
from secureps.store.journal import Journal, MemoryJournal
from secureps.store.keyring import KINDS, PublicKit
from secureps.store.spool import MemorySpool, Spool
from secureps.wire.transport import Clock, DelayOf, InProcessNetwork, no_delay


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
        idle: a client has a machine only once something was asked of it.
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
    idle: bool = False


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
        self.ruler = COORDINATOR
        self._terms = Terms(messages=custom_reports(plan))  # simulated data needs no protection
        self._alike: dict[Hashable, Any] = {}
        self._told = ToldOfHolders()
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
        return bool(self.coordinator.federation.finished) and all(
            name in self.parties and self.parties[name].halted.done()
            for name in self._cast.trainers
        )

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
        return self._client(name, stores, around)

    def _client(self, name: str, stores: Stores, around: Environment) -> Executor:
        cost, terms = partial(self._cast.cost, name), self._terms
        site = self._site(name, stores.folder)
        if not self._conditions.idle:
            return make_member(self._kit.public, site, stores, around, cost, terms)
        settings = share_settings(member_settings(self._kit.public, site, terms), self._alike)
        client = IdleClient(
            lambda: machine_and_worker(
                settings, self._site(name, stores.folder), stores.spool, cost
            ),
            cost,
            self._told,
        )
        return Executor(name, client, stores.journal, around, client)

    def _site(self, name: str, folder: Path) -> Site:
        seed, keys = self._seeds.get(name, self._cast.seed), self._kit.public.holder_keys
        trainer, identity = self._cast.trainers[name], self._kit.identities[name]
        ledger = self._ledgers[name]
        own = (name, trainer, identity, seed, keys, folder)
        return Site(*own, records=self._cast.records.get(name), ledger=ledger, shared=True)


# --- idle clients ------------------------------------------------------------------


Made = tuple[Member, ClientWorker]

MOST_HEARD = 16
"""The most events that a client replays; a client with more events keeps its machine. Of published
versions only the newest of each group counts; news of key holders do not count, because
`ToldOfHolders` answers them."""


ToldOfHolders = dict[tuple[bytes, int, SealFor], tuple[int, list[Record]]]
"""A client's next state and records, by its run, its state, and the news of key holders.

All clients of a simulation share it. A client's reaction follows from the roster, the run and the
earlier news, and not from its name; so once one machine has reacted, others need none. States are
numbers: 0 before any news.
"""


class IdleClient(Worker):
    """Stands for the machine and the worker of one client, which it makes when they are needed.

    Args:
        make: makes both in their initial state.
        cost: as in `ClientWorker`.
        told: shared by all clients.
    """

    def __init__(
        self, make: Callable[[], Made], cost: Callable[[object], float], told: ToldOfHolders
    ) -> None:
        self._make = make
        self._cost = cost
        self._told = told
        self._holders: int | None = 0
        """The client's state in `told`; None once an event has made it differ."""
        self._made: Made | None = None
        self._heard: list[tuple[float, str, Event | None]] | None = []
        """The events to replay (None for the start); None: it keeps its machine."""
        self._wakes_at: float | None = None
        self._run = b""
        """The run's id, once the client takes part."""

    @property
    def _is_asleep(self) -> bool:
        return self._made is None and bool(self._run)

    @property
    def member(self) -> Member:
        return self._wake()[0]

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        """Applies a record; a client that starts with a journal keeps its machine."""
        self.member.apply(at, record)
        self._heard = None

    def resume(self, now: float) -> Step:
        member = self.member
        self._remember(now, "", None)
        step = member.resume(now)
        self._rest(member)
        return step

    def handle(self, now: float, sender: str, event: Event) -> Step:
        """Handles an event, without a machine if that makes no difference."""
        ordered = sender == COORDINATOR and not isinstance(event, Answered | Failed)
        if ordered and self._is_asleep:
            short = self._handle_without_machine(now, event)
            if short is not None:
                return short
        member = self.member
        self._remember(now, sender, event)
        step = member.handle(now, sender, event)
        self._note(event, step)
        if not any(isinstance(effect, Watch) for effect in step.effects):
            self._rest(member)  # a watching member rests after `subscription`
        return step

    def _handle_without_machine(self, now: float, order: Event) -> Step | None:
        """Handles an order that needs no machine; None if it needs one."""
        if isinstance(order, Finish):
            return Step(effects=[Halt(order.reason)])
        if isinstance(order, Published) and self._count_heard() < MOST_HEARD:
            self._remember(now, COORDINATOR, order)
            return Step()
        if not isinstance(order, SealFor) or self._holders is None:
            return None
        known = self._told.get((self._run, self._holders, order))
        if known is None:
            return None
        self._remember(now, COORDINATOR, order)
        self._holders, records = known
        return Step(records=list(records))

    def _note(self, event: Event, step: Step) -> None:
        state = self._holders
        if isinstance(event, SealFor) and state is not None and self._run and not step.effects:
            new = len(self._told) + 1, list(step.records)
            self._holders, _ = self._told.setdefault((self._run, state, event), new)
        elif not isinstance(event, Published | Answered | Tick):
            self._holders = None

    def inspect(self, sender: str, message: Request) -> bool:
        return self.member.inspect(sender, message)

    def report_trouble(self, reason: str) -> list[Effect]:
        return self.member.report_trouble(reason)

    def wake(self) -> float | None:
        return self._wakes_at if self._made is None else self._made[0].wake()

    def subscription(self) -> Subscribe:
        member = self.member
        said = member.subscription()
        self._rest(member)
        return said

    # --- Worker -------------------------------------------------------------------

    def work(self, task: Task) -> TaskResult | None:
        """Does a task; a sleeping client has sealed nothing, and so has nothing to sweep."""
        if self._made is None and isinstance(task, Sweep):
            return None
        return self._wake()[1].work(task)

    def take(self, request: PutBlock, payload: bytes | memoryview) -> Callable[[], None]:
        return self._wake()[1].take(request, payload)

    def keep(self, request: Request, payload: bytes | memoryview, digest: bytes) -> bytes | None:
        return self._wake()[1].keep(request, payload, digest)

    def fetch(self, key: str) -> bytes | memoryview:
        return self._wake()[1].fetch(key)

    def seconds(self, task: Task) -> float:
        return self._cost(task) if self._made is None else self._made[1].seconds(task)

    # --- sleeping and waking ------------------------------------------------------

    def _remember(self, now: float, sender: str, event: Event | None) -> None:
        """Notes an event to replay; a published version replaces an older one."""
        heard = self._heard
        if heard is None:
            return
        if isinstance(event, Published):
            for at, (_, _, before) in enumerate(heard):
                if isinstance(before, Published) and _is_superseded(event, before, heard):
                    del heard[at]
                    break
        heard.append((now, sender, event))

    def _count_heard(self) -> int:
        return sum(not isinstance(e, SealFor) for _, _, e in self._heard or ())

    def _rest(self, member: Member) -> None:
        """Drops the machine, if it has nothing to do and never had."""
        if self._heard is None:
            return
        if not member.is_idle or self._count_heard() > MOST_HEARD:
            self._heard = None
            return
        self._wakes_at, self._run = member.wake(), member.pinned.run.id if member.is_pinned else b""
        self._made = None

    def _wake(self) -> Made:
        """Makes the machine and replays the events, ignoring their effects, which are done."""
        if self._made is None:
            self._made = member, _ = self._make()
            for now, sender, event in self._heard or ():
                with suppress(SecurepsError):  # the member refused it the first time too
                    member.resume(now) if event is None else member.handle(now, sender, event)
        return self._made


def _is_superseded(
    newer: Published, older: Published, heard: list[tuple[float, str, Event | None]]
) -> bool:
    """True if a replay without an older published version makes no difference.

    It makes one if another version shares a block, because that changes the order of pulls.
    """
    if newer.group != older.group or newer.version < older.version:
        return False
    blocks = set(older.blocks)
    others = [event for _, _, event in heard if isinstance(event, Published)]
    return all(blocks.isdisjoint(each.blocks) for each in (newer, *others) if each is not older)


def share_settings(own: MemberSettings, known: dict[Hashable, Any]) -> MemberSettings:
    """Replaces equal parts of many clients' settings by one object, which `known` keeps."""
    values = known.setdefault(tuple(own.values.items()), own.values)
    schema, rows = known.setdefault(own.schema, own.schema), own.rows or known.setdefault("", {})
    return replace(own, schema=schema, values=values, rows=rows)
