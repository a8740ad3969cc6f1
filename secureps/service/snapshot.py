"""Snapshots of a machine's state: immutable values that other threads may read.

Machines belong to their loop's thread; metrics and health checks read the last `Snapshot`
instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from secureps.messages.run import STANDBY
from secureps.policy.plan import Plan
from secureps.policy.spending import Fact, spent
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.status import why
from secureps.roles.holder.holder import Holder
from secureps.roles.machine import Machine
from secureps.roles.shard.shard import Shard


@dataclass(frozen=True, slots=True)
class Spending:
    """The privacy spent: how often each fact by member (`Ledger.tally`) under a plan.

    An `unsafe` seed protects nobody.
    """

    plan: Plan
    facts: Mapping[str, Mapping[Fact, int]]
    unsafe: bool

    def largest_epsilon(self) -> float | None:
        """The largest epsilon of a member; infinite under an unsafe seed, None without privacy."""
        if self.plan.section.privacy is None:
            return None
        if self.unsafe:
            return math.inf
        return max((spent(self.plan, facts) for facts in self.facts.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a machine at one moment.

    Args:
        ready: it can do its work: a coordinator has read its journal, the others are part
            of a run as well.
        groups: (version, step of the commit) by group; only a coordinator has this and the rest.
        reasons: why each group waits, in words that may name `clients`.
        joined, live: how many clients ever joined, and how many have a lease that runs.
        away: how many servers of a role, "shard" or "holder", do not watch the coordinator now.
        follows: whether the coordinator's standby has everything; None if it never had one.
    """

    ready: bool
    groups: Mapping[str, tuple[int, str]] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    clients: frozenset[str] = frozenset()
    joined: int = 0
    live: int = 0
    away: Mapping[str, int] = field(default_factory=dict)
    follows: bool | None = None
    finished: bool = False
    spending: Spending | None = None

    @classmethod
    def of(cls, machine: Machine, now: float, spending: Spending | None) -> Snapshot:
        """Takes a snapshot, on the machine's own thread.

        With the `spending` of the last one, if it still holds, the ledger is not read again.
        """
        match machine:
            case Coordinator():
                return cls._coordinator(machine, now, spending)
            case Shard():
                return cls(ready=machine.state.founded)
            case Holder():
                return cls(ready=machine.configured)
        return cls(ready=True)

    @classmethod
    def _coordinator(cls, machine: Coordinator, now: float, spending: Spending | None) -> Snapshot:
        federation = machine.federation
        if spending is None:
            facts = {name: federation.ledger.tally(name) for name in federation.members}
            spending = Spending(machine.plan, facts, False)
        live, servers, groups = machine.live(now), machine.servers, federation.groups.values()
        return cls(
            ready=True,
            groups={g.name: (g.version, g.phase.value) for g in groups},
            reasons={g.name: why(machine.plan, federation, live, g, servers) for g in groups},
            clients=frozenset(federation.members),
            joined=len(federation.members),
            live=len(live),
            away={
                role: sum(s.role == role and not s.live for s in servers)
                for role in ("shard", "holder")
            },
            follows=next((s.live for s in servers if s.name == STANDBY), None),
            finished=bool(federation.finished),
            spending=replace(spending, unsafe=bool(federation.unsafe)),
        )
