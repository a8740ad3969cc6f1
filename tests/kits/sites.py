"""Clients of a simulation whose sites have a policy, with ledgers that go by the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from secureps.client.runner import make_member
from secureps.client.worker import Site
from secureps.messages.requests import AskStatus, Status
from secureps.policy.plan import Plan
from secureps.roles.member.terms import Terms
from secureps.run.simulate import simulation as room
from secureps.run.simulate.simulation import Simulation
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.store.budget import BudgetLedger
from secureps.store.keyring import PublicKit
from tests.kits.federations import Walker, small_federation


@dataclass
class Sites:
    """A simulation of six walkers, some of them at sites with a policy.

    Args:
        terms: by client; ledgers: by client, of those that have one.
        began: Unix seconds at the simulation's start.
    """

    plan: Plan
    folder: Path
    terms: Mapping[str, Terms]
    ledgers: Mapping[str, Path]
    patch: pytest.MonkeyPatch
    began: float = 1e9

    def __post_init__(self) -> None:
        self.patch.setattr(room, "make_member", self._made)
        self.play: Simulation = small_federation(self.plan, self.folder)

    def now(self) -> float:
        return self.began + self.play.loop.now()

    def _made(
        self,
        kit: PublicKit,
        site: Site,
        stores: Stores,
        around: Environment,
        cost: Callable[[object], float],
        terms: Terms,
    ) -> Executor:
        own = self.terms.get(site.name, terms)
        if path := self.ledgers.get(site.name):
            ledger = BudgetLedger(path, own.budget, own.updates_per_hour, self.now)
            site = replace(site, ledger=ledger)
        return make_member(kit, site, stores, around, cost, own)

    def run(self, until: Callable[[], bool] | None = None) -> Sites:
        self.play.run(until or (lambda: bool(self.play.coordinator.federation.finished)))
        return self

    def trained(self, name: str) -> int:
        trainer = self.play._cast.trainers[name]
        assert isinstance(trainer, Walker)
        return trainer.fits

    def state(self, name: str) -> str:
        """As `secureps status` shows it; empty before it joined."""
        seen = self.play.coordinator.view(self.play.loop.now(), "client-00", AskStatus())
        assert isinstance(seen, Status)
        return next((each.state for each in seen.members if each.name == name), "")
