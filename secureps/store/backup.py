"""Copies of a party's state folder, and journals that are set aside.

    backup   files, then the journal by SQLite's backup, then new files; the height last
    restore  a marker, the files, the journal, its height; then the marker is deleted

A copy without a height was cut short, and a folder with a marker is half restored; both are
refused. SQLite copies the journal, because its file and its log must be copied together and not
while they are written. No copy has the kit: an envelope key that came back would open old updates.

A shard's folder may be restored to any state, because other parties have the missing blocks. Any
other folder must not go back behind a height on record.

A standby that begins late gets the coordinator's journal in parts, and restores it like a backup:

    STATE/copy/journal.db.part  the parts so far
    STATE/copy/journal.db       the whole copy, once its digest is right

A superseded coordinator becomes the standby of the other one, and keeps its journal:

    STATE/superseded-N/         its old journal; superseded-N.moving/ during the move
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain, count
from pathlib import Path

from secureps.crypto.identity import Role
from secureps.errors import ConfigError, DamagedStore, OperatorError, Refused
from secureps.file_access import BINARY
from secureps.messages.records import Dated, RunPinned
from secureps.messages.requests import CopyPart
from secureps.store import durability
from secureps.store.act_lines import FILE as ACTS
from secureps.store.atomic_file import make_directory, put_in_place, sync, write_durably
from secureps.store.checkpoint import digest_of_file
from secureps.store.envelope_keys import ledger_height, run_folder
from secureps.store.journal import last_row, read_folded, read_rows
from secureps.store.journal_rows import (
    MOST_COPY,
    Mark,
    height_path,
    lock_journal,
    read_height,
    read_only,
    restoring_path,
    write_height,
)

JOURNAL = "journal.db"
COPY = "copy"
"""The folder of a copy that a standby gets in parts."""
FOLDER_NUMBER, NUMBER_BYTES = "folder-number", 16
"""The file with a standby's random number, which tells two standbys with one journal apart."""
_MOVING = ".moving"

_PASSING = ("address", "metrics-address", FOLDER_NUMBER)
"""Files that are not copied: addresses of a running process, and the folder's own number."""

TRAINING = "training.safetensors"
"""The file of a client's last training, of which groups that take turns send parts."""
_GROWING = (ACTS, TRAINING)
"""Files whose content changes under the same name."""


def backup(state: Path, copy: Path) -> int:
    """Copies the state folder of a running or stopped party; returns the journal's rows.

    The copy has every file that its journal names and the party still needs.

    Raises:
        ConfigError: there is no state, or `copy` is not empty or lies in the state folder.
        DamagedStore: the journal is damaged.
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
        _copy_files(state, copy)  # files that came meanwhile, which the journal may name
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
    """Restores a state folder from a copy; returns the journal's rows.

    If it is interrupted, call it again; until it succeeds no party starts from the folder.
    `private` is the folder of the party's keys, which also has the height of a holder's ledger.

    Raises:
        ConfigError: `copy` is incomplete, or belongs to another party or run.
        DamagedStore: the party wrote more rows than the copy has, or their number is unknown; or
            the copy is damaged.
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
    """Raises ConfigError if a folder's journal belongs to another party.

    A party must not sign, restore or continue another party's work. Damage is not reported here,
    because a party may run with a damaged archive.

    Raises:
        ConfigError: or it has another format.
        DamagedStore: the journal has rows, but none names its writer.
    """
    journal, first = folder / JOURNAL, None
    try:
        first = next(read_rows(journal), None)
    except DamagedStore:  # perhaps of the archive alone: each start names the writer anew
        with suppress(DamagedStore):
            rows = read_folded(journal)[1]
            first = next((row for row in rows if isinstance(row.record, Dated)), None)
    if first is None:
        return
    if not isinstance(writer := first.record, Dated):
        raise DamagedStore(f"{journal}: it has rows, and none says which party writes it")
    if (writer.role, writer.party) != (role, name):
        raise ConfigError(
            f"{folder} belongs to the {writer.role} {writer.party}, as its journal says, not to "
            f"the {role} {name}: name the folder of {name}, or {writer.party} by --name"
        )


def _demand_row(folder: Path, role: Role, known: Mark) -> None:
    """Raises ConfigError if a folder's journal has another row in this place.

    The row may be missing in a compacted journal and in an older copy.
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
    """Returns the party's newest known mark; DamagedStore if the copy is older."""
    known = []
    for path in (height_path(state / JOURNAL), *beside):
        try:
            height = read_height(path)
        except DamagedStore:
            continue  # another height may be readable
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
    for suffix in ("-wal", "-shm"):  # SQLite would apply the old journal's log to the new one
        target.with_name(JOURNAL + suffix).unlink(missing_ok=True)
    _copy_files(copy, state, anew=True)
    _copy_file(copy / JOURNAL, target)
    write_height(height_path(target), mark)
    marker.unlink()
    sync(state)


