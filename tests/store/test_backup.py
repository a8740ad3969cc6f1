"""Copies of state folders: whole while the party writes, and back without anything forgotten."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from secureps.crypto.identity import Identity
from secureps.errors import ConfigError, DamagedStore, OperatorError
from secureps.messages.records import Incarnated, RunPinned
from secureps.run.cli import app
from secureps.store.act_lines import FILE as ACTS
from secureps.store.act_lines import ActLines
from secureps.store.backup import _copy_journal, backup, restore
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import SqliteJournal
from secureps.store.journal_height import height_path, read_height
from secureps.store.served_runs import ServedJournal
from secureps.store.spool import DiskSpool
from tests.kits.command import said
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run

PLAN = make_plan()
PINNED = RunPinned(make_run(PLAN), make_placement(PLAN), ADDRESSES)


def grow(state: Path, rows: int) -> None:
    """A party runs, journals, spools, and ends."""
    state.mkdir(exist_ok=True)
    journal, spool = SqliteJournal(state / "journal.db"), DiskSpool(state / "spool")
    for number in range(journal.mark.seq, journal.mark.seq + rows):
        spool.put(f"payload/{number}", bytes([number % 256]) * 10)
        journal.append(float(number), [Incarnated(number)])
    journal.close()


def numbers(state: Path) -> list[int]:
    journal = SqliteJournal(state / "journal.db")
    try:
        return [record.number for _, record in journal.replay()]
    finally:
        journal.close()


def payloads(state: Path) -> dict[str, bytes]:
    spool = DiskSpool(state / "spool")
    return {key: spool.get(key) for key in spool.keys("")}


def test_a_copy_comes_back_as_it_was(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 5)
    (state / "seed").write_bytes(b"secret")
    (state / "address").write_text("host:1")
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


def test_what_is_spooled_while_the_journal_is_copied_is_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, real = tmp_path / "state", _copy_journal
    grow(state, 2)

    def meanwhile(source: Path, target: Path) -> None:
        grow(state, 1)
        real(source, target)

    monkeypatch.setattr("secureps.store.backup._copy_journal", meanwhile)
    assert backup(state, tmp_path / "copy") == 3
    assert payloads(tmp_path / "copy") == payloads(state)


def test_an_act_that_is_journalled_while_the_journal_is_copied_is_in_the_copy(
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
    assert (tmp_path / "copy" / ACTS).read_bytes() == (state / ACTS).read_bytes()
    assert not (tmp_path / "copy" / "acts.turn").exists()


def test_the_log_of_another_journal_is_not_read_into_the_one_that_comes_back(
    tmp_path: Path,
) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    grow(state, 2)
    backup(state, tmp_path / "copy")
    other.mkdir()
    journal = SqliteJournal(other / "journal.db")
    journal.append(0.0, [Incarnated(number) for number in range(7, 12)])
    log = (other / "journal.db-wal").read_bytes()
    journal.close()
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
    """The whole folder is gone, its height with it."""
    state, private = tmp_path / "state", tmp_path / "private"
    state.mkdir()
    private.mkdir()

    def serve(*rows: Incarnated | RunPinned) -> None:
        inner = SqliteJournal(state / "journal.db")
        try:
            ServedJournal(inner, private / "runs").append(0.0, rows)
        finally:
            inner.close()

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


def test_no_copy_is_made_within_what_is_copied(tmp_path: Path) -> None:
    """The journal's own copies lie there, and a copy would have itself in it."""
    state = tmp_path / "state"
    grow(state, 2)
    for within in (state, state / "copy", state / ".." / "state" / "a" / "b"):
        with pytest.raises(ConfigError, match="which is copied: name a folder beside it by --out"):
            backup(state, within)
    assert not (state / "copy").exists()


def test_a_copy_that_was_cut_short_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 2)
    backup(state, copy)
    height_path(copy / "journal.db").unlink()
    with pytest.raises(ConfigError, match="is no whole copy of a state folder"):
        restore(copy, state, "shard", tmp_path)
    with pytest.raises(ConfigError, match="holds something already"):
        backup(state, copy)
    with pytest.raises(ConfigError, match="is no state folder"):
        backup(tmp_path / "nothing", tmp_path / "other")


def test_a_copy_with_a_damaged_journal_is_none(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 300)
    whole = (state / "journal.db").read_bytes()
    at = whole.index(b'"number":150')
    (state / "journal.db").write_bytes(whole[:at] + b'"number":151' + whole[at + 12 :])
    with pytest.raises(DamagedStore, match="does not match its digest"):
        backup(state, copy)
    assert read_height(height_path(copy / "journal.db")) is None


def test_nothing_is_restored_under_a_party_that_runs(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 2)
    journal = SqliteJournal(state / "journal.db")
    backup(state, copy)
    with pytest.raises(OperatorError, match="in use by this process"):
        restore(copy, state, "shard", tmp_path)
    journal.close()


def test_by_the_command_line(tmp_path: Path) -> None:
    kit, state, copy = tmp_path / "kit", tmp_path / "state", tmp_path / "copy"
    create_kit(kit, PLAN.cipher_parameters)
    issue(kit, "shard", "shard-0")
    grow(state, 2)

    def run(*arguments: str | Path) -> str:
        return " ".join(said(app, *arguments).split())

    assert run("backup", state, "--out", copy) == f"copied {state} to {copy}: 2 rows of its journal"
    shutil.rmtree(state)
    back = run("restore", copy, "--state", state, "--kit", kit, "--name", "shard-0")
    assert back == f"restored {state}: 2 rows of its journal"
    assert numbers(state) == [0, 1]
