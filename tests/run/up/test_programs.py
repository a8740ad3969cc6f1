"""The programs of a run: their commands, what they import, and how their deaths are told."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import typing
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from secureps.config.plan import FederationSection
from secureps.config.sections import parse, read_toml
from secureps.config.site_files import ServeSection
from secureps.policy.plan import Plan, load_plan
from secureps.roles.shard.shard import IDLE
from secureps.run.processes.spawning import Program
from secureps.run.processes.supervisor import Died, Finished, Supervisor
from secureps.run.report.terminal import Progress
from secureps.run.up.folder import (
    Cast,
    Origin,
    RunFolder,
    write_config,
    write_coordinator,
    write_servers,
)
from secureps.run.up.programs import (
    Deaths,
    Order,
    Programs,
    imports_of_all,
    imports_of_script,
    open_spawner,
)
from secureps.store.issuing import create_kit, issue_all
from tests.kits.federations import small_plan
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
        assert set(own.programs().assignment["records"].values()) == set(records)
        return own.programs()._client(f"client-0{number}", "x", number).arguments

    for number, records in enumerate((300, 20)):
        given = words((300, 20, 7, 7), number)
        assert given[given.index("--records") + 1] == str(records)
    assert "--records" not in words((), 0)


def test_shards_and_clients_are_pinned_as_up_is_told_and_stay_so_on_resume(run: Prepared) -> None:
    Origin(run.path, run.path.parent, None, 0.0, pin="auto").write(run.folder)
    pin = Origin.read(run.folder).pin
    assert pin == "auto"
    given = run.programs(pin=pin)._client("client-00", "x", 0).arguments
    assert given[given.index("--pin") + 1] == "auto"
    for written in ("auto", "off"):
        write_servers(run.folder, run.plan, run.cast, "127.0.0.1:1", pin=written)
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
    write_servers(folder, run.plan, cast, "127.0.0.1:1")
    assert folder.added_shards(cast) == ()
    create_kit(folder.kit, run.plan.cipher_parameters, hours=0)
    issue_all(folder.kit, [("shard", "shard-9"), ("client", "other")])
    for name in ("shard-9", "other", "nobody"):
        write_config(folder, name, {})
    assert folder.added_shards(cast) == ("shard-9",)
    started = list[str]()

    class Running:
        def start(self, program: Program) -> None:
            assert program.arguments[-1] == str(folder.config("shard-9"))
            assert program.done == IDLE, "and when it is removed it has not died"
            started.append(program.name)

    known = set[str]()
    for _ in range(2):
        programs.start_added(typing.cast(Supervisor, Running()), known)
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


# --- what one process imports for all of a run ------------------------------------


def preset(name: str) -> Plan:
    return load_plan(ROOT / "policies" / f"{name}.toml")


def test_servers_wait_for_what_every_party_imports() -> None:
    always = list(imports_of_all(preset("digits")))
    assert "secureps.privacy.accountant" in always
    assert "secureps.compiled:load_kernels" in always
    assert "secureps.crypto.rlwe" in always
    assert not any("torch" in each or "sklearn" in each for each in always)
    bare = list(imports_of_all(small_plan()))
    assert "secureps.privacy.accountant" not in bare
    assert not any("crypto" in each for each in bare)


def test_a_script_is_read_and_not_run(tmp_path: Path) -> None:
    private, bare = preset("digits"), small_plan()
    script = tmp_path / "client.py"
    for code, words, given in (
        ("import numpy", set(), private),
        ("from torch import nn", {"torch", "secureps", "opacus"}, private),
        ("import torch.nn", {"torch", "secureps"}, bare),
        ("ps.TorchTrainer(net)", {"torch", "secureps"}, bare),
        ("from sklearn import svm", {"sklearn"}, private),
        ("torchvision = 'no word of its own'", set(), private),
        ("raise SystemExit('it would have ended')", set(), bare),
    ):
        script.write_text(code)
        for where in (script, tmp_path):  # a Flower project is a folder
            found = imports_of_script(given, where)
            assert {each.partition(".")[0] for each in found} == words, code
    assert list(imports_of_script(private, tmp_path / "nothing.py")) == []


@pytest.mark.parametrize("environment", [{}, {"OMP_NUM_THREADS": "2"}])
def test_with_more_threads_every_process_begins_anew(environment: dict[str, str]) -> None:
    made = open_spawner(small_plan(), Path("nothing.py"), environment)
    assert isinstance(made, nullcontext)
    with made as found:
        assert found is None


def test_a_long_path_of_temporary_files_does_not_matter(tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most: the script is asked without one."""
    long = tmp_path / ("long" * 30)
    long.mkdir()
    script = ROOT / "tests" / "kits" / "walker_client.py"
    (tmp_path / "preset.toml").write_text(
        'name = "a"\nversions = 1\n[cipher]\nname = "plain"\n[[group]]\nrule = { quorum = 5 }\n'
        f'[federation]\nscript = "{script}"\nclients = 5\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "secureps", "check", "preset.toml", "--run-script"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(long)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "values" in done.stdout


# --- deaths -----------------------------------------------------------------------


def test_the_log_of_all_who_die_alike_is_told_once() -> None:
    told = io.StringIO()
    deaths = Deaths(Progress(Console(file=told, width=200), "test", False))
    how = "exit status 1"

    def died(number: int, line: str, how: str = how) -> Died:
        tail = (f"12:00:0{number} starts", f"error: {line} at client-0{number}") if line else ()
        return Died(f"client-0{number}", how, 1, tail)

    deaths.tell([died(0, "no data"), died(1, "no data"), Finished("client-09", "over")])
    deaths.tell([died(number, "no data") for number in range(2, 8)])
    deaths.tell([died(8, "no rows"), died(1, "no data", "signal SIGABRT")])
    deaths.tell([died(0, "", "signal SIGKILL"), died(1, "", "signal SIGKILL")])
    again = "it is started again, restart 1"
    assert [line.strip() for line in told.getvalue().splitlines()] == [
        "client-00: 12:00:00 starts",
        "client-00: error: no data at client-00",
        f"client-00 died ({how}); {again}",
        f"client-01 died as client-00 did ({how}); started again",
        f"client-02, client-03, client-04 and 3 more died as client-00 did ({how}); started again",
        "client-08: 12:00:08 starts",
        "client-08: error: no rows at client-08",
        f"client-08 died ({how}); {again}",
        "client-01: 12:00:01 starts",
        "client-01: error: no data at client-01",
        f"client-01 died (signal SIGABRT); {again}",
        f"client-00 died (signal SIGKILL); {again}",
        f"client-01 died (signal SIGKILL); {again}",
    ]
