"""Who may read or write a file, on systems with owners, modes and links.

On Windows access control lists decide, and this module does not read them: docs/platforms.md says
how to protect keys there.
"""

from __future__ import annotations

import os
import stat

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open`: refuses a link instead of following it."""

BINARY = getattr(os, "O_BINARY", 0)
"""Flag of `os.open`: leaves bytes as they are. Without it Windows opens a file as text, and removes
a last byte of 26 (Ctrl-Z) from a file that is opened for reading and writing."""


def user() -> int | None:
    """The number of this process's user; None on systems where users have none."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def owned_by_others(found: os.stat_result) -> bool:
    """True if another user owns a file."""
    return user() not in (None, found.st_uid)


def open_to_others(found: os.stat_result, bits: int) -> int:
    """The given bits that a file's mode has; 0 on systems without such modes."""
    return 0 if user() is None else stat.S_IMODE(found.st_mode) & bits


def set_mode(file: int, mode: int) -> None:
    """Gives an open file this mode despite the umask; does nothing on systems without modes."""
    if hasattr(os, "fchmod"):
        os.fchmod(file, mode)
