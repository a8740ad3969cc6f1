"""The whole federation of `run.simulate.simulation` under the faults of one seed.

The same machines, workers and executors; what is doubled is the network, the disks, and the
processes: each has a clock of its own, which begins where its journal ends.
"""

from __future__ import annotations

import errno
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.client.worker import ClientWorker
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ConfigError, DamagedStore, DiskFailed, Refused, SecurepsError, WrongRun
from secureps.messages.coordinator_records import Ending, Finished
from secureps.messages.member_records import OwnDeed
from secureps.messages.orders import COME_BACK
from secureps.messages.records import Incarnated
from secureps.messages.requests import AskRun, AskStatus, PutBlock, Status, Submit, Welcome
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.messages.submission import OPENED, BlockHeader, SubmissionId
from secureps.roles.holder import holder
from secureps.roles.holder.holder import Holder
from secureps.roles.machine import WORKER, Halt, Leave, Machine
from secureps.roles.shard.shard import Shard
from secureps.run.simulate import simulation
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.run.up.folder import client_names, shard_names
from secureps.service.environment import Stores
from secureps.service.executor import Executor
from secureps.service.process import ActWatch, act_text
from secureps.service.shard.worker import ShardWorker
from secureps.store.act_lines import ActLines
from secureps.store.checkpoint import MANIFEST
from secureps.store.spool import DiskSpool
from tests.chaos import rosters, shards, takeover
from tests.chaos.disk import Copy, Disk, Journal
from tests.chaos.evidence import Evidence
from tests.chaos.loop import Dead, PartyLoop
from tests.chaos.network import ChaosNetwork, Delays, table
from tests.chaos.operator import Operator
from tests.chaos.plans import SHAPE, kit_of, plan_of
from tests.chaos.schedule import (
    CHEATS,
    CLIENTS,
    LOWERS,
    MESSAGES,
    OWN_ACTS,
    QUITS,
    RESTS,
    SHARDS,
    STOPS,
    TAKEOVERS,
    THRESHOLD,
    WIPED,
    Fault,
    Setting,
    holders_of,
)
from tests.kits.changing_roster import Issuer
from tests.kits.cheats import cheats, lies, small_error, spoil_one, spoils
from tests.kits.evaluations import judged
from tests.kits.federations import Tensors
from tests.kits.feedback_kit import Recorded
from tests.kits.streams import seconds


class Subject(Recorded):
    """A trainer of the federation, which evaluates too; `frozen`: it has a base that stays."""

    def __init__(self, number: int, shape: tuple[int, ...], frozen: bool = False) -> None:
        super().__init__(number, shape)
        self._base: Tensors = {"base.scale": np.full(3, 1.5, np.float32)} if frozen else {}

    def parameters(self, seed: int) -> Tensors:
        return self._base | super().parameters(seed)

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        moving = {name: each for name, each in parameters.items() if name not in self._base}
        made = super().fit(moving, config)
        return replace(made, parameters=self._base | made.parameters)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return judged(self._number, parameters)


DEEDS = {RESTS: OwnDeed.PAUSE, LOWERS: OwnDeed.LOWER_BUDGET, QUITS: OwnDeed.LEAVE}
LATER = 1.0
"""Seconds after which it is tried once more, where the client takes part in no run yet."""


