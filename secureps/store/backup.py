"""A party's state folder as a whole: its copies, its number, and a journal that is set aside.

    backup   files, then the journal by SQLite's own backup, then what is new; the height last
    restore  a marker, the files, the journal, its height; the marker goes last

A journal must not be copied without its log, and a log not while it is written. A copy without a
height was cut short, and a folder with a marker is half restored: neither is taken for a whole one.
The kit is in no copy: a private key lies where its owner keeps it, and an envelope key that comes
back would open what was sealed under it.

What may come back (`restore`): a shard's folder at any time, for others have what it lacks; nobody
else's below a height on record.

A standby that begins late gets the coordinator's journal in parts, and brings it in as a backup is:

    STATE/copy/journal.db.part  parts as they come; STATE/copy/journal.db once the whole of it is
                                what was sent

A coordinator that was superseded becomes the other one's standby, and loses no row:

    STATE/superseded-N/         its journal as it was; superseded-N.moving/ while it is being moved
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

from secureps.crypto.identity import Role
from secureps.errors import ConfigError, DamagedStore, Malformed, OperatorError, Refused
from secureps.file_access import BINARY
from secureps.messages.encoding import from_plain, payload_hasher
from secureps.messages.records import Dated, RunPinned
from secureps.messages.requests import CopyPart
from secureps.store import durability
from secureps.store.act_lines import FILE as ACTS
from secureps.store.atomic_file import make_directory, put_in_place, sync, write_durably
from secureps.store.envelope_keys import ledger_height, run_folder
from secureps.store.journal import last_row, read_rows
from secureps.store.journal_rows import (
    MOST_COPY,
    START,
    Mark,
    height_path,
    lock_journal,
    read_archive,
    read_fold,
    read_height,
    read_only,
    restoring_path,
    write_height,
)

T = TypeVar("T")

JOURNAL = "journal.db"
COPY = "copy"
"""The folder of a copy that comes in parts to a standby: it is begun anew."""
FOLDER_NUMBER, NUMBER_BYTES = "folder-number", 16
"""The file with a standby's number, by which who has another copy of its journal is told apart."""
_MOVING = ".moving"

_PASSING = ("address", "metrics-address", FOLDER_NUMBER)
"""What a process says of itself while it runs, and the number that no copy of a folder has."""

_GROWING = (ACTS,)
"""Files that are written anew under their names; of any other a name stands for its bytes."""


def backup(state: Path, copy: Path) -> int:
    """Copies a party's state folder, whether it runs or not; returns how many rows it knows.

    What the journal of the copy names is in the copy, or was no more wanted.

    Raises:
        ConfigError: there is no state, or `copy` holds something, or is a part of the state.
        DamagedStore: the journal is damaged: a copy of it would be, too.
        OperatorError: the disk refuses.
    """
    source = state / JOURNAL
    if not source.is_file():
        raise ConfigError(f"{state} is no state folder: it has no {JOURNAL}")
    if copy.resolve().is_relative_to(state.resolve()):
        raise ConfigError(
            f"{copy} lies in {state}, which is copied: name a folder beside it by --out"
        )
    if copy.exists() and any(copy.iterdir()):
        raise ConfigError(f"{copy} holds something already: name a folder of its own by --out")
    try:
        make_directory(copy, 0o700)
        copy.chmod(0o700)
        _copy_files(state, copy)
        known = read_height(height_path(source))
        _copy_journal(source, copy / JOURNAL)
        _copy_files(state, copy)  # what the journal names, and was not there yet
        mark = last_row(copy / JOURNAL)
        if known is not None and known.seq > mark.seq:
            raise DamagedStore(
                f"{source}: ends at row {mark.seq}, and {known.seq} rows were written: nothing is "
                "copied over an older copy"
            )
        for _ in read_rows(copy / JOURNAL):  # DamagedStore unless each follows the one before it
            pass
        write_height(height_path(copy / JOURNAL), mark)
    except OSError as error:
        raise OperatorError(f"cannot copy {state}: {error}") from None
    return mark.seq


