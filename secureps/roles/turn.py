"""One turn of the coordinator: the state, the time, and the step that is being built.

`write` journals a fact and folds it at once; `order` speaks to whoever watches now (a
party that does not is told when it subscribes). What must not live here: decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from secureps.policy.plan import Plan
from secureps.roles.federation import Federation
from secureps.roles.machine import Order, Step


@dataclass(slots=True)
class Turn:
    """Args: `live` are the clients whose lease runs at `now`, `watchers` who can be told."""

    now: float
    plan: Plan
    federation: Federation
    holders: tuple[str, ...]
    live: frozenset[str]
    watchers: frozenset[str]
    step: Step = field(default_factory=Step)

    def write(self, record: Any) -> None:
        """Journals and folds one record."""
        self.step.records.append(record)
        self.federation.apply(self.now, record)

    def order(self, to: str, message: Any) -> None:
        """Tells one party, if it watches."""
        if to in self.watchers:
            self.step.effects.append(Order(to, message))

    def tell_clients(self, message: Any) -> None:
        """Tells every member that watches, in the order of joining."""
        for client in self.federation.members:
            self.order(client, message)

    def tell_shards(self, group: str, make: Callable[[str, tuple[int, ...]], Any]) -> None:
        """Tells every shard that holds blocks of a group: make(shard, its blocks)."""
        for shard, blocks in self.federation.owners(group).items():
            self.order(shard, make(shard, blocks))
