"""Survival: a standby takes over by command, and nothing acknowledged is lost."""

from pathlib import Path
from typing import Any

import pytest

from secureps.errors import Refused, UnknownParty, Unreachable
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.requests import AskStatus, Follow, TakeOver
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.roles.coordinator.reign import BEGINS
from secureps.roles.machine import Halt
from secureps.run.simulate.simulation import Conditions
from secureps.store import journal_rows
from secureps.store.backup import begin_from_copy, has_copy
from secureps.store.journal import SqliteJournal
from tests.kits.cheats import journalled
from tests.kits.federations import ends_as_unharmed, small_federation, small_plan
from tests.kits.standbys import followed, follows, reach, take_over


@pytest.mark.slow
def test_a_standby_changes_nothing(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    ends_as_unharmed(simulation)
    assert simulation.ruler == COORDINATOR
    copy, own = (journalled(simulation, object, place) for place in (STANDBY, COORDINATOR))
    assert copy == own[: len(copy)]
    assert any(isinstance(record, StandbyFollows) and record.standby for record in copy)


def test_a_standby_with_another_plan_ends(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    plan, simulation.plan = simulation.plan, small_plan("rlwe", versions=5)
    simulation.kill(STANDBY)
    simulation.start(STANDBY)
    simulation.plan = plan
    party = simulation.parties[STANDBY]
    with pytest.raises(Refused, match="the coordinator's plan differs in versions from this"):
        simulation.run(party.halted.done)


def test_who_looks_for_the_coordinator_at_its_standby_is_sent_on(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    reach(simulation, 0)
    answer = simulation.parties[STANDBY].request("client-00", AskStatus())
    simulation.run(answer.done)
    with pytest.raises(Unreachable, match="a standby is here: the coordinator rules elsewhere"):
        answer.result()
    for sender in ("client-00", "shard-0", "holder-0"):
        for message in (TakeOver(), Follow(b"", 0, b"")):
            answer = simulation.parties[STANDBY].request(sender, message)
            simulation.run(answer.done)
            with pytest.raises(UnknownParty):
                answer.result()


def test_a_coordinator_that_rules_takes_nothing_over(tmp_path: Path) -> None:
    simulation = followed(tmp_path)
    reach(simulation, 0)
    answer = simulation.parties[COORDINATOR].request(COORDINATOR, TakeOver())
    simulation.run(answer.done)
    with pytest.raises(Refused, match="it rules already"):
        answer.result()


def compacted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> tuple[dict[str, SqliteJournal], Conditions]:
    """Journals on disk that are compacted often, by party, and a federation's conditions."""
    monkeypatch.setattr(SqliteJournal, "is_due", property(lambda journal: journal._grown > 3_000))
    journals: dict[str, SqliteJournal] = {}

    def journal(name: str) -> SqliteJournal:
        (folder / name).mkdir(exist_ok=True)
        journals[name] = SqliteJournal(folder / name / "journal.db")
        return journals[name]

    return journals, Conditions(standby=True, delay=lambda *_: 0.01, journal=journal, **changes)


@pytest.mark.slow
def test_both_compact_their_journals_and_the_end_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals, conditions = compacted(tmp_path, monkeypatch)
    simulation = small_federation(small_plan("rlwe"), tmp_path, conditions)
    reach(simulation, 1)
    simulation.kill(STANDBY)
    simulation.start(STANDBY)
    reach(simulation, 2)
    one, two = journals[COORDINATOR], journals[STANDBY]
    for each in (one, two):
        assert journal_rows.last_archived(each._path, each._base).seq > 10
    assert two.fold is not None
    assert len(two.fold.records) == 1, "its run"
    simulation.kill(COORDINATOR)
    take_over(simulation)
    ends_as_unharmed(simulation)
    simulation.close()


def test_one_that_begins_late_is_sent_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows are compacted by then; it comes in parts, and the coordinator goes on."""
    monkeypatch.setattr("secureps.service.lead.ROWS", 10_000)
    journals, conditions = compacted(tmp_path, monkeypatch, late=frozenset({STANDBY}))
    simulation = small_federation(small_plan("rlwe"), tmp_path, conditions)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    one = journals[COORDINATOR]
    assert journal_rows.last_archived(one._path, one._base).seq > 10
    simulation.start(STANDBY)
    party = simulation.parties[STANDBY]
    simulation.run(party.halted.done)
    assert party.halted.result() == Halt(BEGINS)
    assert has_copy(tmp_path / STANDBY)
    simulation.kill(STANDBY)
    simulation._stores.pop(STANDBY).journal.close()
    assert begin_from_copy(tmp_path / STANDBY, tmp_path) > 10
    simulation.start(STANDBY)
    simulation.run(lambda: follows(simulation))
    two = journals[STANDBY]
    assert two.fold is not None
    assert two.mark == one.mark or one.read_after(two.mark, 1 << 20), "bit for bit its beginning"
    simulation.kill(COORDINATOR)
    take_over(simulation)
    ends_as_unharmed(simulation)
    simulation.close()
