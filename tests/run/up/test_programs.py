"""The commands of a run's processes."""

from __future__ import annotations

import typing
from pathlib import Path

from secureps.config.sections import parse, read_toml
from secureps.config.serve import ServeSection
from secureps.policy.plan import load_plan
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


def test_all_data_holders_have_the_policy_that_the_plan_names(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(script=ROOT / "clients" / "breast_cancer.py"))
    plan = load_plan(path)
    federation = plan.section.federation
    assert federation is not None

    def words(site: str | None) -> tuple[str, ...]:
        own = federation.model_copy(update={"site": site})
        order = Order(path, None, None, {})
        programs = Programs(order, RunFolder(tmp_path / "run"), plan, own, Cast.of(plan, 5))
        return programs._client("client-00", "x", 0).arguments

    given = words("own/site.toml")
    assert given[given.index("--site") + 1] == str(tmp_path / "own" / "site.toml")
    assert "--site" not in words(None)


def test_shards_and_clients_are_pinned_as_up_is_told_and_stay_so_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(script=ROOT / "clients" / "breast_cancer.py"))
    plan = load_plan(path)
    assert plan.section.federation is not None
    folder, cast = RunFolder(tmp_path / "run"), Cast.of(plan, 5)
    folder.root.mkdir()
    Origin.of(path, None, pin="auto").write(folder)
    pin = Origin.read(folder).pin
    assert pin == "auto"
    programs = Programs(
        Order(path, None, None, {}, pin=pin), folder, plan, plan.section.federation, cast
    )
    given = programs._client("client-00", "x", 0).arguments
    assert given[given.index("--pin") + 1] == "auto"
    for written in ("auto", "off"):
        write_servers(folder, plan, cast, "127.0.0.1:1", None, None, written)
        sections = [
            parse(ServeSection, read_toml(folder.config(name)), name)
            for name in (*cast.shards, *cast.holders)
        ]
        assert [section.pin for section in sections] == [written] * len(cast.shards) + (
            ["off"] * len(cast.holders)
        )


def test_shards_that_were_added_are_started_once_and_when_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(script=ROOT / "clients" / "breast_cancer.py"))
    plan = load_plan(path)
    assert plan.section.federation is not None
    folder, cast = RunFolder(tmp_path / "run"), Cast.of(plan, 5)
    folder.root.mkdir()
    programs = Programs(Order(path, None, None, {}), folder, plan, plan.section.federation, cast)
    write_coordinator(folder, tmp_path, None)
    write_servers(folder, plan, cast, "127.0.0.1:1", None)
    assert folder.further(cast) == ()
    create_kit(folder.kit, plan.cipher_parameters, hours=0)
    issue_all(folder.kit, [("shard", "shard-9"), ("client", "other")])
    for name in ("shard-9", "other", "nobody"):
        write_config(folder, name, {})
    assert folder.further(cast) == ("shard-9",)
    started = list[str]()

    class Running:
        """It ends in order at once: nobody runs."""

        def start(self, program: Program) -> None:
            assert program.arguments[-1] == str(folder.config("shard-9"))
            started.append(program.name)

    known = set[str]()
    for _ in range(2):
        programs.start_further(typing.cast(Supervisor, Running()), known)
    assert started == ["shard-9"]
