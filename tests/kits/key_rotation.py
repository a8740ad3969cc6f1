"""Federations whose holders change their envelope keys, on files or in memory."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.messages.requests import Submit
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import Receipt
from secureps.policy.plan import Plan
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.machine import WORKER, KitRead
from secureps.run.simulate import simulation as simulations
from secureps.run.simulate.simulation import Conditions, MemoryKit, Simulation
from secureps.run.up.folder import shard_names
from secureps.store.envelope_keys import EnvelopeKeys, load_keys
from secureps.store.issuing import create_kit, issue_all
from secureps.store.journal import Journal, SqliteJournal
from secureps.store.keyring import load_private, load_public
from tests.kits.federations import CIPHERS, small_federation, small_plan

HOLDERS = ("holder-0", "holder-1", "holder-2", "holder-3")


def rotating(
    monkeypatch: pytest.MonkeyPatch,
    every: int = 1,
    cipher: str = "rlwe",
    seconds: float = 3600.0,
    **changes: Any,
) -> Plan:
    """A plan, whose holders take another key after so many cohorts, or so long."""
    monkeypatch.setattr("secureps.roles.holder.holder.KEY_COHORTS", every)
    monkeypatch.setattr("secureps.roles.holder.holder.KEY_SECONDS", seconds)
    section = {**CIPHERS[cipher], "capacity": 8}
    plain = small_plan(**changes).section.model_dump(exclude_unset=True)
    return Plan(parse(PlanSection, plain | {"cipher": section}, "test"))


def machine(simulation: Simulation, holder: str) -> CommitteeHolder:
    found = simulation.parties[holder].machine
    assert isinstance(found, CommitteeHolder)
    return found


def keys_of(simulation: Simulation, holder: str) -> EnvelopeKeys:
    found = simulation._kit.secrets[holder]
    assert isinstance(found, EnvelopeKeys)
    return found


def received(simulation: Simulation) -> list[Receipt]:
    """What a recorder on the wire has, too: every receipt that came with envelopes."""
    journal = simulation._stores[COORDINATOR].journal
    found = (record.receipt for _, record in journal.replay() if isinstance(record, Submit))
    return [receipt for receipt in found if receipt.envelopes]


def calendar(simulation: Simulation, unix: float, holders: tuple[str, ...] = HOLDERS) -> None:
    """What the calendar says, to holders that are there."""
    for holder in holders:
        simulation.parties[holder].post(WORKER, KitRead(unix))


def stop_in_a_full_round(simulation: Simulation, version: int) -> None:
    """All six have sent what follows a version; coordinator and all holders but one are down."""
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: group.version == version)
    for holder in HOLDERS[1:]:
        simulation.kill(holder)  # too few look, so that the round stays open
    simulation.run(lambda: len(group.receipts) == 6)
    simulation.kill(COORDINATOR)


@contextmanager
def on_files(
    plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Simulation, Path]]:
    """A federation with a real kit and real journals, and where the kit is."""
    kit = folder / "kit"
    create_kit(kit, plan.cipher_parameters, hours=0)

    def made(plan: Plan, clients: tuple[str, ...], spares: int = 0) -> MemoryKit:
        names = [("coordinator", COORDINATOR), *(("client", each) for each in clients)]
        names += [("shard", each) for each in shard_names(plan.section.shards + spares)]
        names += [("holder", each) for each in HOLDERS]
        issue_all(kit, names)  # type: ignore[arg-type]
        identities = {name: load_private(kit, name) for _, name in names}
        secrets = {name: load_keys(kit, name) for name in HOLDERS}
        return MemoryKit(load_public(kit), identities, secrets)

    def journal(name: str) -> Journal:
        (folder / "state" / name).mkdir(parents=True, exist_ok=True)
        return SqliteJournal(folder / "state" / name / "journal.db")

    with monkeypatch.context() as patched:  # of its own alone: others that it is compared with end
        patched.setattr(simulations, "make_memory_kit", made)
        simulation = small_federation(plan, folder / "state", Conditions(journal=journal))
    with closing(simulation):
        yield simulation, kit


def bytes_of(*folders: Path) -> Iterator[tuple[Path, bytes]]:
    """All files under some folders: logs, free pages and what was forgotten too."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield path, path.read_bytes()
