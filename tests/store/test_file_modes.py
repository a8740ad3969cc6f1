"""Secrecy: a party's files are private from their first byte, whatever the umask."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from secureps.errors import SecurepsError
from secureps.messages.charge import Charge
from secureps.messages.records import Incarnated, RunPinned
from secureps.store.atomic_file import make_directory, replace_text
from secureps.store.backup import backup, restore
from secureps.store.budget import BudgetLedger
from secureps.store.checkpoint import write_state
from secureps.store.envelope_keys import ServedJournal
from secureps.store.journal import MemoryJournal, SqliteJournal
from secureps.store.keyring import load_seed
from secureps.store.spool import DiskSpool
from tests.kits.ledgers import charge
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run


def journal(folder: Path) -> None:
    with closing(SqliteJournal(folder / "journal.db")) as made:
        made.append(0.0, [Incarnated(1)])


def spool(folder: Path) -> None:
    DiskSpool(folder / "spool").put("key", b"payload")
    DiskSpool(folder / "spool").keep("name", [b"payload"])


def runs(folder: Path) -> None:
    with closing(ServedJournal(MemoryJournal(), folder / "runs")) as made:
        made.append(0.0, [PINNED])


def restored(folder: Path) -> None:
    beside = folder.parent / "copy-of" / folder.name
    (beside / "state").mkdir(parents=True)
    journal(beside / "state")
    spool(beside / "state")
    backup(beside / "state", beside / "copy")
    restore(beside / "copy", folder, "coordinator", beside)


def copied(folder: Path) -> None:
    beside = folder.parent / "state-of" / folder.name
    beside.mkdir(parents=True)
    journal(beside)
    spool(beside)
    backup(beside, folder)


def ledger(folder: Path) -> None:
    charge(BudgetLedger(folder / "ledgers" / "me.db"), bytes(32), CHARGE)


WRITERS: dict[str, Callable[[Path], object]] = {
    "journal": journal,
    "spool": spool,
    "seed": lambda folder: load_seed(folder / "seed"),
    "state": lambda folder: write_state(folder / "states" / "all-0", {"x": np.ones(3)}, {}),
    "runs": runs,
    "ledger": ledger,
    "copy": copied,
    "restored": restored,
    "address": lambda folder: replace_text(folder / "address", "127.0.0.1:1\n", 0o600),
}


PLAN = make_plan()
PINNED = RunPinned(make_run(PLAN), make_placement(PLAN), ADDRESSES)
CHARGE = Charge("me", "all", 0, 1.1, 0.01, 100)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Sets umask 0, so that privacy does not depend on it."""
    before = os.umask(0)
    yield
    os.umask(before)


def written(writer: str, folder: Path) -> list[Path]:
    folder.mkdir(0o700)
    WRITERS[writer](folder)
    return [path.relative_to(folder) for path in sorted(folder.rglob("*"))]


@pytest.mark.parametrize("writer", WRITERS)
def test_nobody_else_reads_or_writes_it(writer: str, tmp_path: Path) -> None:
    made = written(writer, tmp_path / "state")
    assert made
    for path in made:
        mode = stat.S_IMODE((tmp_path / "state" / path).stat().st_mode)
        assert mode in (0o600, 0o700), path


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_in_its_place_is_not_followed(writer: str, tmp_path: Path) -> None:
    files = [each for each in written(writer, tmp_path / "a") if (tmp_path / "a" / each).is_file()]
    beside = ("", ".new", ".tmp", "-wal", "-shm", ".restoring")
    places = {each.with_name(each.name + more) for each in files for more in beside}
    places |= {each.with_name("~0.tmp") for each in files}
    precious, nowhere = tmp_path / "precious", tmp_path / "nowhere"
    precious.write_bytes(b"precious")
    precious.chmod(0o644)
    for number, place in enumerate(sorted(places)):
        for target in (precious, nowhere):
            link = tmp_path / f"{number}-{target.name}" / place
            link.parent.mkdir(0o700, parents=True)
            link.symlink_to(target)
            with suppress(SecurepsError):
                WRITERS[writer](tmp_path / f"{number}-{target.name}")
            assert precious.read_bytes() == b"precious", place
            assert stat.S_IMODE(precious.stat().st_mode) == 0o644, place
            assert not nowhere.exists(), place


PUBLISHED: dict[str, Callable[[Path], object]] = {
    "part": lambda folder: write_state(folder / "000001" / "part", {"x": np.ones(3)}, {}, None),
    "text": lambda folder: replace_text(make(folder / "report") / "summary.json", "{}"),
}


def make(folder: Path) -> Path:
    make_directory(folder)
    return folder


@pytest.mark.parametrize("bits", [0, 0o022, 0o077])
@pytest.mark.parametrize("writer", PUBLISHED)
def test_what_is_published_nobody_else_writes(writer: str, bits: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(0o755)
    os.umask(bits)
    PUBLISHED[writer](folder)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert modes == {True: 0o775 & ~bits, False: 0o644 & ~bits}


@pytest.mark.parametrize("writer", PUBLISHED)
def test_a_link_in_place_of_what_is_published_is_replaced(writer: str, tmp_path: Path) -> None:
    first, second, precious = tmp_path / "a", tmp_path / "b", tmp_path / "precious"
    PUBLISHED[writer](make(first))
    precious.write_bytes(b"precious")
    (file,) = (path.relative_to(first) for path in first.rglob("*") if path.is_file())
    for suffix in ("", ".new"):
        make((second / file).parent)
        (second / file.with_name(file.name + suffix)).symlink_to(precious)
    PUBLISHED[writer](second)
    assert not (second / file).is_symlink()
    assert precious.read_bytes() == b"precious"