class DataHolders:
    """Of the clients of one run; `gone` are those whose client may be in no later version."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._acting = {fault.who for fault in world.faults if fault.kind in OWN_ACTS}
        self.gone: set[str] = set()

    def watch(self, name: str, executor: Executor) -> None:
        """A client that has started reads its acts, as its process does."""
        if name in self._acting:
            own = self._world._kit.identities[name].public
            ActWatch(name, executor, self._world._stores[name].folder, own).start()

    def act(self, fault: Fault) -> None:
        """What a seed says, once the client takes part."""
        name = fault.who
        executor = self._world.parties[name]
        if executor.halted.done() and name not in self._world.down:
            return
        if name in self._world.down or not executor.run:
            self._world.loop.call_later(LATER, partial(self.act, fault))
            return
        if fault.kind != RESTS:
            self.gone.add(name)
        if fault.kind == STOPS:
            executor.post(WORKER, Leave("whoever runs this client has stopped it"))
            return
        self._note(name, DEEDS[fault.kind], fault.seconds if fault.kind == LOWERS else None)
        if fault.kind == RESTS:
            back = partial(self._note, name, OwnDeed.GO_ON)
            self._world.loop.call_later(fault.seconds, back)

    def _note(self, name: str, what: OwnDeed, budget: float | None = None) -> None:
        """Writes a line; another process does, at which the client's faults do not strike."""
        world = self._world
        if name in world.down:  # whatever becomes of its disk is over then
            world.loop.call_later(LATER, partial(self._note, name, what, budget))
            return
        folder, me = world._stores[name].folder, world._kit.identities[name]
        if budget is not None and world.plan.section.privacy is not None:
            try:
                world._ledgers[name].lower(budget)
            except ConfigError:  # it has a lower one already: the command refuses, and says no more
                return
        with patch.object(world, "_acting", ""):
            folder.mkdir(parents=True, exist_ok=True)
            ActLines(folder, name, me, world.loop.now).note(act_text(what, budget))


def answers(world: World, party: str, message: Any, answer: Any) -> None:
    """An answer leaves: what it acknowledges is there after a cut."""
    if isinstance(answer, SecurepsError) or not isinstance(message, PutBlock | Submit):
        return
    journal = world._stores[party].journal
    assert isinstance(journal, Journal)
    known: Submit | BlockHeader
    if isinstance(message, Submit):
        name, known = str(message.receipt.id), Submit(message.receipt)
    else:
        name, known = message.header.key, message.header
        if not (_durable(world, party, name) or _let_go(world, party, message.header)):
            world.evidence.broken(f"{party} acknowledged {name} before it was durable")
    if takeover.lacks(world, party, known):
        world.evidence.broken(f"{party} acknowledged {name} before its standby had it")
    if known not in journal.durable:
        world.evidence.broken(f"{party} acknowledged {name} before that was in its journal")


def _durable(world: World, party: str, key: str) -> bool:
    spool = world._stores[party].spool
    assert isinstance(spool, DiskSpool)
    path = spool.path(key)
    return path.exists() and world._disk.durable(path)


def _let_go(world: World, party: str, header: BlockHeader) -> bool:
    """Whether a shard had a block, and lets go of it rightly: what it was for is settled.

    An answer waits for copies elsewhere, and meanwhile the coordinator may say so.
    """
    machine = world.parties[party].machine
    if not isinstance(machine, Shard) or header in machine.state.spooled.values():
        return False
    federation = world.coordinator.federation
    if header.purpose == OPENED:
        return federation.groups[header.group].number > header.sequence
    id = SubmissionId(header.author, header.group, header.sequence)
    return COORDINATOR in world.lost or federation.settled.of(id) is not None


BOUND = 1500.0
"""Virtual seconds after which whoever still waits would wait for ever: no fault lasts so long."""

MOST_EVENTS = 60_000

PATIENCE = 200.0
"""Virtual seconds after a loss in which a run that can end has ended: no deadline is longer."""

READ = 1.0
"""Seconds until a client is started again that ended after its run had gone on."""

_LIVE = re.compile(r"waits for members: (\d+) of \d+ are live")
"""In the reason of a run that opens no round, for too few clients are there."""


def said_live(reason: str) -> int | None:
    """How many clients a run says are there, if it waits for more; None if it does not."""
    found = _LIVE.search(reason)
    return None if found is None else int(found[1])


_NEEDED = re.compile(r"waits for ([^;]*), without whom no set may be tried")
"""In the reason of a run whose cohort was burnt, and whose members must stand in the next ones."""


def said_needed(reason: str) -> set[str]:
    """Without which clients a run says that no set of its clients may be tried."""
    found = _NEEDED.search(reason)
    return set() if found is None else set(re.split(r", | and ", found[1]))


