"""The commands of a run's processes."""

from __future__ import annotations

import socket
import typing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from secureps.config.plan import FederationSection
from secureps.config.sections import parse, read_toml
from secureps.config.serve import ServeSection
from secureps.policy.plan import Plan, load_plan
from secureps.roles.shard.shard import IDLE
from secureps.run.processes.spawning import Program
from secureps.run.processes.supervisor import Supervisor
from secureps.run.up.folder import (
    Cast,
    Origin,
    RunFolder,
    write_config,
    write_coordinator,
    write_servers,
)
from secureps.run.up.programs import Order, Programs
from secureps.store.issuing import create_kit, issue_all
from tests.kits.nursery import ROOT

PLAN = """
name = "sites"
versions = 2
group = [{{ rule = {{ quorum = 5 }} }}]
[federation]
script = "{script}"
clients = 5
"""


@dataclass(frozen=True)
class Prepared:
    """A run whose folder is made, and no process started."""

    path: Path
    plan: Plan
    federation: FederationSection
    folder: RunFolder
    cast: Cast

    def programs(self, site: str | None = None, pin: str = "off") -> Programs:
        order = Order(self.path, None, None, {}, pin=pin)
        own = self.federation.model_copy(update={"site": site})
        return Programs(order, self.folder, self.plan, own, self.cast)


@pytest.fixture
def run(tmp_path: Path) -> Prepared:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(script=ROOT / "clients" / "breast_cancer.py"))
    plan = load_plan(path)
    assert plan.section.federation is not None
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    return Prepared(path, plan, plan.section.federation, folder, Cast.of(plan, 5))


def test_all_data_holders_have_the_policy_that_the_plan_names(run: Prepared) -> None:
    def words(site: str | None) -> tuple[str, ...]:
        return run.programs(site)._client("client-00", "x", 0).arguments

    given = words("own/site.toml")
    assert given[given.index("--site") + 1] == str(run.path.parent / "own" / "site.toml")
    assert "--site" not in words(None)


def test_each_data_holder_counts_by_the_number_that_the_federation_has_for_it(
    run: Prepared,
) -> None:
    def words(records: tuple[int, ...], number: int) -> tuple[str, ...]:
        own = replace(run, federation=run.federation.model_copy(update={"records": records}))
        assert set(own.programs().assignment.records.values()) == set(records)
        return own.programs()._client(f"client-0{number}", "x", number).arguments

    for number, records in enumerate((300, 20)):
        given = words((300, 20, 7, 7), number)
        assert given[given.index("--records") + 1] == str(records)
    assert "--records" not in words((), 0)


def test_shards_and_clients_are_pinned_as_up_is_told_and_stay_so_on_resume(run: Prepared) -> None:
    Origin.of(run.path, None, pin="auto").write(run.folder)
    pin = Origin.read(run.folder).pin
    assert pin == "auto"
    given = run.programs(pin=pin)._client("client-00", "x", 0).arguments
    assert given[given.index("--pin") + 1] == "auto"
    for written in ("auto", "off"):
        write_servers(run.folder, run.plan, run.cast, "127.0.0.1:1", None, None, written)
        sections = [
            parse(ServeSection, read_toml(run.folder.config(name)), name)
            for name in (*run.cast.shards, *run.cast.holders)
        ]
        assert [section.pin for section in sections] == [written] * len(run.cast.shards) + (
            ["off"] * len(run.cast.holders)
        )


def test_shards_that_were_added_are_started_once_and_when_the_run_goes_on(run: Prepared) -> None:
    folder, cast, programs = run.folder, run.cast, run.programs()
    write_coordinator(folder, run.path.parent, None)
    write_servers(folder, run.plan, cast, "127.0.0.1:1", None)
    assert folder.further(cast) == ()
    create_kit(folder.kit, run.plan.cipher_parameters, hours=0)
    issue_all(folder.kit, [("shard", "shard-9"), ("client", "other")])
    for name in ("shard-9", "other", "nobody"):
        write_config(folder, name, {})
    assert folder.further(cast) == ("shard-9",)
    started = list[str]()

    class Running:
        """It ends in order at once: nobody runs."""

        def start(self, program: Program) -> None:
            assert program.arguments[-1] == str(folder.config("shard-9"))
            assert program.done == IDLE, "and when it is removed it has not died"
            started.append(program.name)

    known = set[str]()
    for _ in range(2):
        programs.start_further(typing.cast(Supervisor, Running()), known)
    assert started == ["shard-9"]


def test_the_places_of_a_coordinator_and_its_standby_are_theirs_while_the_run_lasts(
    run: Prepared,
) -> None:
    programs = run.programs()
    with programs.pair() as none:
        assert none == ()
    followed = replace(programs, order=replace(programs.order, standby=True))
    with followed.pair() as pair:
        assert len(set(pair)) == 2
        for address in pair:
            host, _, port = address.rpartition(":")
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, int(port)))
