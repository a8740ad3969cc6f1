"""Sets the journal of a superseded coordinator aside, which is the other one's standby then.

STATE/superseded-N/         its journal as it was: no row of it is lost to whoever looks
STATE/superseded-N.moving/  while it is being moved
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from secureps.errors import OperatorError
from secureps.store.atomic_file import make_directory, sync
from secureps.store.backup import JOURNAL
from secureps.store.folder_number import FOLDER_NUMBER, folder_number
from secureps.store.journal_height import height_path
from secureps.store.journal_lock import lock

_MOVING = ".moving"


def set_aside(state: Path) -> Path:
    """Moves a journal into a folder of its own, and makes the state folder a standby's, empty.

    Cut short at any moment, it is to be done again (`half_aside`).

    Returns:
        where the journal is now.

    Raises:
        OperatorError: a process holds the journal, or the disk refuses.
    """
    journal = state / JOURNAL
    try:
        held = lock(journal)
        try:
            moving = _half(state) or _next(state)
            make_directory(moving, 0o700)
            beside = [journal.with_name(f"{JOURNAL}{end}") for end in ("-wal", "-shm")]
            for path in (journal, *beside, height_path(journal), state / FOLDER_NUMBER):
                if path.exists():
                    os.replace(path, moving / path.name)
            sync(moving)
            folder_number(state)  # else the next start would be a coordinator's, of no run
            kept = moving.with_suffix("")
            os.replace(moving, kept)
            sync(state)
        finally:
            os.close(held)
    except OSError as error:
        raise OperatorError(f"cannot set {journal} aside: {error}") from None
    return kept


def half_aside(state: Path) -> bool:
    """Whether a journal was being set aside when its process ended."""
    return _half(state) is not None


def _half(state: Path) -> Path | None:
    return next(iter(sorted(state.glob(f"superseded-*{_MOVING}"))), None)


def _next(state: Path) -> Path:
    free = (state / f"superseded-{number}" for number in count(1))
    kept = next(path for path in free if not path.exists())
    return kept.with_name(kept.name + _MOVING)
