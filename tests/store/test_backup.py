"""Survival: a state folder that comes back older is refused, and a copy is complete or none."""

import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.crypto.identity import Identity
from secureps.errors import ConfigError, DamagedStore, OperatorError, Refused
from secureps.messages.encoding import payload_digest
from secureps.messages.records import Incarnated, RunPinned
from secureps.messages.requests import CopyPart
from secureps.roles.machine import Fold
from secureps.store import journal_rows
from secureps.store.act_lines import FILE as ACTS
from secureps.store.act_lines import ActLines
from secureps.store.backup import (
    CopyParts,
    _copy_journal,
    backup,
    begin_from_copy,
    find_half_moved,
    has_copy,
    is_numbered,
    load_folder_number,
    restore,
    set_aside,
)
from secureps.store.envelope_keys import ServedJournal
from secureps.store.journal import SqliteJournal, read_rows
from secureps.store.journal_rows import Mark, height_path
from secureps.store.spool import DiskSpool
from tests.golden.values import full
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run

PLAN = make_plan()
PINNED = RunPinned(make_run(PLAN), make_placement(PLAN), ADDRESSES)


def ruled(state: Path, *numbers: int) -> None:
    """Journals the beginning and the end of a coordinator."""
    state.mkdir(exist_ok=True)
    with closing(SqliteJournal(state / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(number) for number in numbers])


def grow(state: Path, rows: int) -> None:
    """Runs a party that journals and spools, and ends it."""
    state.mkdir(exist_ok=True)
    spool = DiskSpool(state / "spool")
    with closing(SqliteJournal(state / "journal.db")) as journal:
        for number in range(journal.mark.seq, journal.mark.seq + rows):
            spool.put(f"payload/{number}", bytes([number]) * 10)
            journal.append(float(number), [Incarnated(number)])


def numbers(state: Path) -> list[int]:
    with closing(SqliteJournal(state / "journal.db")) as journal:
        return [record.number for _, record in journal.replay()]


def payloads(state: Path) -> dict[str, bytes]:
    spool = DiskSpool(state / "spool")
    return {key: spool.get(key) for key in spool.keys("")}


def test_a_copy_comes_back_as_it_was(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 5)
    (state / "seed").write_bytes(b"secret")
    (state / "address").write_text("host:1")
    number = load_folder_number(state)
    assert backup(state, copy) == 5
    whole = payloads(state)
    (state / "spool" / "payload~3").write_bytes(b"damaged!!!")
    (state / "journal.db").write_bytes(b"")
    assert restore(copy, state, "client", tmp_path) == 5
    assert numbers(state) == list(range(5))
    assert payloads(state) == whole
    fresh = tmp_path / "fresh"
    assert restore(copy, fresh, "coordinator", tmp_path) == 5
    assert (fresh / "seed").read_bytes() == b"secret"
    assert not (fresh / "address").exists()
    assert load_folder_number(fresh) != number == load_folder_number(state)
    modes = {path.stat().st_mode & 0o77 for path in (copy, fresh, *fresh.rglob("*"))}
    assert modes == {0}


