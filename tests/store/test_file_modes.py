"""What a party writes is its own from the first byte on, and goes where it is meant to."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from secureps.errors import SecurepsError
from secureps.messages.records import Incarnated
from secureps.store.atomic_file import replace_text
from secureps.store.checkpoint import write_state
from secureps.store.journal import SqliteJournal
from secureps.store.keyring import own_seed
from secureps.store.spool import DiskSpool


def journal(folder: Path) -> None:
    with closing(SqliteJournal(folder / "journal.db")) as made:
        made.append(0.0, [Incarnated(1)])


def spool(folder: Path) -> None:
    DiskSpool(folder / "spool").put("key", b"payload")
    DiskSpool(folder / "spool").keep("name", [b"payload"])


WRITERS: dict[str, Callable[[Path], object]] = {
    "journal": journal,
    "spool": spool,
    "seed": lambda folder: own_seed(folder / "seed"),
    "state": lambda folder: write_state(folder / "states" / "all-0", {"x": np.ones(3)}, {}),
    "address": lambda folder: replace_text(folder / "address", "127.0.0.1:1\n", 0o600),
}


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """None: what is private is so by itself."""
    before = os.umask(0)
    yield
    os.umask(before)


def written(writer: str, folder: Path) -> list[Path]:
    """What a writer makes in a new folder, by the paths in it."""
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
    """To a file that is there, and to one that is not; also of what is there for a moment."""
    files = [each for each in written(writer, tmp_path / "a") if (tmp_path / "a" / each).is_file()]
    beside = ("", ".new", ".tmp", "-wal", "-shm")
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
