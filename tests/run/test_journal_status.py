"""The status by a journal alone: the same as the coordinator's own, but for who is there."""

import shutil
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.errors import ConfigError, DamagedStore
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.requests import Status
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import load_plan
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.pinned_run import PinnedRun
from secureps.run.journal_status import journal_status
from secureps.service.executor import replay
from secureps.store.journal import DatedJournal, SqliteJournal
from secureps.store.keyring import load_public
from tests.kits.audited import begin, play
from tests.kits.stage import Stage

CLIENTS = tuple(f"client-0{i}" for i in range(3))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Status]:
    folder = begin(tmp_path_factory.mktemp("journal-status") / "run")
    stage = Stage(folder)
    stage.play()
    own = stage.simulation.coordinator.recall()
    stage.halt()
    return folder, own


def told(folder: Path, *names: str) -> Status:
    states = [folder / "state" / name for name in names or ("coordinator",)]
    status = journal_status(states, folder / "kit")
    assert status is not None
    return status


def test_a_run_that_ended_is_told_to_its_end_by_its_journal(played: tuple[Path, Status]) -> None:
    folder, own = played
    status = told(folder)
    assert status == replace(own, servers=status.servers), "but for who is there"
    assert status.finished == "all 3 versions are made"
    assert [(g.version, g.step, g.reason) for g in status.groups] == [(3, "done", status.finished)]
    assert [(m.name, m.state, m.submissions) for m in status.members] == [
        (name, "ended", 3) for name in CLIENTS
    ]
    assert all(0 < member.epsilon < 500 for member in status.members)
    assert status.adjacency.startswith("one client")
    assert status.delta == 1e-5
    assert [steps.version for steps in status.steps] == [1, 2, 3]


def test_a_compacted_journal_tells_the_same(played: tuple[Path, Status], tmp_path: Path) -> None:
    folder, own = played
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    plan, roster = load_plan(copy / "plan.toml"), load_public(copy / "kit").roster
    machine = Coordinator(PinnedRun(plan, roster, None, b""))
    path = copy / "state" / "coordinator" / "journal.db"
    writer = (COORDINATOR, "coordinator", time.time)
    with closing(DatedJournal(SqliteJournal(path), *writer)) as journal:
        assert [*replay(machine, journal)]
        journal.compact(machine.make_fold())
        machine.apply(9e6, again := Incarnated(7))
        journal.append(9e6, [again])
        journal.compact(machine.make_fold())
    status = told(copy)
    assert status == replace(own, incarnation=7, servers=status.servers), (
        "its first rows are in the archive alone"
    )


def test_while_a_run_goes_on_its_journal_does_not_say_who_is_there(tmp_path: Path) -> None:
    folder = begin(tmp_path / "run")
    play(folder, versions=1)
    status = told(folder)
    assert status.finished == ""
    assert status.groups[0].version >= 1
    assert {member.state for member in status.members} == {"not known"}
    assert not any(member.live for member in status.members)
    assert all("away" not in group.reason for group in status.groups)


def test_of_a_coordinator_and_its_standby_who_ruled_last_tells(
    played: tuple[Path, Status], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(played[0], tmp_path / "run"))
    shutil.copytree(copy / "state" / "coordinator", copy / "state" / "standby")
    with closing(SqliteJournal(copy / "state" / "standby" / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(REIGN + 1)])
    for order in (("coordinator", "standby"), ("standby", "coordinator")):
        assert told(copy, *order).incarnation == REIGN + 1


def test_without_a_run_there_is_no_status_and_damage_is_said(
    played: tuple[Path, Status], tmp_path: Path
) -> None:
    folder, _ = played
    assert journal_status([tmp_path / "nowhere"], folder / "kit") is None
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(1)])
    assert journal_status([tmp_path], folder / "kit") is None, "no run was founded"
    with pytest.raises(
        ConfigError, match=r"another party's journal, its row \d+ is a .*: give the "
    ):
        journal_status([folder / "state" / "client-00"], folder / "kit")
    (tmp_path / "journal.db").write_bytes(b"no journal" * 1000)
    with pytest.raises(DamagedStore, match=r"journal\.db"):
        journal_status([tmp_path], folder / "kit")