def _copy_journal(source: Path, target: Path) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | BINARY, 0o600))
    with read_only(source) as reader, closing(sqlite3.connect(target)) as writer:
        reader.backup(writer)
        writer.execute("PRAGMA journal_mode = DELETE")  # so that readers of the copy make no log
    sync(target)


def read_run(journal: Path) -> bytes | None:
    """Reads the run id in a journal; None if there is none yet. Raises DamagedStore."""
    pinned = read_pinned(journal)
    return None if pinned is None else pinned.run.id


def read_pinned(journal: Path) -> RunPinned | None:
    fold, rows, _ = read_folded(journal)
    known = () if fold is None else fold.records
    records = chain(known, (row.record for row in rows))
    return next((record for record in records if isinstance(record, RunPinned)), None)


def _copy_files(source: Path, target: Path, anew: bool = False) -> None:
    """Copies all files except the journal's and those of a running process.

    Existing files are copied again only if their content changes under the same name, or if `anew`,
    because they may be damaged.
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
    """Moves a journal into a folder that it returns; the state folder becomes a new standby's.

    If it is interrupted (`find_half_moved`), call it again.

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
            load_folder_number(state)  # otherwise the next start would be a new coordinator's
            kept = moving.with_suffix("")
            os.replace(moving, kept)
            sync(state)
        finally:
            os.close(held)
    except OSError as error:
        raise OperatorError(f"cannot set {journal} aside: {error}") from None
    return kept


def find_half_moved(state: Path) -> Path | None:
    return next(iter(sorted(state.glob(f"superseded-*{_MOVING}"))), None)


def _free_folder(state: Path) -> Path:
    free = (state / f"superseded-{number}" for number in count(1))
    kept = next(path for path in free if not path.exists())
    return kept.with_name(kept.name + _MOVING)


def is_numbered(state: Path) -> bool:
    """True if a folder has a number: it belongs to a standby, or to one that took over."""
    return (state / FOLDER_NUMBER).exists()


def load_folder_number(state: Path) -> bytes:
    """Reads, or at first makes, a folder's 16 random bytes; OperatorError if damaged."""
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
    """Collects the parts of a copy in a state folder; its first part begins it anew."""

    def __init__(self, state: Path) -> None:
        self._folder = state / COPY
        self._path = self._folder / f"{JOURNAL}.part"

    def keep(self, part: CopyPart) -> None:
        """Stores the next part.

        Raises:
            Refused: it is another part, or the copy does not have the announced size and digest.
            OperatorError: the disk refuses.
        """
        if not part.end <= part.size <= MOST_COPY:
            raise Refused(f"the coordinator's copy of its journal has not {part.size} bytes")
        try:
            make_directory(self._folder, 0o700)
            opener = partial(os.open, mode=0o600)
            with open(self._path, "ab" if part.offset else "wb", opener=opener) as file:
                if file.tell() != part.offset or not part.part:
                    text = "the coordinator sent another part of its journal than was asked for"
                    raise Refused(text)
                file.write(part.part)
                if part.end == part.size:
                    file.flush()
                    durability.sync(file.fileno())
            if part.end == part.size:
                if digest_of_file(self._path) != part.digest:
                    raise Refused("the coordinator's copy of its journal does not have its digest")
                whole = self._folder / JOURNAL
                put_in_place(self._path, whole)
                write_height(height_path(whole), last_row(whole))
        except OSError as error:
            raise OperatorError(f"cannot write {self._path}: {error}") from None


def has_copy(state: Path) -> bool:
    """True if a complete copy waits for `begin_from_copy`."""
    return height_path(state / COPY / JOURNAL).exists()


def begin_from_copy(state: Path, private: Path) -> int:
    """Restores a standby's state folder from the copy in it; returns the journal's rows.

    If it is interrupted, call it again. `private` is the folder of the party's keys.

    Raises:
        OperatorError: the folder belongs to another run, or the disk refuses.
        DamagedStore: the copy is damaged, or older than the folder's journal.
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
    height_path(copy / JOURNAL).unlink()  # without its height the copy is not used again
    sync(copy)  # otherwise a power cut could bring this older copy back
    shutil.rmtree(copy)
    return rows
