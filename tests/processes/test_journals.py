"""Survival: every party refuses a damaged journal and continues from a complete copy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from secureps.store.journal import last_row
from secureps.store.journal_rows import height_path, read_height
from tests.kits.processes import PATIENCE, Processes

ROLES = ("coordinator", "shard-0", "holder-0", "client-00")
FIRST_FRAME = 32 + 24
"""Where the first page of SQLite's log begins."""


def flip_its_log(state: Path) -> None:
    """SQLite reads what is before the damage as if nothing had come after."""
    log = state / "journal.db-wal"
    whole = log.read_bytes()
    at = FIRST_FRAME + 2000
    log.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])


def empty(state: Path) -> None:
    (state / "journal.db").write_bytes(b"")


def empty_without_its_log(state: Path) -> None:
    empty(state)
    for beside in ("journal.db-wal", "journal.db-shm"):
        (state / beside).unlink(missing_ok=True)


HARMS: tuple[Callable[[Path], None], ...] = (flip_its_log, empty, empty_without_its_log)


def whole_without_its_log(state: Path, folder: Path) -> bool:
    """Whether SQLite has just moved everything into the file: then its log holds nothing."""
    folder.mkdir(exist_ok=True)
    alone = Path(shutil.copy(state / "journal.db", folder))
    return last_row(alone) == read_height(height_path(state / "journal.db"))


def refusal(processes: Processes, name: str) -> str:
    before = len(processes.log(name))
    processes.start(name)
    assert processes._running[name].wait(PATIENCE) != 0
    return processes.log(name)[before:]


@pytest.mark.timeout(300)
def test_every_role_refuses_a_damaged_journal_and_goes_on_from_a_whole_one(tmp_path: Path) -> None:
    harmed = 0
    with Processes(tmp_path / "run", "bfv") as processes:
        processes.pace = 0.1
        processes.start_all()
        processes.wait(lambda: processes.reached(1), "version 1")
        for name in ROLES:
            processes.kill(name)
        for name in ROLES:
            state, copy = processes.folder / name, tmp_path / "copies" / name
            shutil.copytree(state, copy)
            for harm in HARMS:
                if harm is flip_its_log and whole_without_its_log(state, tmp_path / name):
                    continue
                harm(state)
                harmed += 1
                for _again in range(1 + (harm is empty)):  # a start changes nothing of it
                    said = refusal(processes, name)
                    assert f"{state / 'journal.db'}: " in said, said
                    assert "rows were written" in said, said
                    assert "secureps restore" in said, said
                shutil.rmtree(state)
                shutil.copytree(copy, state)
        for name in ROLES:
            processes.start(name)
        processes.wait(processes.finished, "the end")
    assert harmed > 2 * len(ROLES)
