"""The programs of a run: commands, imports, deaths that are told, and shards that come later."""

import io
import os
import socket
import subprocess
import sys
import time
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from rich.console import Console

from secureps.config.plan import FederationSection
from secureps.config.sections import parse, read_toml
from secureps.config.site_files import ServeSection
from secureps.errors import Malformed, OperatorError, SecurepsError, UnknownParty, Unreachable
from secureps.messages.requests import Status
from secureps.messages.run import ShardAddress
from secureps.policy.plan import Plan, load_plan
from secureps.roles.shard.shard import IDLE
from secureps.run.processes.launcher import Program
from secureps.run.processes.supervisor import Died, Finished, Supervisor
from secureps.run.report.terminal import Progress
from secureps.run.up import programs
from secureps.run.up.folder import (
    Cast,
    Origin,
    RunFolder,
    write_config,
    write_coordinator,
    write_servers,
)
from secureps.run.up.programs import (
    EVERY_LOOK,
    WITHIN,
    Order,
    Programs,
    bring_shard,
    demand_shard,
    imports_of_all,
    imports_of_script,
    tell_deaths,
)
from secureps.store.issuing import create_kit, issue_all
from secureps.store.keyring import load_public
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


def test_all_who_die_alike_are_told_in_one_line() -> None:
    told = io.StringIO()
    progress = Progress(Console(file=told, width=200), "test", False)
    how = "exit status 1"

    def died(number: int, last: str, how: str = how) -> Died:
        return Died(f"client-0{number}", how, 1, last)

    others = [died(number, f"no data at client-0{number}") for number in range(2, 8)]
    tell_deaths(progress, [died(0, "no rows"), *others, Finished("client-09", "over")])
    tell_deaths(progress, [died(0, "", "signal SIGKILL")])
    again = "it is started again, restart 1"
    assert [line.strip() for line in told.getvalue().splitlines()] == [
        f"client-00 died ({how}): no rows; {again}",
        f"client-02 died ({how}): no data at client-02; {again}; so did client-03, client-04, "
        "client-05 and 2 more",
        f"client-00 died (signal SIGKILL); {again}",
    ]


NEW = "shard-1"
FIRST = "aux"
"""A new name that comes before all others on the roster."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path)
    create_kit(made.kit, small_plan().cipher_parameters, hours=0)
    issue_all(made.kit, [("coordinator", "coordinator"), ("shard", "shard-0")])
    settings = {"listen": "127.0.0.1:0", "coordinator": "127.0.0.1:1", "checkpoints": "here"}
    write_config(made, "shard-0", settings)
    return made


def bring(
    folder: RunFolder,
    name: str,
    pause: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> Status:
    with patch.object(programs, "time", SimpleNamespace(sleep=pause, monotonic=clock)):
        return bring_shard(folder.root, name)


def status(*shards: str) -> Status:
    here = tuple(ShardAddress(name, f"{name}:1", 1.0) for name in shards)
    return Status(b"", 1, "", (), (), here, ())


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Status | SecurepsError]:
    """What the coordinator answers, one after another, and the last one again."""
    found: list[Status | SecurepsError] = []

    class Client:
        def __init__(self, kit: Path, name: str, server: str) -> None:
            assert name in (NEW, FIRST)

        def status(self) -> Status:
            answer = found.pop(0) if len(found) > 1 else found[0]
            if isinstance(answer, SecurepsError):
                raise answer
            return answer

        def close(self) -> None:
            pass

    monkeypatch.setattr(programs, "StatusClient", Client)
    return found


def test_it_has_keys_and_then_a_file_and_then_it_is_there(
    folder: RunFolder, answers: list[Any]
) -> None:
    answers += [UnknownParty("nobody"), Unreachable("away"), status("shard-0")]
    seen = list[bool]()

    def pause(seconds: float) -> None:
        assert seconds == EVERY_LOOK
        seen.append(folder.config(NEW).exists())
        if seen[-1]:
            answers[:] = [status("shard-0", NEW)]

    bring(folder, NEW, pause)
    assert seen == [False, False, True]
    assert load_public(folder.kit).roster.find(NEW).role == "shard"
    own, other = read_toml(folder.config(NEW)), read_toml(folder.config("shard-0"))
    assert own == other | {"name": NEW, "state": str(folder.state(NEW))}
    bring(folder, NEW, pause)  # it is there


def test_no_process_is_begun_of_a_run_that_is_over_meanwhile(
    folder: RunFolder, answers: list[Any]
) -> None:
    over = replace(status("shard-0"), finished="all is made")
    answers += [UnknownParty("nobody"), over]
    assert bring(folder, NEW, lambda seconds: None) is over
    assert not folder.config(NEW).exists()
    answers[:] = [status("shard-0"), over]
    assert bring(folder, NEW, lambda seconds: None) is over, "nobody starts it any more"


def test_one_that_does_not_come_is_an_error_that_says_where_to_look(
    folder: RunFolder, answers: list[Any]
) -> None:
    answers.append(UnknownParty("nobody is called shard-1"))
    waited = list[float]()

    def clock() -> float:
        return sum(waited)

    with pytest.raises(OperatorError, match="not on its roster yet: nobody is called shard-1"):
        bring(folder, NEW, waited.append, clock)
    assert sum(waited) == WITHIN
    answers[:] = [status("shard-0")]
    with pytest.raises(OperatorError, match=r"it has not come; see .*shard-1.log"):
        bring(folder, NEW, waited.append, clock)


def test_said_again_it_has_the_file_of_another_shard_whatever_its_name(
    folder: RunFolder, answers: list[Any]
) -> None:
    waited = list[float]()
    answers.append(UnknownParty("nobody is called aux"))
    with pytest.raises(OperatorError, match="not on its roster yet"):
        bring(folder, FIRST, waited.append, lambda: sum(waited))
    answers[:] = [status("shard-0"), status("shard-0", FIRST)]
    bring(folder, FIRST, waited.append, lambda: 0.0)
    own, other = read_toml(folder.config(FIRST)), read_toml(folder.config("shard-0"))
    assert own == other | {"name": FIRST, "state": str(folder.state(FIRST))}


def test_a_coordinator_that_takes_long_to_be_asked_is_not_waited_for_longer(
    folder: RunFolder, answers: list[Any]
) -> None:
    answers.append(Unreachable("no answer"))
    asked = list[float]()

    def clock() -> float:
        return 20.0 * len(asked)  # each question takes as long

    with pytest.raises(OperatorError, match=r"the run was given 60 seconds: .* no answer"):
        bring(folder, NEW, asked.append, clock)
    assert len(asked) == 3


def test_a_name_of_another_party_or_of_none_is_refused(
    folder: RunFolder, answers: list[Any]
) -> None:
    issue_all(folder.kit, [("client", "client-00")])
    with pytest.raises(UnknownParty, match="client-00 is a client of this run, and no shard"):
        demand_shard(folder.root, "client-00")
    for name in ("coordinator", "standby", "observer"):
        with pytest.raises(UnknownParty, match=f"{name} names another party in every run"):
            demand_shard(folder.root, name)
    with pytest.raises(Malformed, match=r"'\.\./b' is no name: 1 to 63 of a-z 0-9"):
        demand_shard(folder.root, "../b")