def test_a_copy_of_a_party_that_writes_is_whole(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    journal, spool = SqliteJournal(state / "journal.db"), DiskSpool(state / "spool")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            spool.put(f"payload/{number}", b"x")
            journal.append(0.0, [Incarnated(number)])
            if number >= 20:
                spool.delete(f"payload/{number - 20}")
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(4):
            copy = tmp_path / f"copy-{number}"
            rows = backup(state, copy)
            assert numbers(copy) == list(range(rows))
    finally:
        stop.set()
        writer.join()
        journal.close()


def test_what_comes_while_the_journal_is_copied_is_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, real = tmp_path / "state", _copy_journal
    grow(state, 2)
    acts = ActLines(state, "client-00", Identity(bytes(range(32))))
    acts.note("pause")

    def meanwhile(source: Path, target: Path) -> None:
        acts.note("go-on")
        grow(state, 1)
        real(source, target)

    monkeypatch.setattr("secureps.store.backup._copy_journal", meanwhile)
    assert backup(state, tmp_path / "copy") == 3
    assert payloads(tmp_path / "copy") == payloads(state)
    assert (tmp_path / "copy" / ACTS).read_bytes() == (state / ACTS).read_bytes()
    assert not (tmp_path / "copy" / "acts.turn").exists()


def test_the_log_of_another_journal_is_not_read_into_the_one_that_comes_back(
    tmp_path: Path,
) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    grow(state, 2)
    backup(state, tmp_path / "copy")
    other.mkdir()
    with closing(SqliteJournal(other / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(number) for number in range(7, 12)])
        log = (other / "journal.db-wal").read_bytes()
    assert len(log) > 4096
    (state / "journal.db-wal").write_bytes(log)
    assert restore(tmp_path / "copy", state, "shard", tmp_path) == 2
    assert numbers(state) == [0, 1]


@pytest.mark.parametrize("role", ["coordinator", "holder", "client"])
def test_an_older_copy_is_refused_and_changes_nothing(role: str, tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 3)
    backup(state, copy)
    grow(state, 2)
    with pytest.raises(DamagedStore, match=f"ends at row 3, and this {role} has come to row 5"):
        restore(copy, state, role, tmp_path)  # type: ignore[arg-type]
    assert numbers(state) == list(range(5))
    newer = tmp_path / "newer"
    backup(state, newer)
    shutil.rmtree(state / "spool")
    assert restore(newer, state, role, tmp_path) == 5  # type: ignore[arg-type]


def test_a_copy_with_other_rows_than_the_party_wrote_is_refused(tmp_path: Path) -> None:
    """The party went on from an older copy that was not restored by our command."""
    state, other = tmp_path / "state", tmp_path / "other"
    grow(state, 3)
    ruled(other, 7)
    grow(other, 2)
    backup(other, tmp_path / "copy")
    with pytest.raises(ConfigError, match="is not the one that this holder wrote"):
        restore(tmp_path / "copy", state, "holder", tmp_path)
    assert numbers(state) == [0, 1, 2]


def test_an_older_copy_of_a_shard_comes_back(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 3)
    backup(state, copy)
    grow(state, 2)
    assert restore(copy, state, "shard", tmp_path) == 3
    assert numbers(state) == list(range(3))


@pytest.mark.parametrize("role", ["holder", "client"])
def test_where_nobody_knows_how_far_it_came_nothing_comes_back(role: str, tmp_path: Path) -> None:
    grow(tmp_path / "state", 3)
    backup(tmp_path / "state", tmp_path / "copy")
    with pytest.raises(DamagedStore, match=f"nothing says how far this {role} had come"):
        restore(tmp_path / "copy", tmp_path / "fresh", role, tmp_path)  # type: ignore[arg-type]


def test_beside_its_key_a_holder_knows_how_far_it_came(tmp_path: Path) -> None:
    state, private = tmp_path / "state", tmp_path / "private"
    state.mkdir()
    private.mkdir()

    def serve(*rows: Incarnated | RunPinned) -> None:
        with closing(SqliteJournal(state / "journal.db")) as inner:
            ServedJournal(inner, private / "runs").append(0.0, rows)

    serve(PINNED)
    backup(state, tmp_path / "older")
    shutil.copytree(state, tmp_path / "snapshot")
    serve(Incarnated(1))
    backup(state, tmp_path / "newer")
    shutil.rmtree(state)
    with pytest.raises(DamagedStore, match="stays out of the run"):
        restore(tmp_path / "older", state, "holder", private)
    assert restore(tmp_path / "newer", state, "holder", private) == 2
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "snapshot", state)  # by other means
    with pytest.raises(DamagedStore, match="this holder has come to row 2"):
        restore(tmp_path / "older", state, "holder", private)
    with pytest.raises(DamagedStore, match="ledger ends at row 1, and 2 rows were written"):
        serve(Incarnated(1))


