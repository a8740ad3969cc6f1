"""Makes each server from its machine, stores and environment, for processes and simulations.

A server runs once `Executor.start` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from secureps.crypto.cipher import Opening
from secureps.crypto.identity import Identity
from secureps.crypto.sampling import Seed
from secureps.crypto.secret import Secret
from secureps.crypto.suite import refuse_unsealable
from secureps.messages.run import COORDINATOR, Schema, ShardAddress
from secureps.policy.plan import Plan
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.reign import Standby
from secureps.roles.holder.bfv import BfvHolder
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.holder import HolderRules
from secureps.roles.pinned_run import PinnedRun
from secureps.roles.shard.shard import Shard
from secureps.roles.shard.state import UNLIMITED, Limit
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.holder import BfvWorker, CommitteeWorker
from secureps.service.lead import CoordinatorWorker, Lead, StandbyWorker
from secureps.service.shard.states import ShardFolders
from secureps.service.shard.worker import ShardNoise, ShardWorker
from secureps.store.backup import CopyParts
from secureps.store.envelope_keys import (
    RUNS,
    EnvelopeKeys,
    ServedJournal,
    load_keys,
    read_served_runs,
)
from secureps.store.keyring import PublicKit
from secureps.store.kit_files import Passphrases


def pinned_run(
    kit: PublicKit,
    plan: Plan,
    initial: Schema | None,
    nonce: bytes,
    examined: bool = True,
    elsewhere: bool = False,
) -> PinnedRun:
    keys = tuple(kit.holder_keys.values())
    return PinnedRun(plan, kit.roster, initial, nonce, keys, examined, elsewhere)


def make_coordinator(
    run: PinnedRun, checkpoints: Path, stores: Stores, around: Environment
) -> Executor:
    """Makes a coordinator; PlanRefused if a user's rule cannot be imported or made."""
    run.plan.make_rules()
    machine = Coordinator(run)
    worker = CoordinatorWorker(machine, checkpoints)
    return Lead(machine, stores.journal, around, worker)


def make_standby(
    kit: PublicKit, plan: Plan, number: bytes, stores: Stores, around: Environment
) -> Executor:
    """Makes a coordinator's standby; `number` is its folder's. PlanRefused as above."""
    journal = stores.journal
    machine = Standby(plan, kit.roster, number, journal.mark.seq, journal.mark.chain)
    plan.make_rules()
    copy = Coordinator(pinned_run(kit, plan, None, b""))
    worker = StandbyWorker(journal, copy, CopyParts(stores.folder))
    executor = Executor(COORDINATOR, machine, journal, around, worker)
    worker.hear = lambda record: executor.later(partial(executor.hear, record))
    return executor


def make_shard(
    kit: PublicKit,
    address: ShardAddress,
    seed: Seed,
    folders: ShardFolders,
    stores: Stores,
    around: Environment,
    limit: Limit = UNLIMITED,
    adding: Callable[[int], float] = lambda blocks: 0.0,
) -> Executor:
    """Makes a shard; `adding` gives the virtual seconds to add up so many blocks of updates."""
    machine = Shard(address, kit.roster, not seed.private, limit)
    noise = ShardNoise(machine.state, stores.spool, seed, kit.holder_keys)
    worker = ShardWorker(machine.state, stores.spool, folders, noise, limit)
    worker.adding = adding
    return Executor(address.name, machine, stores.journal, around, worker)


def make_holder(
    kit: PublicKit,
    name: str,
    identity: Identity,
    secret: Secret,
    rules: HolderRules,
    stores: Stores,
    around: Environment,
) -> Executor:
    """Makes a key holder; ConfigError if it is one of bfv and that extra is not installed."""
    if isinstance(secret, EnvelopeKeys):
        member = CommitteeHolder(name, kit.roster, rules)
        committee_worker = CommitteeWorker(member, identity, secret)
        return Executor(name, member, stores.journal, around, committee_worker)
    refuse_unsealable(Opening.HOLDER)
    machine = BfvHolder(name, kit.roster, rules)
    worker = BfvWorker(machine, identity, secret, stores.spool)
    return Executor(name, machine, stores.journal, around, worker)


def load_holder(
    kit: PublicKit,
    folder: Path,
    identity: Identity,
    name: str,
    minimum: int,
    threshold: int | None = None,
    passphrases: Passphrases | None = None,
) -> Callable[[Stores, Environment], Executor]:
    """Loads a key holder's keys and the runs that they have served, and returns what makes it.

    `folder` is the holder's kit. Raises KitError as `load_keys`.
    """
    secret, runs = load_keys(folder, name, passphrases), folder / "private" / name / RUNS
    rules = HolderRules(minimum, read_served_runs(runs), threshold)

    def make(stores: Stores, around: Environment) -> Executor:
        noted = replace(stores, journal=ServedJournal(stores.journal, runs))
        return make_holder(kit, name, identity, secret, rules, noted, around)

    return make
