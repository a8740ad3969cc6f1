"""Makes a server of its machine, its stores and its environment, as a process or in a simulation.

Nothing starts before `Executor.start`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from secureps.crypto.cipher import Opening
from secureps.crypto.identity import Identity
from secureps.crypto.sampling import Seed
from secureps.crypto.secret import Secret
from secureps.crypto.suite import refuse_unsealable
from secureps.messages.run import COORDINATOR, ShardAddress
from secureps.messages.schema import Schema
from secureps.policy.plan import Plan
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.standby import Standby
from secureps.roles.holder.bfv import BfvHolder
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.ledger import HolderRules
from secureps.roles.pinned_run import PinnedRun
from secureps.roles.shard.memory_limit import Limit
from secureps.roles.shard.shard import Shard
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.holder import BfvWorker, CommitteeWorker
from secureps.service.lead import CoordinatorWorker, Lead, StandbyWorker
from secureps.service.shard.noise import ShardNoise
from secureps.service.shard.tiers import ShardFolders, nowhere
from secureps.service.shard.worker import ShardWorker
from secureps.store.backup import CopyParts
from secureps.store.envelope_keys import EnvelopeKeys
from secureps.store.journal import FollowedJournal
from secureps.store.keyring import PublicKit


def pinned_run(
    kit: PublicKit,
    plan: Plan,
    initial: Schema | None,
    nonce: bytes,
    examined: bool = True,
    elsewhere: bool = False,
) -> PinnedRun:
    """What a coordinator with this kit founds a run on; the arguments as in `PinnedRun`."""
    keys = tuple(kit.holder_keys.values())
    return PinnedRun(plan, kit.roster, initial, nonce, keys, examined, elsewhere)


def make_coordinator(
    run: PinnedRun, checkpoints: Path, stores: Stores, around: Environment
) -> Executor:
    """Makes a coordinator; PlanRefused if a rule of the user's cannot be imported or made."""
    run.plan.make_rules()
    machine = Coordinator(run)
    worker = CoordinatorWorker(machine, checkpoints)
    if isinstance(stores.journal, FollowedJournal):
        return Lead(machine, stores.journal, around, worker)
    return Executor(COORDINATOR, machine, stores.journal, around, worker)


def make_standby(
    kit: PublicKit, plan: Plan, number: bytes, stores: Stores, around: Environment
) -> Executor:
    """Makes a standby of the folder with this number; PlanRefused as for a coordinator."""
    journal = stores.journal
    assert isinstance(journal, FollowedJournal)
    machine = Standby(plan, kit.roster, number, journal.mark.seq, journal.mark.chain)
    plan.make_rules()
    copy = Coordinator(pinned_run(kit, plan, None, b""))
    worker = StandbyWorker(journal, copy, CopyParts(stores.folder))
    executor = Executor(COORDINATOR, machine, journal, around, worker)
    worker.hear = lambda record: executor.later(partial(executor.hear, record))
    return executor


@dataclass(frozen=True)
class ShardSettings:
    """A shard's address, seed, folder of checkpoints, and number of threads for its blocks.

    `elsewhere`, `initial` as in `ShardFolders`; `memory` is the bytes of values and optimizer state
    that are resident, None for all; `adding` is the virtual seconds that it takes to add up so many
    blocks of updates.
    """

    address: ShardAddress
    seed: Seed
    checkpoints: Path
    threads: int = 1
    elsewhere: Callable[[], Iterator[Path]] = nowhere
    memory: int | None = None
    adding: Callable[[int], float] = lambda blocks: 0.0
    initial: str | None = None


def make_shard(kit: PublicKit, own: ShardSettings, stores: Stores, around: Environment) -> Executor:
    """Makes a shard."""
    address = own.address
    limit = Limit(own.memory, own.threads)
    machine = Shard(address, kit.roster, not own.seed.private, limit)
    folders = ShardFolders(stores.folder / "states", own.checkpoints, own.elsewhere, own.initial)
    noise = ShardNoise(own.seed, kit.holder_keys)
    worker = ShardWorker(address.name, machine.state, stores.spool, folders, noise, limit)
    worker.adding = own.adding
    return Executor(address.name, machine, stores.journal, around, worker)


@dataclass(frozen=True)
class HolderSecrets:
    """The secrets and keys of a key holder.

    Args:
        minimum: the smallest cohort that it opens; served: ids of runs that its key has served;
        threshold: as in `HolderRules`.
    """

    name: str
    identity: Identity
    secret: Secret
    minimum: int
    served: frozenset[bytes] = frozenset()
    threshold: int | None = None


def make_holder(
    kit: PublicKit, own: HolderSecrets, stores: Stores, around: Environment
) -> Executor:
    """Makes a key holder; ConfigError if it opens bfv and that extra is not installed."""
    rules = HolderRules(own.minimum, own.served, own.threshold)
    if isinstance(own.secret, EnvelopeKeys):
        member = CommitteeHolder(own.name, kit.roster, rules)
        committee_worker = CommitteeWorker(member, own.name, own.identity, own.secret)
        return Executor(own.name, member, stores.journal, around, committee_worker)
    refuse_unsealable(Opening.HOLDER)
    machine = BfvHolder(own.name, kit.roster, rules)
    worker = BfvWorker(machine, own.identity, own.name, own.secret, stores.spool)
    return Executor(own.name, machine, stores.journal, around, worker)
