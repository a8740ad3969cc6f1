"""Says who may read or write a file, where the system has owners, modes and links.

On Windows access control lists decide, which nothing here reads (docs/deploy.md says what protects
keys then).
"""

from __future__ import annotations

import os
import stat

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open`: a link is refused and not followed."""

BINARY = getattr(os, "O_BINARY", 0)
"""Flag of `os.open`: bytes are left as they are. Without it Windows takes a file for a text, and a
last byte of 26 (Ctrl-Z) away from one that is opened to be read and written."""


def user() -> int | None:
    """The user whose this process is; None where users have no numbers."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def owned_by_others(found: os.stat_result) -> bool:
    """Whether somebody else owns a file."""
    return user() not in (None, found.st_uid)


def open_to_others(found: os.stat_result, bits: int) -> int:
    """Those of these bits that a file's mode has; 0 where a mode says nothing of others."""
    return 0 if user() is None else stat.S_IMODE(found.st_mode) & bits


def set_mode(file: int, mode: int) -> None:
    """Gives an open file this mode, whatever the umask says; nothing where there is none."""
    if hasattr(os, "fchmod"):
        os.fchmod(file, mode)
