"""Limits of the operating system: which one caused an error, and whether there is room to work.

A process that can start no thread or open no file must not look alive: it ends, says which limit it
met, and is started again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager

from secureps.errors import ConfigError, DiskFailed, OperatorError

try:
    import resource
except ImportError:  # Windows, which names no such limits
    resource = None  # type: ignore[assignment]


class Starved(Exception):
    """What had no memory or thread, and waits for ever: its text says what never came."""


def name_limit(error: BaseException | None) -> str:
    """Says which limit of the operating system caused an error; empty if none did."""
    while error is not None:
        if isinstance(error, MemoryError):
            return _limit_text("memory is used up", "-v", "RLIMIT_AS")
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return _limit_text("no new thread can be started", "-u", "RLIMIT_NPROC")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return _limit_text("file descriptors are used up", "-n", "RLIMIT_NOFILE")
        if isinstance(error, Starved):
            return _limit_text(f"{error}: there was no memory or thread", "-v", "RLIMIT_AS")
        error = error.__cause__ or error.__context__
    return ""


def is_disk_fault(error: BaseException | None) -> bool:
    """Whether an error is the disk's, and the same action may work later."""
    return isinstance(error, DiskFailed | OSError) and not name_limit(error)


def most_files() -> int | None:
    """How many files this process may have open; None where nothing but memory bounds them."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _limit_text(what: str, option: str, kind: str) -> str:
    by = "the system's own limit"
    if hasattr(resource, kind):
        soft, _ = resource.getrlimit(getattr(resource, kind))
        limit = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
        by = f"ulimit {option}: {limit}, or the container's own limit"
    return (
        f"{what} ({by}): this process ends; give it more and start it again, it goes on where it "
        "was"
    )


OWN_DESCRIPTORS = 128
"""Descriptors of a process that serves nobody: its files, its threads' pipes, its own calls."""

PER_PARTY = 2
"""Descriptors for each party that may connect: its connection, and the one that follows it."""

_PR_SET_DUMPABLE = 4


def disable_core_dumps() -> None:
    """Keeps this process' memory, with its keys, off the disk when it crashes.

    A limit of 0 keeps it from files, but not from programs that take cores over (core(5)): for
    them Linux marks the process as one not to dump. That also keeps other processes of the same
    user from reading its memory and environment. Programs that it starts inherit the limit alone.
    On Windows a service of the system writes cores, which its operator turns off.
    """
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def demand_descriptors(parties: int) -> None:
    """Raises the limit of file descriptors for so many parties; ConfigError if it cannot be."""
    wanted = OWN_DESCRIPTORS + PER_PARTY * parties
    soft = most_files()
    if soft is None or soft >= wanted:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigError(
            f"{parties} parties take {wanted} file descriptors, and this process may have {hard}: "
            f"raise its limit (ulimit -n {wanted}, LimitNOFILE={wanted})"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


FIRST_THREADS = 4
"""Threads to start in a first probe: gRPC crashes natively if it cannot start its first one."""

BIRTH = 5.0
"""Seconds in which a thread begins, if it ever does."""


def probe(threads: int = 1, birth: float = BIRTH) -> None:
    """Tries to open a file and to start so many threads at once.

    gRPC's own threads fail in silence, while heartbeats go on. `Thread.start` would wait for ever
    for a thread that finds no memory for its first steps.

    Args:
        birth: seconds to wait for each to begin.

    Raises:
        OSError, RuntimeError, MemoryError: as `name_limit` names them.
        Starved: a thread did not begin.
    """
    os.close(os.open(os.devnull, os.O_RDONLY))
    begun, over = threading.Semaphore(0), threading.Event()

    def run() -> None:
        begun.release()
        over.wait()

    try:
        for _ in range(threads):
            start_new_thread(run, ())
            if not begun.acquire(timeout=birth):
                raise Starved("a thread was started, and never ran")
    finally:
        over.set()


@contextmanager
def naming_limits() -> Iterator[None]:
    """Raises OperatorError, which names the limit, where a limit of the system ends the `with`."""
    try:
        yield
    except Exception as error:
        if limit := name_limit(error):
            raise OperatorError(limit) from error
        raise


def unstarted_threads() -> frozenset[threading.Thread]:
    """The threads that were started and do not run yet.

    One that finds no memory for its first steps ends in silence, and `start` waits for it for ever.
    """
    return frozenset(thread for thread in threading.enumerate() if not thread.is_alive())
