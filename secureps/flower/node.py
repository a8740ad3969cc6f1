"""A client of `secureps join` in waves, by the kit that its node has.

All that outlives a wave lies in the node's state folder, nothing in Flower's context.
"""

from __future__ import annotations

from collections.abc import Mapping

from secureps.client.runner import LOCAL, put_together
from secureps.client.site import Site
from secureps.crypto.sampling import NO_PRIVACY, Seed, UnsafeSeed
from secureps.flower.node_settings import NodeSettings, policy_of
from secureps.flower.trainer import AppTrainer
from secureps.roles.member.settings import MemberSettings
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.logs import tell
from secureps.service.one_wave import Answer, OneWave
from secureps.store.atomic_file import own
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.keyring import demand_host, load_private, load_public, own_seed


class Node:
    """One client, by its kit.

    Raises:
        KitError, ConfigError: its kit or its site's file cannot be used, or is for another host.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._kit = load_public(settings.kit)
        demand_host(self._kit.roster, settings.kit)
        identity = load_private(settings.kit, settings.name, roster=self._kit.roster)
        self._party = OneWave(settings.name, identity, self._kit, settings.kit, settings.state)
        self._policy = policy_of(settings.site)
        own(settings.state)
        self._seed = self._own_seed()

    def wave(self, data: bytes, payloads: Mapping[bytes, bytes], trainer: AppTrainer) -> Answer:
        """Hears one batch of the servers', and answers it; raises as `OneWave.play`."""
        settings, policy = self._settings, self._policy
        ledger = policy.ledger_of(None) or default_ledger(settings.kit, settings.name)
        site = Site(
            settings.name,
            trainer,
            self._party.identity,
            self._seed,
            self._kit.holder_keys,
            settings.state / LOCAL,
            records=policy.records,
            ledger=BudgetLedger(ledger, policy.terms.budget, policy.terms.updates_per_hour),
        )
        # Of the app's values the node knows nothing: no plan in Flower's engine freezes any.
        terms, records = policy.terms, policy.records
        member = MemberSettings(
            settings.name, self._kit.roster, trainer.schema, terms, records=records
        )

        def make(stores: Stores, around: Environment) -> Executor:
            return put_together(member, site, stores, around)

        return self._party.play(data, payloads, make)

    def _own_seed(self) -> Seed:
        if self._settings.unsafe_seed is None:
            return own_seed(self._settings.state / "seed")
        tell(self._settings.name, "Note", NO_PRIVACY)
        return UnsafeSeed(self._settings.unsafe_seed)