def restore(copy: Path, state: Path, role: Role, private: Path) -> int:
    """Brings a copy back into a state folder; returns how many rows the party knows then.

    Cut short at any moment, it is to be done again: until then no party starts from the folder.

    Args:
        role: whose folder it is.
        private: the folder of its keys, where a holder's ledger is told of, too.

    Raises:
        ConfigError: `copy` is no whole copy, or of another journal than the party's.
        DamagedStore: the party has come further, or nobody knows how far; or the copy is damaged.
        OperatorError: the party runs, or the disk refuses.
    """
    mark = read_height(height_path(copy / JOURNAL))
    if mark is None or not (copy / JOURNAL).is_file():
        raise ConfigError(f"{copy} is no whole copy of a state folder: secureps backup makes one")
    if last_row(copy / JOURNAL) != mark:
        raise DamagedStore(f"{copy}: its journal does not end where its height says: take another")
    try:
        make_directory(state, 0o700)
        held = lock_journal(state / JOURNAL)
        try:
            if role != "shard":
                run = read_run(copy / JOURNAL)
                beside = () if run is None else (ledger_height(run_folder(private, run)),)
                newest = _refuse_older(state, role, mark, beside)
                if newest is not None:
                    _demand_row(copy, role, newest)
            _bring_back(copy, state, mark)
        finally:
            os.close(held)
    except OSError as error:
        raise OperatorError(f"cannot restore {state}: {error}") from None
    return mark.seq


def demand_owner(folder: Path, role: str, name: str) -> None:
    """ConfigError if the journal of a folder says that another party writes it.

    A party must not sign, restore or continue what another party did. Damage is left to those who
    read all rows: a party goes on with a damaged archive.

    Raises:
        DamagedStore: the journal has rows, and none says who writes it.
    """
    journal = folder / JOURNAL
    try:
        writer = _find(journal, Dated)
    except DamagedStore:
        return
    if writer is None:
        if last_row(journal) != START:
            raise DamagedStore(f"{journal}: it has rows, and none says which party writes it")
    elif (writer.role, writer.party) != (role, name):
        raise ConfigError(
            f"{folder} belongs to the {writer.role} {writer.party}, as its journal says, not to "
            f"the {role} {name}: name the folder of {name}, or {writer.party} by --name"
        )


def _demand_row(folder: Path, role: Role, known: Mark) -> None:
    """ConfigError if the journal of a folder has another row where the party wrote this one.

    A compacted journal may not have that row any more, and an older copy not yet.
    """
    with read_only(folder / JOURNAL) as reader:
        query = "SELECT chain FROM journal WHERE seq = ?"
        row = reader.execute(query, (known.seq,)).fetchone()
    if row is not None and row != (known.chain,):
        raise ConfigError(
            f"{folder}: row {known.seq} of its journal is not the one that this {role} wrote, so "
            f"it is another party's or another run's: name the folder that is this {role}'s own"
        )


def _refuse_older(state: Path, role: Role, mark: Mark, beside: Sequence[Path]) -> Mark | None:
    """The newest mark of the party that is known; DamagedStore if the copy is older."""
    known = []
    for path in (height_path(state / JOURNAL), *beside):
        try:
            height = read_height(path)
        except DamagedStore:
            continue  # it says nothing, and another may
        if height is not None:
            known.append(height)
    newest = max(known, key=lambda height: height.seq, default=None)
    remedy = {
        "coordinator": "begin a new run from the last checkpoint",
        "holder": "this holder stays out of the run, which goes on with the others",
    }.get(role, "join with a new --state folder: what was spent stays on record beside the kit")
    if newest is None and role in ("holder", "client"):
        raise DamagedStore(
            f"nothing says how far this {role} had come: its journal must not go back, and this "
            f"copy may be an older one; {remedy}"
        )
    if newest is not None and newest.seq > mark.seq:
        raise DamagedStore(
            f"this copy ends at row {mark.seq}, and this {role} has come to row {newest.seq}: what "
            f"it forgot it would do again; bring back a newer copy, or {remedy}"
        )
    return newest


