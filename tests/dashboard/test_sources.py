"""The sources of facts, and what is shown if one cannot be read."""

import shutil
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.dashboard import sources
from secureps.dashboard.observation import Facts, Seen
from secureps.dashboard.sources import (
    Board,
    JournalFold,
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
from secureps.messages.coordinator_records import CheckpointComplete
from secureps.messages.records import REIGN, Incarnated
from secureps.roles.machine import Fold
from secureps.store.budget import BudgetLedger
from secureps.store.journal import SqliteJournal
from secureps.store.journal_rows import Row
from tests.kits.dashboards import STATUS
from tests.kits.ledgers import charge
from tests.kits.polling import until

FACT = Release("client-00", "all", 0, 100.0, 1000.0, 300.0, 1, 0.0)


def test_the_course_is_the_journals_and_is_read_when_it_grows(run: Path) -> None:
    board = Board()
    source = course_source(run / "kit", run / "state" / "coordinator")
    source.look(board)
    assert board.facts.course is not None
    assert [steps.version for steps in board.facts.course.steps] == [1, 2, 3]
    assert board.facts.plan is not None
    assert board.facts.explanation is not None
    assert board.facts.explanation["name"] == "audited"
    known = board.facts.course
    source.look(board)
    assert board.facts.course is known


def test_the_journal_gives_the_status_where_the_coordinator_does_not(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = course_source(run / "kit", run / "state" / "coordinator")
    board = Board(Facts(seen=Seen(status=STATUS)))
    source.look(board)
    assert board.facts.recalled is None, "it answers"
    board.put(lambda facts: replace(facts, seen=replace(facts.seen, silent="gone")))
    source.look(board)
    assert board.facts.recalled is None, "it may answer again"
    board.put(lambda facts: replace(facts, seen=replace(facts.seen, over=True)))
    source.look(board)
    assert board.facts.recalled is not None
    assert board.facts.recalled.finished == "all 3 versions are made"
    monkeypatch.setattr(sources, "journal_status", None)
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


class Seqs:
    bad = Incarnated(13)

    def __init__(self) -> None:
        self.seqs: list[int] = []

    def take(self, row: Row) -> None:
        self.seqs.append(row.seq)
        if row.record == self.bad:
            raise DamagedStore("no row that can be")


def taken(followed: JournalFold[Seqs]) -> list[int]:
    """Returns the rows that another look reads."""
    before = 0 if followed._known is None else len(followed._known[0].seqs)
    return followed.read().seqs[before:]


def test_a_look_takes_the_rows_that_are_new_and_no_others(tmp_path: Path) -> None:
    followed = JournalFold(tmp_path / "journal.db", Seqs)
    with closing(SqliteJournal(followed.journal)) as journal:
        journal.append(0.0, [Incarnated(n) for n in range(1, 4)])
        assert taken(followed) == [1, 2, 3]
        assert taken(followed) == []
        journal.append(1.0, [Incarnated(4)])
        assert taken(followed) == [4]
        journal.compact(Fold((), {}))
        journal.append(2.0, [Incarnated(5)])
        assert taken(followed) == [5], "the rows before the fold are there"
        known = followed.read()
        journal.compact(Fold((), {}))
        journal.append(3.0, [Incarnated(6)])
        journal.compact(Fold((), {}))
        assert taken(followed) == [6], "the last that is known is the last one that is gone"
        journal.append(3.0, [Incarnated(n) for n in (7, 8)])
        journal.compact(Fold((), {}))
        journal.append(4.0, [Incarnated(9)])
        journal.compact(Fold((), {}))
        assert followed.read() is not known, "rows after it went into the archive"
        assert followed.read().seqs == [*range(1, 10)]


def test_another_journal_in_its_place_is_read_from_its_start(tmp_path: Path) -> None:
    followed, known = JournalFold(tmp_path / "journal.db", Seqs), list[Seqs]()
    for second in (1.0, 2.0):
        with closing(SqliteJournal(followed.journal)) as journal:
            journal.append(second, [Incarnated(1), Incarnated(2)])
        known.append(followed.read())
        for path in tmp_path.iterdir():
            path.unlink()
    assert [each.seqs for each in known] == [[1, 2], [1, 2]]
    assert known[0] is not known[1], "it has as many rows, and they are others"


def test_what_could_not_be_taken_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = JournalFold(tmp_path / "journal.db", Seqs)
    with closing(SqliteJournal(followed.journal)) as journal:
        journal.append(0.0, [Incarnated(1)])
        assert taken(followed) == [1]
        journal.append(0.0, [Incarnated(2), Incarnated(13)])
        with pytest.raises(DamagedStore):
            followed.read()
    monkeypatch.setattr(Seqs, "bad", None)
    assert followed.read().seqs == [1, 2, 3], "each once: from the start"


def test_the_course_is_that_of_whoever_rules(run: Path, tmp_path: Path) -> None:
    """A standby has taken over, and its journal continues the coordinator's."""
    ended, standby = (tmp_path / name for name in ("coordinator", "standby"))
    for state in (ended, standby):
        shutil.copytree(run / "state" / "coordinator", state)
    board = Board(Facts(seen=Seen(status=STATUS)))
    source = course_source(run / "kit", ended, standby)
    source.look(board)
    assert board.facts.course is not None
    before = board.facts.course
    journal = SqliteJournal(standby / "journal.db")
    journal.append(0.0, [CheckpointComplete(77)])
    journal.close()
    source.look(board)
    assert board.facts.course.checkpoint == 77
    assert board.facts.course.rows > before.rows
    journal = SqliteJournal(standby / "journal.db")
    journal.append(0.0, [Incarnated(REIGN, b"standby")])
    journal.close()
    journal = SqliteJournal(ended / "journal.db")  # it is started again and again since
    journal.append(0.0, [Incarnated(2 + number) for number in range(9)])
    journal.close()
    source.look(board)
    assert board.facts.course.checkpoint == 77
    (ended / "journal.db").unlink()
    source.look(board)
    assert board.facts.course.checkpoint == 77


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
