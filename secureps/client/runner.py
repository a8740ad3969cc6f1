"""Runs one client as a process: `make_member` makes it, `join` takes part until the run ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from secureps.client.initial_model import digests_of, initial_digest, initial_parameters, schema_of
from secureps.client.site_policy import NO_POLICY, SitePolicy
from secureps.client.trainer import (
    Trainer,
    blamed,
    count_records,
    read_touched_rows,
    ties_of,
)
from secureps.client.worker import ClientWorker, Site
from secureps.config.site_files import MOST_EXAMPLES
from secureps.errors import ConfigError
from secureps.exhaustion import disable_core_dumps
from secureps.messages.run import COORDINATOR, demand_address
from secureps.roles.machine import Halt
from secureps.roles.member.member import Member
from secureps.roles.member.terms import NO_TERMS, MemberSettings, Terms
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.process import Party, await_certificates, make_link, run_process
from secureps.store.atomic_file import secure_folder
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.keyring import (
    NATIVE,
    PublicKit,
    choose_seed,
    demand_host,
    demand_role,
    load_private,
    load_public,
)
from secureps.store.kit_files import Passphrases

log = logging.getLogger("secureps")

LOCAL = "local"
"""The folder of local tensors, in a client's state folder."""


def make_member(
    kit: PublicKit,
    site: Site,
    stores: Stores,
    around: Environment,
    cost: Callable[[object], float] = lambda task: 0.0,
    terms: Terms = NO_TERMS,
) -> Executor:
    """Makes a client that insists on `terms`; a task takes `cost` seconds of virtual time.

    Raises ScriptFailed if the trainer failed, or returned something unusable.
    """
    initial = initial_parameters(site.trainer, site.seed)
    with blamed("what parameters returned"):
        schema = schema_of(initial, ties_of(site.trainer))
    with blamed("touches"):
        rows = read_touched_rows(site.trainer, schema)
    with blamed("examples"):
        count_records(site.trainer)  # a wrong number is refused here, before the first update
    last: Literal["", "own", "every"] = "own" if hasattr(site.trainer, "take_totals") else ""
    if site.model is not None:
        last = "every"
    settings = MemberSettings(
        site.name,
        kit.roster,
        schema,
        terms,
        rows,
        site.records,
        initial_digest(site.trainer),
        digests_of(initial),
        last,
    )
    return assemble_member(settings, site, stores, around, cost)


def assemble_member(
    settings: MemberSettings,
    site: Site,
    stores: Stores,
    around: Environment,
    cost: Callable[[object], float] = lambda task: 0.0,
) -> Executor:
    """Makes a client from settings, without asking its trainer."""
    machine = Member(settings)
    worker = ClientWorker(site, machine, stores.spool, cost)
    return Executor(site.name, machine, stores.journal, around, worker)


@dataclass(frozen=True)
class Joining:
    """The options by which a client joins a run, as in `client.session.join`.

    The stricter of `terms` and its site's terms apply. ConfigError if a value is out of range.
    """

    server: str
    kit: Path
    name: str
    state: Path
    unsafe_seed: int | None = None
    terms: Terms = NO_TERMS
    threads: int = 1
    ca_fingerprint: str | None = None
    records: int | None = None
    insecure_for_tests: bool = False
    ledger: Path | None = None
    insecure: bool = False
    passphrases: Passphrases = field(default_factory=Passphrases)
    site: SitePolicy = NO_POLICY
    model: Path | None = None

    @property
    def effective_terms(self) -> Terms:
        own = self.terms
        return self.site.terms.tighten(own.budget, own.threshold, own.plan)

    @property
    def ledger_path(self) -> Path:
        """The ledger over all runs; ConfigError if the option contradicts its site's."""
        return self.site.choose_ledger(self.ledger) or default_ledger(self.kit, self.name)

    def __post_init__(self) -> None:
        demand_address(self.server)
        if self.threads < 1:
            raise ConfigError(f"blocks are sealed by 1 thread or more, got {self.threads}")
        if self.records is not None and not 1 <= self.records <= MOST_EXAMPLES:
            raise ConfigError(
                f"records: a client counts by 1 to {MOST_EXAMPLES} records, got {self.records}"
            )
        if self.model is not None:
            _refuse_model(self.model)


def _refuse_model(path: Path) -> None:
    """Refuses a file that cannot be written after the run, or a device that it would replace."""
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise ConfigError(f"--model: {path} must be a file in a folder that exists")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--model: {path.parent}: this user may not write there")


def join(joining: Joining, trainer: Trainer, make: Callable[..., Executor] = make_member) -> Halt:
    """Takes part until the run ends; returns why it ended. `make` makes the client.

    In a process that only helps another one to train, it does that instead. Raises the
    SecurepsError that ended the client early.
    """
    disable_core_dumps()
    follow, dismiss = (getattr(trainer, name, None) for name in ("follow", "dismiss"))
    if follow is not None:
        with blamed("follow"):
            reason = follow()
        if reason is not None:
            return Halt(reason)
    try:
        halt = _take_part(joining, trainer, make)
    except BaseException:
        if dismiss is not None:
            try:
                dismiss()
            except Exception as error:  # raise the first error, not this one
                log.warning("the processes that trained with it are not dismissed: %s", error)
        raise
    if dismiss is not None:
        with blamed("dismiss"):
            dismiss()
    return halt


def _take_part(joining: Joining, trainer: Trainer, make: Callable[..., Executor]) -> Halt:
    terms, ledger = joining.effective_terms, joining.ledger_path
    records = joining.site.choose_records(joining.records)
    kit = load_public(joining.kit, joining.ca_fingerprint)
    demand_host(kit.roster, joining.kit, NATIVE)
    demand_role(kit.roster, joining.name, "client", "name")
    identity = load_private(joining.kit, joining.name, joining.passphrases)
    secure_folder(joining.state)  # only now: a misspelt kit or name must leave no folder
    seed = choose_seed(
        joining.state, joining.unsafe_seed, joining.server, joining.insecure_for_tests
    )

    def build(stores: Stores, around: Environment) -> Executor:
        site = Site(
            joining.name,
            trainer,
            identity,
            seed,
            kit.holder_keys,
            stores.folder / LOCAL,
            joining.threads,
            records,
            BudgetLedger(ledger, terms.budget, terms.updates_per_hour),
            model=joining.model,
        )
        return make(kit, site, stores, around, terms=terms)

    if not joining.insecure:
        await_certificates(joining.kit, joining.name)
    link = make_link(joining.kit, joining.name, kit.ca, joining.insecure, joining.passphrases)
    party = Party(joining.name, identity, link, kit.roster, joining.state, joining.kit)
    return run_process(party, {COORDINATOR: joining.server}, build)
