"""Whose a state folder is: its party's alone, at every start, also where it was there before.

Whoever reads it has a client's seed; whoever writes it has a ledger forget what was spent. What is
only readable by others is closed here; what others could have changed is refused, for nobody can
say what they did. As root, in a container, a volume may belong to whoever made it: then all in it
belongs to that one, or to root. Where files have no owners and modes (Windows) nothing is looked
at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from secureps.errors import ConfigError, OperatorError
from secureps.file_access import open_to_others, user
from secureps.store.atomic_file import make_directory

FOLDER, FILE = 0o700, 0o600


def own(folder: Path) -> None:
    """Makes a state folder, or sees to it that one is its owner's alone.

    Raises:
        ConfigError: it is somebody else's, or others may have changed it; says what to run.
        OperatorError: it cannot be made or looked at.
    """
    try:
        make_directory(folder, FOLDER)
        if (own := user()) is None:
            return
        owners = {own} if own else {folder.stat().st_uid, 0}
        for path, status in _all(folder):
            _check(folder, path, status, owners)
    except OSError as error:
        raise OperatorError(f"{error.filename or folder}: {error.strerror}") from None


def _check(folder: Path, path: Path, status: os.stat_result, owners: set[int]) -> None:
    if status.st_uid not in owners:
        raise ConfigError(
            f"{path} belongs to user {status.st_uid}, and this process runs as {user()}: "
            f"chown -R {user()} {folder}, or run as the user whose it is"
        )
    if open_to_others(status, 0o022):
        raise ConfigError(
            f"{path} can be written to by others, who may have changed what this party relies on: "
            f"if they have not, chmod -R go-rwx {folder}, or give it a folder of its own"
        )
    if open_to_others(status, 0o077):
        path.chmod(FOLDER if stat.S_ISDIR(status.st_mode) else FILE)


def _all(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The folder and all in it; a link stands for itself, and its own mode says nothing."""
    yield folder, folder.stat()
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base) / name
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if not stat.S_ISLNK(status.st_mode):
                yield path, status
