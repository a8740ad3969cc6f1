"""The sources of facts, and what is shown if one cannot be read."""

import shutil
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.dashboard import sources
from secureps.dashboard.observation import Course, Facts
from secureps.dashboard.sources import (
    Board,
    Source,
    course_source,
    feed,
    holder_source,
    ledgers_source,
    logs_source,
    read_ledger,
    report_source,
    verify_logs,
)
from secureps.errors import DamagedStore, PlanRefused
from secureps.messages.charge import Release
from secureps.messages.records import REIGN, Incarnated
from secureps.store.budget import BudgetLedger
from secureps.store.journal import SqliteJournal
from tests.kits.ledgers import charge
from tests.kits.polling import until

FACT = Release("client-00", "all", 0, 100.0, 1000.0, 300.0, 1, 0.0)


def test_the_course_is_the_journals_and_is_read_when_it_grows(run: Path) -> None:
    board = Board()
    source = course_source(run / "kit", run / "state" / "coordinator")
    source.look(board)
    assert board.facts.course is not None
    assert sum(each["opened"] for each in board.facts.course.holders) >= 2 * 3
    assert board.facts.plan is not None
    assert board.facts.explanation is not None
    assert board.facts.explanation["name"] == "audited"
    known = board.facts.course
    source.look(board)
    assert board.facts.course is known


def test_the_journal_gives_the_status_until_it_grows_the_same(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, board = course_source(run / "kit", run / "state" / "coordinator"), Board()
    source.look(board)
    assert board.facts.recalled is not None
    assert board.facts.recalled.finished == "all 3 versions are made"
    monkeypatch.setattr(sources, "find_ruler", None)
    source.look(board)  # it has not grown: it is not read again


def test_a_report_is_read_when_it_is_there_and_when_it_grows(tmp_path: Path) -> None:
    board, path = Board(), tmp_path / "metrics.jsonl"
    source = report_source(path)
    source.look(board)
    assert board.facts.report is None
    line = '{"group": "all", "version": 1, "epsilon": null, "loss": 0.5, "bytes_up": 7.0}\n'
    path.write_text(line)
    source.look(board)
    assert board.facts.report is not None
    assert board.facts.report.scores == {1: {"loss": 0.5}}
    path.write_text(line + line.replace("1", "2", 1))
    source.look(board)
    assert board.facts.report.up == 14.0
    path.write_text("{")
    for _ in range(2):
        with pytest.raises(DamagedStore):
            source.look(board)


def test_the_course_is_that_of_whoever_rules(run: Path, tmp_path: Path) -> None:
    """A standby has taken over, and its journal continues the coordinator's."""
    ended, standby = (tmp_path / name for name in ("coordinator", "standby"))
    for state in (ended, standby):
        shutil.copytree(run / "state" / "coordinator", state)
    board, source = Board(), course_source(run / "kit", ended, standby)

    def rows() -> int:
        source.look(board)
        assert board.facts.course is not None
        return board.facts.course.rows

    def append(state: Path, *records: Incarnated) -> int:
        with closing(SqliteJournal(state / "journal.db")) as journal:
            journal.append(0.0, records)
        return before + len(records)

    before = rows()
    longer = append(standby, Incarnated(2))
    assert rows() == longer
    ruling = append(standby, Incarnated(REIGN, b"standby"))
    append(ended, *(Incarnated(2 + number) for number in range(9)))  # it is started again since
    assert rows() == ruling + 1
    (ended / "journal.db").unlink()
    assert rows() == ruling + 1


def test_a_journal_before_the_founding_has_rows_and_no_status(run: Path, tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(1)])
    board = Board()
    course_source(run / "kit", tmp_path).look(board)
    assert board.facts == Facts(course=Course(rows=1))


