"""A copy of a journal that comes in parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.errors import DamagedStore, OperatorError, Refused
from secureps.messages.encoding import payload_digest
from secureps.messages.following import CopyPart
from secureps.messages.records import Incarnated
from secureps.roles.machine import Fold
from secureps.store import compaction
from secureps.store.backup import CopyParts, begin_from_copy, has_copy
from secureps.store.journal import SqliteJournal, read_rows
from secureps.store.journal_height import Mark
from tests.golden.values import full

ROWS = 30


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A journal that was compacted twice, and goes on."""
    path = tmp_path_factory.mktemp("whole") / "journal.db"
    with closing(SqliteJournal(path)) as journal:
        for number in range(1, ROWS + 1):
            journal.append(float(number), [Incarnated(number)])
            if number in (10, 20):
                journal.compact(Fold((), number))
        return journal.copied()


def parts_of(whole: bytes, size: int = 5000) -> list[CopyPart]:
    own = payload_digest(whole)
    starts = range(0, len(whole), size)
    return [CopyPart(own, len(whole), at, whole[at : at + size]) for at in starts]


def come(state: Path, whole: bytes) -> None:
    copy = CopyParts(state)
    for part in parts_of(whole):
        assert not has_copy(state)
        assert copy.keep(part) == part.offset + len(part.part)


def test_a_folder_begins_from_a_copy(whole: bytes, tmp_path: Path) -> None:
    come(tmp_path, whole)
    assert has_copy(tmp_path)
    assert begin_from_copy(tmp_path, tmp_path) == ROWS
    assert not (tmp_path / "copy").exists()
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        assert (journal.fold, journal.folded.seq, journal.mark.seq) == (Fold((), 20), 20, ROWS)
        assert journal.after(Mark(10, compaction.gone(journal._path, journal._base).chain), 1 << 20)
        assert payload_digest(journal.copied()) == payload_digest(whole), "bit for bit"
        journal.append(99.0, [Incarnated(99)])
    records = [row.record for row in read_rows(tmp_path / "journal.db")]
    assert records == [Incarnated(number) for number in (*range(1, ROWS + 1), 99)]


def test_one_that_is_behind_goes_on_from_a_copy(whole: bytes, tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        journal.append(1.0, [Incarnated(1)])
    come(tmp_path, whole)
    assert begin_from_copy(tmp_path, tmp_path) == ROWS
    assert sum(1 for _ in read_rows(tmp_path / "journal.db")) == ROWS


def test_one_that_has_more_or_another_run_keeps_what_it_has(whole: bytes, tmp_path: Path) -> None:
    more, other = tmp_path / "more", tmp_path / "other"
    for state in (more, other):
        state.mkdir()
        come(state, whole)
    with closing(SqliteJournal(more / "journal.db")) as journal:
        journal.append(1.0, [Incarnated(number) for number in range(ROWS + 1)])
    with pytest.raises(DamagedStore, match="has come to row 31"):
        begin_from_copy(more, tmp_path)
    from secureps.messages.records import RunPinned

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
        lambda part: replace(part, offset=0, size=compaction.MOST_COPY + 1),
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
        monkeypatch.setattr(compaction, "MOST_COPY", 1000)
        with pytest.raises(Refused, match=r"too many to be sent: begin .* from secureps backup"):
            journal.copied()