def test_from_a_folder_that_is_half_restored_no_party_starts(tmp_path: Path) -> None:
    grow(tmp_path, 1)
    (tmp_path / "journal.db.restoring").touch()
    with pytest.raises(DamagedStore, match="cut short here: run secureps restore again"):
        SqliteJournal(tmp_path / "journal.db")


def test_no_copy_is_made_within_what_is_copied(tmp_path: Path) -> None:
    state = tmp_path / "state"
    grow(state, 2)
    for within in (state, state / "copy", state / ".." / "state" / "a" / "b"):
        with pytest.raises(ConfigError, match="which is copied: name a folder beside it by --out"):
            backup(state, within)
    assert not (state / "copy").exists()


def test_a_journal_that_lost_its_end_is_not_copied(tmp_path: Path) -> None:
    """The copy would pass for a newer one, and its party would do again what it forgot."""
    state, copy = tmp_path / "state", tmp_path / "copy"
    ruled(state, 1, 2)
    older = (state / "journal.db").read_bytes()
    ruled(state, 3)
    (state / "journal.db").write_bytes(older)
    with pytest.raises(DamagedStore, match="ends at row 2, and 3 rows were written: nothing is"):
        backup(state, copy)
    with pytest.raises(ConfigError, match="is no whole copy of a state folder"):
        restore(copy, state, "shard", tmp_path)


