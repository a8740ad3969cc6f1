"""Which limit of the operating system caused an error: memory, threads or open files.

Such an error is no fault of what was being done, and the same may work again, here or in the
process that is started next.
"""

from __future__ import annotations

import errno

try:
    import resource
except ImportError:  # Windows, which names no such limits
    resource = None  # type: ignore[assignment]


class Starved(Exception):
    """What had no memory or thread, and waits for ever: its text says what never came."""


def exhaustion(error: BaseException | None) -> str:
    """Says which limit of the operating system caused an error; empty if none did."""
    while error is not None:
        if isinstance(error, MemoryError):
            return _told("memory is used up", "-v", "RLIMIT_AS")
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return _told("no new thread can be started", "-u", "RLIMIT_NPROC")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return _told("file descriptors are used up", "-n", "RLIMIT_NOFILE")
        if isinstance(error, Starved):
            return _told(f"{error}: there was no memory or thread", "-v", "RLIMIT_AS")
        error = error.__cause__ or error.__context__
    return ""


def most_files() -> int | None:
    """How many files this process may have open; None where nothing but memory bounds them."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _told(what: str, option: str, kind: str) -> str:
    by = "the system's own limit"
    if hasattr(resource, kind):
        soft, _ = resource.getrlimit(getattr(resource, kind))
        limit = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
        by = f"ulimit {option}: {limit}, or the container's own limit"
    return (
        f"{what} ({by}): this process ends; give it more and start it again, it goes on where it "
        "was"
    )