LEADS = (COORDINATOR, STANDBY)

HOLDS = 60
"""Seconds for which a roster holds, by a calendar that moves where one expires."""

WRITES = ("append", "sync", "rename")
"""Operations that a full disk refuses."""


class World(Simulation):
    """One run of one seed; `play` it once."""

    def __init__(self, seed: int, setting: Setting, faults: Sequence[Fault], folder: Path) -> None:
        self.setting = setting
        self.faults = tuple(faults)
        self.evidence = Evidence()
        self.events = 0
        self.stood: str | None = None
        self.lost: dict[str, Journal] = {}
        """Parties whose disk was wiped, or went back, and the journals that they had."""
        self.given_up = ""
        """Why the run has no end: what a party's disk lost is nowhere else."""
        self.successors: dict[str, str] = {}
        """Key holders that were replaced, and by whom."""
        self.gone: set[str] = set()
        """Coordinators that are lost for good."""
        self.revoked: set[str] = set()
        """Clients that were taken off the roster."""
        self.newcomers: list[str] = []
        """Clients that came onto it."""
        self.brought: set[str] = set()
        """Clients that have been brought the newest kit, since a shard came."""
        self.spares: list[str] = []
        """Shards that came onto it."""
        self.data_holders = DataHolders(self)
        self._lost_at = 0.0
        self._run_failed = False
        self._rng = random.Random(f"chaos-disk/{seed}")
        self._root = folder
        (folder / "links").mkdir()
        self._disk = Disk(self._gate, folder / "links")
        self._acting = ""
        self._loops: dict[str, PartyLoop] = {}
        self.down: set[str] = set()
        self._full: dict[str, float] = {}
        self._operations: Counter[str] = Counter()
        by_event = [f for f in faults if f.kind not in (*MESSAGES, *CHEATS, "dies", "torn")]
        self._due = sorted(by_event, key=lambda fault: fault.at)
        self._fatal = {(f.who, f.at): f for f in faults if f.kind in ("dies", "torn")}
        self._cheats = [f for f in faults if f.kind in CHEATS]
        trainers = {
            name: Subject(i, SHAPE, setting.frozen) for i, name in enumerate(client_names(CLIENTS))
        }
        self._trainers = trainers
        conditions = Conditions(
            Delays(seed),
            lambda clock, delay: ChaosNetwork(
                clock, delay, table(faults), self.evidence.leaves, partial(answers, self)
            ),
            self._journal,
            lambda name: DiskSpool(folder / name / "spool"),
            standby=any(STANDBY in (f.who, f.to) or f.kind in TAKEOVERS for f in faults),
        )
        cast = Cast(trainers, UnsafeSeed(3), seconds)
        self.issuer = Issuer(kit_of(plan_of(setting), client_names(CLIENTS)), HOLDS)
        self._first = self.issuer.kit
        with (
            self._disk.installed(),
            patch.object(simulation, "make_memory_kit", lambda *given: self._first),
        ):
            super().__init__(plan_of(setting), cast, folder, conditions)
        self.operator = Operator(self.network, self.loop, self.evidence, self._ended_well)

    # --- the run ------------------------------------------------------------------

    def play(self) -> None:
        """To the end, or until `stood` says why there is none; holders' keys serve one cohort."""
        with self._disk.installed(), patch.object(holder, "KEY_COHORTS", 1):
            while not self._ended_well() and self.stood is None and not self.given_up:
                try:
                    if not self.loop.run(self._next):
                        self.stood = f"nothing is left to happen: {self.reasons()}"
                except Dead:
                    pass  # `_fall` has seen to it

    def _next(self) -> bool:
        """Before each event: what is due happens; whether this is the end."""
        self.events += 1
        while self._due and self._due[0].at <= self.events:
            self._happen(self._due.pop(0))
        if self.loop.now() > BOUND or self.events > MOST_EVENTS:
            waiting = [n for n in self.parties if not self.parties[n].halted.done()]
            when = f"{self.loop.now():.0f} seconds and {self.events} events"
            self.stood = f"after {when} {', '.join(waiting)} still wait: {self.reasons()}"
        for name in sorted(self._failed):
            if takeover.ended(self, name):
                continue
            if not self._may_end(name):
                self.stood = f"{name} ended: {self._why(name)}"
            elif isinstance(self.parties[name].machine, Holder):
                self._failed.discard(name)  # the other holders may suffice
            else:
                self.given_up = self._why(name)
        if self.lost and self.loop.now() > self._lost_at + PATIENCE and not self.given_up:
            self._start_missed()
            self.given_up = self._waits_in_vain()
        return self.stood is not None or bool(self.given_up) or self._ended_well()

    def _may_end(self, name: str) -> bool:
        """Whether a server may end for the reason that it gives, after what was lost."""
        own = name in self.lost and self._error(name) in (DamagedStore, Refused)
        own |= name in self.successors
        return own or (COORDINATOR in self.lost and self._error(name) is WrongRun)

    def _waits_in_vain(self) -> str:
        """What an operator reads of a run that has no end; empty if nothing is said."""
        elsewhere, said = self.coordinator._sessions.elsewhere, self.reasons()
        ended = {name for name, party in self.parties.items() if party.halted.done()}
        if self.coordinator.federation.pinned is None:
            knowing = {name for name, party in self.parties.items() if self._knows(party.machine)}
            told = knowing - ended <= elsewhere.keys()  # a shard that was removed says nothing
            return f"waits for the coordinator's folder: {said}" if told else ""
        here = set(holders_of(self.setting)) - ended - elsewhere.keys()
        here -= {fault.to for fault in self._cheats}  # of an envelope that does not open
        if len(here) < min(THRESHOLD, len(holders_of(self.setting))):
            return said if "key holders" in said else ""
        left = [
            name
            for name in sorted(self.lost.keys() & ended)
            if name in self.clients or said.endswith(f"waits for {name}")
        ]
        bounds = [self.plan.bounds(group) for group in self.plan.groups]
        least = min(CLIENTS if self.setting.rule == "all" else each.minimum for each in bounds)
        here = set(self.clients) - ended
        # A round opens with more members than it may close with.
        needed = len(here) < least or said_live(said) == len(here - {self.setting.judge})
        missed = said_needed(said)
        needed |= bool(missed) and missed <= set(left)
        # Where the deadline never comes, the answers of the other key holders are not enough.
        needed |= self.setting.rule == "all" and not set(left) <= set(self.clients)
        return f"{self._why(left[0])} ({said})" if left and needed else ""

    def _start_missed(self) -> None:
        """Whoever runs a client that has left starts it again, if the reason of the run says so."""
        reason = self.reasons()
        for name in self.clients:
            left = name not in self.down and self.parties[name].halted.done()
            if left and re.search(rf"; start [^;]*\b{name}\b[^;]* again with the state", reason):
                self._start_again(name)

    @staticmethod
    def _knows(machine: Machine) -> bool:
        """Whether this is a server's machine that takes part in a run."""
        match machine:
            case Shard():
                return machine.state.is_pinned
            case Holder():
                return machine.is_pinned
        return False

    def _error(self, name: str) -> type[BaseException] | None:
        """Of which class the reason is for which a party has ended."""
        halted = self.parties[name].halted
        error = halted.exception()
        return type(error) if error is not None else halted.result().error

    def _ended_well(self) -> bool:
        return not self.down and self._over() and self._shards_follow()

    def _shards_follow(self) -> bool:
        """True once every running shard knows where blocks lie: only then it serves all of them."""
        pinned = self.coordinator.federation.pinned
        placed = () if pinned is None else pinned.placement.shards
        shards = [self.parties[name] for name in placed if name in self.parties]
        return all(
            shard.halted.done()
            or not shard.machine.state.is_pinned
            or shard.machine.state.pinned.placement == pinned.placement
            for shard in shards
            if isinstance(shard.machine, Shard) and pinned is not None
        )

    def _why(self, name: str) -> str:
        halted = self.parties[name].halted
        error = halted.exception()
        if error is None:
            return str(halted.result())
        cause = f" from {error.__cause__!r}" if error.__cause__ else ""
        return f"{error!r}{cause}"

    def ends(self) -> dict[str, str]:
        """What every party that has ended said last."""
        return {n: self._why(n) for n, party in self.parties.items() if party.halted.done()}

    @property
    def emptied(self) -> bool:
        """Whether a shard came back with an empty disk when the run was over."""
        pinned = self.coordinator.federation.pinned
        holding = () if pinned is None else pinned.placement.shards
        machines = (self.parties[name].machine for name in holding)
        return any(
            isinstance(machine, Shard) and not _has_model(machine, self.versions())
            for machine in machines
        )

    # --- faults -------------------------------------------------------------------

    def _happen(self, fault: Fault) -> None:
        until = self.loop.now() + fault.seconds
        match fault.kind:
            case "kill" | "power" | "wiped":
                self._fall(fault)
            case "older":
                self._copy(fault)
            case "away":
                self._take_away(fault)
            case "rots":
                files = [path for path in (self._root / fault.who).rglob("*") if path.is_file()]
                if files:
                    self._disk.rot(self._rng.choice(sorted(files)), self._rng)
            case "asks":
                self._look(fault.who)
            case "pause":
                self._loops[fault.who].pause(fault.seconds)
            case "jump":
                self._loops[fault.who].jump(fault.seconds)
            case "full":
                self._full[fault.who] = until
            case "part":
                assert isinstance(self.network, ChaosNetwork)
                self.network.part(fault.who, fault.to, fault.seconds)
            case "stands" | "saves" | "omits":
                self.operator.act(fault)
            case "rests" | "lowers" | "quits" | "stops":
                self.data_holders.act(fault)
            case "added" | "drained" | "removed":
                shards.happen(self, fault)
            case "replaced" | "revoked" | "renewed" | "comes":
                rosters.happen(self, fault)
            case "gone" | "frozen" | "commanded":
                takeover.happen(self, fault)

    def _look(self, who: str) -> None:
        """Asks the coordinator for what anybody may know."""

        def told(wanted: type[object], done: Future[Any]) -> None:
            reply = done.exception() or done.result()
            if not isinstance(reply, wanted | SecurepsError):
                self.evidence.broken(f"{who} asked for a {wanted.__name__} and heard {reply!r}")

        for message, wanted in ((AskRun(), Welcome), (AskStatus(), Status)):
            answer = self.network.transport(who).call(COORDINATOR, message)
            answer.add_done_callback(partial(told, wanted))

    def _fall(self, fault: Fault) -> None:
        name = fault.who
        away = self.down | self.gone | self.successors.keys()
        if name in away or name not in self.parties:  # a spare shard may be yet to come
            return
        if (name, fault.kind) == (STANDBY, WIPED) and not takeover.spare(self):
            return  # it may rule, or be all that is left of the run
        self.put_out(name)
        if fault.kind in ("power", "torn"):
            journal = self._stores[name].journal
            assert isinstance(journal, Journal)
            journal.cut()
            with patch.object(self, "_acting", ""):
                self._disk.cut(self._root / name, self._rng, lambda path: True)
                self._disk.cut(self.checkpoints, self._rng, lambda path: self._owner(path) == name)
        if fault.kind == WIPED:
            self._empty(name)
        self.loop.call_later(fault.seconds, partial(self.start, name))

    def _empty(self, name: str) -> None:
        self._note_loss(name)
        self._disk.wipe(self._root / name)
        self.lose(name, UnsafeSeed(4))

    def _note_loss(self, name: str) -> None:
        journal = self._stores[name].journal
        assert isinstance(journal, Journal)
        self.lost.setdefault(name, journal)
        self._lost_at = self.loop.now()

    def _copy(self, fault: Fault) -> None:
        """A party's disk is copied, and it has the copy later in place of what it came to."""
        self.loop.call_later(fault.seconds, partial(self._go_back, self._copied(fault.who), True))

    def _copied(self, name: str) -> Copy:
        journal, folder = (
            self._stores[name].journal,
            self._root / "copies" / f"{name}-{self.events}",
        )
        assert isinstance(journal, Journal)
        shutil.copytree(self._root / name, folder)
        return Copy(name, folder, list(journal.rows))

    def _go_back(self, copy: Copy, older: bool) -> None:
        name = copy.name
        if name in self.down:  # once it is up again
            self.loop.call_later(1.0, partial(self._go_back, copy, older))
            return
        self.put_out(name)
        if older:
            self._note_loss(name)
        self._disk.bring(copy.folder, self._root / name)
        self._stores[name] = replace(self._stores[name], journal=self._journal(name, copy.rows))
        self.loop.call_later(1.0, partial(self.start, name))

    def _take_away(self, fault: Fault) -> None:
        """A coordinator's volume is not mounted when it is started, and is at its next start."""
        if fault.who in self.down:
            return
        copy = self._copied(fault.who)
        self.put_out(fault.who)
        servers = (*shard_names(SHARDS), *holders_of(self.setting))
        if not all(self._knows(self.parties[name].machine) for name in servers):
            self._note_loss(fault.who)  # nobody knows of its run yet, and another may be founded
        self._disk.wipe(self._root / fault.who)
        self.lose(fault.who, UnsafeSeed(4))
        self.loop.call_later(1.0, partial(self.start, fault.who))
        self.loop.call_later(1.0 + fault.seconds, partial(self._go_back, copy, False))

    def put_out(self, name: str) -> None:
        self.down.add(name)
        self._loops[name].dead = True
        self.kill(name)

    @staticmethod
    def _owner(path: Path) -> str:
        """Who writes this into a folder of checkpoints; nobody alone makes the folder itself."""
        name = path.name.removesuffix(".new")
        return COORDINATOR if name == MANIFEST else name.removesuffix(".safetensors")

    def _gate(self, operation: str) -> None:
        party = self._acting
        if not party:
            return
        self._operations[party] += 1
        fault = self._fatal.pop((party, self._operations[party]), None)
        if fault is not None and party not in self.down:
            self._fall(fault)
            raise Dead(party)
        if operation in WRITES and self.loop.now() < self._full.get(party, 0.0):
            if operation == "append":
                raise DiskFailed("journal: cannot write: database or disk is full")
            raise OSError(errno.ENOSPC, "No space left on device")

    # --- parties ------------------------------------------------------------------

    @property
    def clients(self) -> tuple[str, ...]:
        return (*client_names(CLIENTS), *self.newcomers)

    def admit(self, name: str) -> None:
        """A client begins that was not there at the start."""
        self.newcomers.append(name)
        number = CLIENTS + len(self.newcomers) - 1
        self._trainers[name] = Subject(number, SHAPE, self.setting.frozen)
        self.start(name)

    def start(self, name: str) -> None:
        """As `Simulation.start`, under this world's eyes; cheats go on cheating."""
        if name in self.successors or name in self.gone:
            return
        super().start(name)
        self.loop.call_later(0.0, partial(self._up, name, self._loops[name]))
        for fault in self._cheats:
            if fault.who == name:
                self._cheat(fault)

    def _cheat(self, fault: Fault) -> None:
        match fault.kind:
            case "spoil":
                spoils(self, fault.who, int(fault.at))
            case "lie":
                lies(self, fault.who, small_error, int(fault.at))
            case "flaws":
                place = holders_of(self.setting).index(fault.to)
                cheats(self, fault.who, partial(spoil_one, holder=place), int(fault.at))

    def _ended(self, name: str, halted: Future[Halt]) -> None:
        super()._ended(name, halted)
        if name.startswith("shard-"):
            self.loop.call_later(0.0, partial(self._left, name, self.parties[name]))
        elif rosters.outdated(self, name, halted):
            self.down.add(name)
            self.loop.call_later(rosters.BROUGHT, partial(rosters.bring, self, name))
        elif self._hears_late(name, halted):
            self.down.add(name)
            self.loop.call_later(READ, partial(self._start_again, name))

    def _hears_late(self, name: str, halted: Future[Halt]) -> bool:
        """Whether a client was stopped for so long that the run, of whose failure it hears, goes on
        again already."""
        if name not in self.clients or halted.exception() is not None or self._run_failed:
            return False
        return halted.result().reason.endswith(COME_BACK)

    def _start_again(self, name: str) -> None:
        """Whoever runs a client has read why it ended."""
        self.put_out(name)
        self.start(name)

    def _left(self, name: str, executor: Executor) -> None:
        """A shard was removed: its process ends, and with it its connections."""
        if self.parties[name] is executor and not self.coordinator.federation.finished:
            self.network.detach(name)

    def _restart(self, name: str) -> None:
        if name not in self.down:
            self._loops[name].dead = True
            super()._restart(name)

    def _up(self, name: str, own: PartyLoop) -> None:
        """It knows its journal, unless it died over that: then it is started once more."""
        if not own.dead:
            self.down.discard(name)

    def _journal(self, name: str, rows: list[tuple[float, Any]] | None = None) -> Journal:
        return Journal(self._gate, partial(self._journalled, name), rows)

    def _journalled(self, name: str, record: Any) -> None:
        """A record is durable. A run that failed waits for who had left, once it goes on.

        What a coordinator writes that does not rule says nothing of the run: it was stopped while
        its standby took over, say, and begins anew before it hears of that.
        """
        self.evidence.journalled(name, record)
        if name != self.ruler:
            return
        if isinstance(record, Ending | Finished):
            self._run_failed = bool(record.failure)
        elif isinstance(record, Incarnated) and self._run_failed:
            self._run_failed = False
            self.loop.call_later(0.0, self._bring_back)

    def _bring_back(self) -> None:
        """Whoever runs a client that has ended starts it again."""
        for name in self.clients:
            if name not in self.down and self.parties[name].halted.done():
                self.kill(name)
                self.start(name)

    def _make(self, name: str) -> Executor:
        begin = 0.0
        if (old := self._stores.get(name)) is not None:
            assert isinstance(old.journal, Journal)
            begin = old.journal.last  # the rows that a standby copied may be later than its own
            spool = DiskSpool(old.folder / "spool")
            self._stores[name] = Stores(self._journal(name, old.journal.rows), spool, old.folder)
        own = self._loops[name] = PartyLoop(self.loop, begin, partial(self._act, name))
        later = (*self.successors.values(), *self.newcomers, *self.spares, *self.brought)
        # whoever begins anew where a shard came gets the current kit: with its first it cannot join
        anew = self.lost.keys() if self.spares else ()
        newest = name in (*LEADS, *later, *anew)
        self._kit = self.issuer.kit if newest else self._first
        whole, self.loop = self.loop, own  # type: ignore[assignment]
        try:
            executor = super()._make(name)
        finally:
            self.loop = whole
        role = COORDINATOR if name in LEADS else name.rpartition("-")[0]
        self.evidence.watch_machine(role, executor.machine)
        if isinstance(executor.worker, ClientWorker):
            self.evidence.watch_sealing(executor.worker)
            self.data_holders.watch(name, executor)
        if isinstance(executor.worker, ShardWorker):
            self.evidence.watch_noise(executor.worker)
        return executor

    def _act(self, name: str, action: Callable[[], None]) -> None:
        before, self._acting = self._acting, name
        try:
            action()
        finally:
            self._acting = before


def _has_model(shard: Shard, versions: dict[str, int]) -> bool:
    return shard.state.is_pinned and all(
        version in shard.state.group(group).states for group, version in versions.items()
    )