def test_a_copy_that_was_cut_short_is_none(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    ruled(state, 1)
    backup(state, copy)
    height_path(copy / "journal.db").unlink()
    with pytest.raises(ConfigError, match="is no whole copy of a state folder"):
        restore(copy, state, "shard", tmp_path)
    with pytest.raises(ConfigError, match="holds something already"):
        backup(state, copy)
    with pytest.raises(ConfigError, match="is no state folder"):
        backup(tmp_path / "nothing", tmp_path / "other")


def test_nothing_is_restored_under_a_party_that_runs(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 2)
    with closing(SqliteJournal(state / "journal.db")):
        backup(state, copy)
        with pytest.raises(OperatorError, match="in use by this process"):
            restore(copy, state, "shard", tmp_path)


# --- a journal that is set aside ------------------------------------------------------


def check(state: Path, kept: Path, number: int = 7) -> None:
    assert [row.record for row in read_rows(kept / "journal.db")] == [Incarnated(number)]
    assert is_numbered(state)
    assert not find_half_moved(state)
    with closing(SqliteJournal(state / "journal.db")) as journal:
        assert journal.mark.seq == 0


def test_its_journal_is_kept_and_the_folder_is_empty(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ruled(state, 7)
    assert not is_numbered(state)
    kept = set_aside(state)
    assert kept == state / "superseded-1"
    check(state, kept)
    number = load_folder_number(state)
    ruled(state, 8)
    again = set_aside(state)
    assert again == state / "superseded-2"
    check(state, again, 8)
    assert load_folder_number(state) != number, "it is told apart from what it was"


def test_a_journal_in_use_is_left_alone(tmp_path: Path) -> None:
    ruled(tmp_path / "state", 7)
    with (
        closing(SqliteJournal(tmp_path / "state" / "journal.db")),
        pytest.raises(OperatorError, match="in use"),
    ):
        set_aside(tmp_path / "state")
    assert not is_numbered(tmp_path / "state")


# --- the number of a folder -----------------------------------------------------------


@pytest.mark.parametrize("content", ["", "abcd\n", "z" * 32, "00" * 17])
def test_a_damaged_number_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "folder-number").write_text(content)
    with pytest.raises(OperatorError, match="damaged: start this standby with a new"):
        load_folder_number(tmp_path)


# --- a copy that comes in parts -------------------------------------------------------


ROWS = 30


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A journal that was compacted twice and then went on."""
    path = tmp_path_factory.mktemp("whole") / "journal.db"
    with closing(SqliteJournal(path)) as journal:
        for number in range(1, ROWS + 1):
            journal.append(float(number), [Incarnated(number)])
            if number in (10, 20):
                journal.compact(Fold((), number))
        return journal.serialize()


def parts_of(whole: bytes) -> list[CopyPart]:
    own, starts = payload_digest(whole), range(0, len(whole), 5000)
    return [CopyPart(own, len(whole), at, whole[at : at + 5000]) for at in starts]


def come(state: Path, whole: bytes) -> None:
    copy = CopyParts(state)
    for part in parts_of(whole):
        assert not has_copy(state)
        copy.keep(part)


@pytest.mark.parametrize("rows", [(), (1,)])
def test_a_folder_begins_from_a_copy(rows: tuple[int, ...], whole: bytes, tmp_path: Path) -> None:
    """A folder whose journal is behind does too."""
    ruled(tmp_path, *rows)
    come(tmp_path, whole)
    assert has_copy(tmp_path)
    assert begin_from_copy(tmp_path, tmp_path) == ROWS
    assert not (tmp_path / "copy").exists()
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        assert (journal.fold, journal.fold_mark.seq, journal.mark.seq) == (Fold((), 20), 20, ROWS)
        assert journal.read_after(
            Mark(10, journal_rows.last_archived(journal._path, journal._base).chain), 1 << 20
        )
        assert payload_digest(journal.serialize()) == payload_digest(whole), "bit for bit"
        journal.append(99.0, [Incarnated(99)])
    records = [row.record for row in read_rows(tmp_path / "journal.db")]
    assert records == [Incarnated(number) for number in (*range(1, ROWS + 1), 99)]


def test_one_that_has_more_or_another_run_keeps_what_it_has(whole: bytes, tmp_path: Path) -> None:
    more, other = tmp_path / "more", tmp_path / "other"
    for state in (more, other):
        state.mkdir()
        come(state, whole)
    ruled(more, *range(ROWS + 1))
    with pytest.raises(DamagedStore, match="has come to row 31"):
        begin_from_copy(more, tmp_path)
    with closing(SqliteJournal(other / "journal.db")) as journal:
        journal.append(1.0, [full(RunPinned)])
    with pytest.raises(OperatorError, match="another run than the coordinator's: start this"):
        begin_from_copy(other, tmp_path)


def test_another_copy_begins_anew(whole: bytes, tmp_path: Path) -> None:
    copy = CopyParts(tmp_path)
    for part in parts_of(whole + b"?")[:2]:
        copy.keep(part)
    for part in parts_of(whole):
        copy.keep(part)
    assert begin_from_copy(tmp_path, tmp_path) == ROWS


@pytest.mark.parametrize(
    "wrong",
    [
        lambda part: replace(part, offset=part.offset + 1),
        lambda part: replace(part, digest=b"?" * 32),
        lambda part: replace(part, size=part.size + 1),
        lambda part: replace(part, part=part.part * 9),
        lambda part: replace(part, part=b""),
        lambda part: replace(part, offset=0, size=-1),
        lambda part: replace(part, offset=0, size=journal_rows.MOST_COPY + 1),
    ],
)
def test_what_is_not_the_next_part_is_refused(
    wrong: Callable[[CopyPart], CopyPart], whole: bytes, tmp_path: Path
) -> None:
    copy, (first, second, *_) = CopyParts(tmp_path), parts_of(whole)
    copy.keep(first)
    with pytest.raises(Refused, match="the coordinator"):
        copy.keep(wrong(second))
    assert not has_copy(tmp_path)


def test_a_copy_with_another_digest_is_none(whole: bytes, tmp_path: Path) -> None:
    copy, changed = CopyParts(tmp_path), bytearray(whole)
    changed[-1] ^= 1
    *parts, last = parts_of(whole)
    for part in parts:
        copy.keep(part)
    with pytest.raises(Refused, match="does not have its digest"):
        copy.keep(replace(last, part=bytes(changed[last.offset :])))
    assert not has_copy(tmp_path)
    shutil.rmtree(tmp_path / "copy")


def test_one_that_is_too_large_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        monkeypatch.setattr(journal_rows, "MOST_COPY", 1000)
        with pytest.raises(Refused, match=r"too many to be sent: begin .* from secureps backup"):
            journal.serialize()