def _bring_back(copy: Path, state: Path, mark: Mark) -> None:
    target = state / JOURNAL
    marker = restoring_path(target)
    write_durably(marker, ())
    for suffix in ("-wal", "-shm"):  # a log of another journal would be written over this one
        target.with_name(JOURNAL + suffix).unlink(missing_ok=True)
    _copy_files(copy, state, anew=True)
    _copy_file(copy / JOURNAL, target)
    write_height(height_path(target), mark)
    marker.unlink()
    sync(state)


def _copy_journal(source: Path, target: Path) -> None:
    """Copies by SQLite, which sees file and log as one, also while another process writes."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | BINARY, 0o600))
    with read_only(source) as reader, closing(sqlite3.connect(target)) as writer:
        reader.backup(writer)
        writer.execute("PRAGMA journal_mode = DELETE")  # reading the copy leaves no log beside it
    sync(target)


def read_run(journal: Path) -> bytes | None:
    """The run of a journal; None if it has none yet. DamagedStore if it cannot be read."""
    pinned = read_pinned(journal)
    return None if pinned is None else pinned.run.id


def read_pinned(journal: Path) -> RunPinned | None:
    """The run of a journal, with plan and model; None and DamagedStore as `read_run`."""
    return _find(journal, RunPinned)


def _find(journal: Path, kind: type[T]) -> T | None:
    """Finds a record of a class among rows, fold and archive; None if there is none.

    DamagedStore if the journal cannot be read.
    """
    try:
        with read_only(journal) as reader:
            reader.execute("BEGIN")  # rows, fold and archive are of one moment: it may be written
            query = "SELECT body FROM journal WHERE kind = ? LIMIT 1"
            found = reader.execute(query, (kind.__name__,)).fetchone()
            if found is not None:
                return from_plain(kind, json.loads(found[0]))
            known = read_fold(journal, reader)
            archived = (row.record for row in read_archive(journal, reader))
            records = chain(() if known is None else known.fold.records, archived)
            return next((record for record in records if isinstance(record, kind)), None)
    except (Malformed, ValueError, TypeError, RecursionError) as error:
        raise DamagedStore(f"{journal}: {error}") from None


def _copy_files(source: Path, target: Path, anew: bool = False) -> None:
    """Copies all files but the journal's own and those of the moment.

    Of files that are there, it copies those that grow, of which the journal that was copied
    meanwhile may know more; all of them if `anew`, for they may be damaged.
    """
    for path in _files(source):
        there = target / path.relative_to(source)
        try:
            if anew or path.name in _GROWING or not there.exists():
                _copy_file(path, there)
        except FileNotFoundError:
            continue


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        passing = path.name in _PASSING or path.suffix in (".tmp", ".new", ".lock", ".turn")
        passing |= path.parent == root / COPY
        journals = path.parent == root and path.name.startswith(JOURNAL)
        if path.is_file() and not path.is_symlink() and not passing and not journals:
            yield path


def _copy_file(source: Path, target: Path) -> None:
    make_directory(target.parent, 0o700)
    with source.open("rb") as reader:
        write_durably(target, iter(partial(reader.read, 1 << 20), b""))


def set_aside(state: Path) -> Path:
    """Moves a journal into a folder that it returns, and makes the state folder a standby's, empty.

    Cut short at any moment, it is to be done again (`find_half_moved`).

    Raises:
        OperatorError: a process holds the journal, or the disk refuses.
    """
    journal = state / JOURNAL
    try:
        held = lock_journal(journal)
        try:
            moving = find_half_moved(state) or _free_folder(state)
            make_directory(moving, 0o700)
            beside = [journal.with_name(f"{JOURNAL}{end}") for end in ("-wal", "-shm")]
            for path in (journal, *beside, height_path(journal), state / FOLDER_NUMBER):
                if path.exists():
                    os.replace(path, moving / path.name)
            sync(moving)
            load_folder_number(state)  # else the next start would be a coordinator's, of no run
            kept = moving.with_suffix("")
            os.replace(moving, kept)
            sync(state)
        finally:
            os.close(held)
    except OSError as error:
        raise OperatorError(f"cannot set {journal} aside: {error}") from None
    return kept


def find_half_moved(state: Path) -> Path | None:
    """Where a journal was being moved when its process ended; None if none was."""
    return next(iter(sorted(state.glob(f"superseded-*{_MOVING}"))), None)


def _free_folder(state: Path) -> Path:
    free = (state / f"superseded-{number}" for number in count(1))
    kept = next(path for path in free if not path.exists())
    return kept.with_name(kept.name + _MOVING)


def is_numbered(state: Path) -> bool:
    """Whether a folder has a number: it is a standby's, or of a coordinator that was one."""
    return (state / FOLDER_NUMBER).exists()


