"""That the doubles of chaos do what they say: disks, journals and clocks."""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from secureps.errors import DiskFailed
from secureps.messages.records import Incarnated
from secureps.messages.run import STANDBY
from secureps.service.loop import VirtualLoop
from secureps.store.atomic_file import sync, write_durably
from tests.chaos.disk import Disk, Journal
from tests.chaos.loop import PartyLoop
from tests.chaos.play import quiet
from tests.chaos.schedule import parsed, setting_of
from tests.chaos.world import World
from tests.conftest import AS_DEPLOYED


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals wait for the disk, as they do where no test runs: here power fails."""
    monkeypatch.setattr("secureps.store.journal.SYNCHRONOUS", AS_DEPLOYED)


def test_a_disk_forgets_what_was_not_synced(tmp_path: Path) -> None:
    links, tmp_path = tmp_path / "links", tmp_path / "files"
    for folder in (links, tmp_path):
        folder.mkdir()
    disk, whole = Disk(lambda operation: None, links), b"0123456789"
    found = Counter[bytes | None]()
    with disk.installed():
        write_durably(tmp_path / "kept", [whole])
        for round in range(40):
            (tmp_path / "torn").write_bytes(whole)
            sync(tmp_path)  # its name alone
            (tmp_path / "new").write_bytes(whole)
            os.replace(tmp_path / "new", tmp_path / "name")  # neither
            assert not disk.durable(tmp_path / "torn")
            assert not disk.durable(tmp_path / "name")
            disk.cut(tmp_path, random.Random(round), lambda path: True)
            assert (tmp_path / "kept").read_bytes() == whole
            assert disk.durable(tmp_path / "kept")
            assert whole.startswith((tmp_path / "torn").read_bytes())
            found[(tmp_path / "torn").read_bytes()] += 1
            name = tmp_path / "name"
            found[None] += not name.exists()
            name.unlink(missing_ok=True)
            (tmp_path / "torn").unlink()
            sync(tmp_path)
    assert 5 < found[None] < 35
    assert len(found) > 5


def test_a_journal_forgets_what_sqlite_would(monkeypatch: pytest.MonkeyPatch) -> None:
    def journalled() -> int:
        journal = Journal(lambda operation: None, lambda record: None)
        journal.append(0.0, [Incarnated(1)])
        journal.cut()
        return len(list(journal.replay()))

    assert journalled() == 1
    monkeypatch.setattr("secureps.store.journal.SYNCHRONOUS", "NORMAL")
    assert journalled() == 0


def test_a_gate_refuses_before_anything_is_written() -> None:
    def full(operation: str) -> None:
        raise DiskFailed(operation)

    journal = Journal(full, lambda record: None)
    with pytest.raises(DiskFailed, match="append"):
        journal.append(0.0, [Incarnated(1)])
    assert journal.rows == []


def test_a_party_s_clock_leaps_and_stops() -> None:
    whole, done = VirtualLoop(), list[tuple[str, float, float]]()
    loop = PartyLoop(whole, 100.0, lambda action: action())

    def note(name: str) -> None:
        done.append((name, whole.now(), loop.now()))

    for name, delay in (("soon", 1.0), ("later", 50.0), ("last", 90.0)):
        loop.call_later(delay, partial(note, name))
    whole.call_later(2.0, lambda: loop.jump(60.0))
    whole.call_later(3.0, lambda: loop.pause(40.0))
    whole.run(lambda: False)
    assert done == [("soon", 1.0, 101.0), ("later", 2.0, 162.0), ("last", 43.0, 203.0)]


def test_a_party_begins_again_at_the_newest_second_of_its_journal(tmp_path: Path) -> None:
    """As a process does: a standby that takes over may be behind the rows that it has copied."""
    world = World(0, setting_of(0), parsed("gone:coordinator@400"), tmp_path)
    journal = world._stores[STANDBY].journal
    journal.append(9.0, [Incarnated(1)])
    journal.append(4.0, [Incarnated(2)])
    with quiet():
        world.kill(STANDBY)
        world.start(STANDBY)
    assert world._loops[STANDBY].now() == journal.last == 9.0