def test_a_plan_that_nobody_can_explain_hides_nothing_else(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PlanRefused("the budget allows no version")

    monkeypatch.setattr(sources, "explain", refuse)
    board = Board()
    course_source(run / "kit", run / "state" / "coordinator").look(board)
    assert board.facts.course is not None
    assert board.facts.plan is not None
    assert board.facts.explanation is None


@pytest.mark.parametrize("read", ["read_rows", "verify", "read_ledger"])
def test_what_nobody_expected_is_said_for_as_long_as_it_is_so(
    read: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OverflowError("intermediate overflow in fsum")

    charge(BudgetLedger(tmp_path / "client-00.db"), b"\x05" * 32, FACT)
    look = {
        "read_rows": course_source(run / "kit", run / "state" / "coordinator").look,
        "verify": logs_source([run / "coordinator.jsonl"], run / "kit").look,
        "read_ledger": ledgers_source(tmp_path).look,
    }[read]
    monkeypatch.setattr(f"secureps.dashboard.sources.{read}", fail)
    for _ in range(2):
        with pytest.raises(OverflowError):
            look(Board())


def test_a_client_reads_its_own_state_and_ledger(run: Path, tmp_path: Path) -> None:
    board, ledger = Board(), tmp_path / "ledgers" / "client-00.db"
    state = run / "state" / "client-00"
    source = holder_source("client-00", run / "kit", state, ledger, 8.0)
    source.look(board)
    assert board.facts.own is not None
    assert (board.facts.own["own_budget"], board.facts.own["runs"]) == (8.0, {})
    charge(BudgetLedger(ledger), b"\x05" * 32, FACT)
    source.look(board)
    assert [*board.facts.own["runs"]] == ["05" * 8]
    assert board.facts.own["holders"] == ("holder-0", "holder-1", "holder-2")
    board = Board()
    source.look(board)
    assert board.facts.own is None, "it has not changed"


def test_ledgers_of_a_folder_are_by_client(tmp_path: Path) -> None:
    board = Board()
    charge(BudgetLedger(tmp_path / "client-00.db"), b"\x05" * 32, FACT)
    (tmp_path / "client-01.db").write_bytes(b"no ledger" * 1000)
    ledgers_source(tmp_path).look(board)
    assert board.facts.ledgers.keys() == {"client-00", "client-01"}
    total = board.facts.ledgers["client-00"].epsilon
    assert total is not None
    assert total > 0
    assert "client-01.db" in board.facts.ledgers["client-01"].trouble
    ledgers_source(tmp_path / "nowhere").look(board)
    assert not (tmp_path / "nowhere").exists(), "looking makes nothing"


def test_a_damaged_ledger_is_named_and_one_that_is_not_there_stays_away(tmp_path: Path) -> None:
    path = tmp_path / "client-00.db"
    path.write_bytes(b"no ledger" * 1000)
    assert "client-00.db" in read_ledger(path).trouble
    assert read_ledger(tmp_path / "x" / "none.db", 4.0).runs == ()
    assert not (tmp_path / "x").exists()


def test_logs_are_verified_and_what_is_wrong_is_named(run: Path, tmp_path: Path) -> None:
    good, bad = run / "coordinator.jsonl", tmp_path / "changed.jsonl"
    bad.write_text(good.read_text().replace("client-01", "client-02"))
    board = Board()
    logs_source([good, bad], run / "kit").look(board)
    assert board.facts.logs is not None
    sound, changed = board.facts.logs
    assert sound["sound"]
    assert "coordinator (coordinator), run " in sound["text"]
    assert (changed["file"], changed["sound"]) == ("changed.jsonl", False)
    assert [each["file"] for each in verify_logs([good, good], run / "kit")][-1] == "together"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (DamagedStore("row 3 is missing"), "row 3 is missing"),
        (OverflowError("overflow"), "OverflowError: overflow"),  # of nobody's making
    ],
)
def test_sources_are_looked_at_until_the_end_and_complaints_come_and_go(
    fault: Exception, told: str
) -> None:
    board, looked, mended = Board(), threading.Event(), threading.Event()

    def look(board: Board) -> None:
        if not mended.is_set():
            raise fault
        board.put(lambda facts: replace(facts, logs=()))
        looked.set()

    with feed(board, [Source("a journal", look, 0.01)]):
        until(lambda: board.facts.troubles == {"a journal": told})
        mended.set()
        assert looked.wait(20)
        until(lambda: board.facts.troubles == {})
    assert board.facts == Facts(logs=())