def load_folder_number(state: Path) -> bytes:
    """A folder's 16 random bytes, given when it is first asked; OperatorError if damaged."""
    path = state / FOLDER_NUMBER
    if not path.exists():
        write_durably(path, [f"{os.urandom(NUMBER_BYTES).hex()}\n".encode()])
    try:
        number = bytes.fromhex(path.read_text().strip())
    except ValueError:
        number = b""
    if len(number) != NUMBER_BYTES:
        raise OperatorError(
            f"{path}: damaged: start this standby with a new state folder, and keep this one"
        )
    return number


class CopyParts:
    """The parts of one copy, in a state folder; a process that is started anew begins anew."""

    def __init__(self, state: Path) -> None:
        self._folder = state / COPY
        self._path = self._folder / f"{JOURNAL}.part"
        self._digest, self._size, self._have = b"", 0, 0
        self._hasher = payload_hasher()

    def keep(self, part: CopyPart) -> None:
        """Keeps the part that comes next.

        Raises:
            Refused: it is not the part that comes next, or the copy is not what was announced.
            OperatorError: the disk refuses.
        """
        if part.offset == 0:
            self._digest, self._size, self._have = part.digest, part.size, 0
            self._hasher = payload_hasher()
        expected = (self._digest, self._size, self._have)
        if (part.digest, part.size, part.offset) != expected or not part.part:
            raise Refused("the coordinator sent another part of its journal than was asked for")
        if not part.end <= self._size <= MOST_COPY:
            raise Refused(f"the coordinator's copy of its journal has not {self._size} bytes")
        try:
            make_directory(self._folder, 0o700)
            opener = partial(os.open, mode=0o600)
            with open(self._path, "ab" if self._have else "wb", opener=opener) as file:
                file.write(part.part)
                if part.end == self._size:
                    file.flush()
                    durability.sync(file.fileno())
            self._hasher.update(part.part)
            self._have = part.end
            if self._have == self._size:
                if self._hasher.digest() != self._digest:
                    raise Refused("the coordinator's copy of its journal does not have its digest")
                whole = self._folder / JOURNAL
                put_in_place(self._path, whole)
                write_height(height_path(whole), last_row(whole))
        except OSError as error:
            raise OperatorError(f"cannot write {self._path}: {error}") from None


def has_copy(state: Path) -> bool:
    """Whether the whole of a copy is there, and not brought in yet."""
    return height_path(state / COPY / JOURNAL).exists()


def begin_from_copy(state: Path, private: Path) -> int:
    """Has a standby's state folder begin from the copy in it; returns how many rows it has.

    Cut short at any moment, it is to be done again. `private` is the folder of its keys.

    Raises:
        OperatorError: the folder is of another run, or the disk refuses.
        DamagedStore: the copy is damaged, or ends before what is there.
    """
    copy, journal = state / COPY, state / JOURNAL
    if journal.exists() and not restoring_path(journal).exists():
        own = read_run(journal)
        if own is not None and own != read_run(copy / JOURNAL):
            raise OperatorError(
                f"{state}: it is of another run than the coordinator's: start this standby with "
                "a new state folder, and keep this one"
            )
    rows = restore(copy, state, "coordinator", private)
    height_path(copy / JOURNAL).unlink()  # first: without it there is no copy to begin from
    sync(copy)  # else a power cut brings it back, and the journal has gone on by then
    shutil.rmtree(copy)
    return rows
