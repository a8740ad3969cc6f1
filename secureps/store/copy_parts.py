"""A copy of the coordinator's journal that comes in parts: a standby begins from it, late.

    STATE/copy/journal.db.part   parts as they come
    STATE/copy/journal.db        the whole of it, found to be what was sent

It is brought into the state folder as a backup is, by `store.backup`.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

from secureps.errors import OperatorError, Refused
from secureps.messages.encoding import payload_hasher
from secureps.messages.following import CopyPart
from secureps.store import durability
from secureps.store.atomic_file import make_directory, put_in_place, sync
from secureps.store.backup import COPY, JOURNAL, restore, run_of
from secureps.store.compaction import MOST_COPY
from secureps.store.journal import last_row
from secureps.store.journal_height import height_path, write_height
from secureps.store.journal_lock import restoring_path


class CopyParts:
    """The parts of one copy, in a state folder; a process that is started anew begins anew."""

    def __init__(self, state: Path) -> None:
        self._folder = state / COPY
        self._path = self._folder / f"{JOURNAL}.part"
        self._digest, self._size, self._have = b"", 0, 0
        self._hasher = payload_hasher()

    def keep(self, part: CopyPart) -> int:
        """Keeps a part; returns how many bytes of the copy are here.

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
        if not self._have + len(part.part) <= self._size <= MOST_COPY:
            raise Refused(f"the coordinator's copy of its journal has not {self._size} bytes")
        try:
            make_directory(self._folder, 0o700)
            opener = partial(os.open, mode=0o600)
            with open(self._path, "ab" if self._have else "wb", opener=opener) as file:
                file.write(part.part)
                if self._have + len(part.part) == self._size:
                    file.flush()
                    durability.sync(file.fileno())
            self._hasher.update(part.part)
            self._have += len(part.part)
            if self._have == self._size:
                self._close()
        except OSError as error:
            raise OperatorError(f"cannot write {self._path}: {error}") from None
        return self._have

    def _close(self) -> None:
        if self._hasher.digest() != self._digest:
            raise Refused("the coordinator's copy of its journal does not have its digest")
        whole = self._folder / JOURNAL
        put_in_place(self._path, whole)
        write_height(height_path(whole), last_row(whole))


def has_copy(state: Path) -> bool:
    """Whether the whole of a copy is there, and not brought in yet."""
    return height_path(state / COPY / JOURNAL).exists()


def begin(state: Path, private: Path) -> int:
    """Has a standby's state folder begin from the copy in it; returns how many rows it has.

    Cut short at any moment, it is to be done again.

    Args:
        private: the folder of its keys.

    Raises:
        OperatorError: the folder is of another run, or the disk refuses.
        DamagedStore: the copy is damaged, or ends before what is there.
    """
    copy, journal = state / COPY, state / JOURNAL
    if journal.exists() and not restoring_path(journal).exists():
        own = run_of(journal)
        if own is not None and own != run_of(copy / JOURNAL):
            raise OperatorError(
                f"{state}: it is of another run than the coordinator's: start this standby with "
                "a new state folder, and keep this one"
            )
    rows = restore(copy, state, "coordinator", private)
    height_path(copy / JOURNAL).unlink()  # first: without it there is no copy to begin from
    sync(copy)  # else a power cut brings it back, and the journal has gone on by then
    shutil.rmtree(copy)
    return rows
