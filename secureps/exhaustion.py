"""Limits of the operating system: names the one behind an error, and probes for room to work.

A process that can start no thread or open no file must not look alive: it ends, names the limit,
and is started again.
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
    """Something waits for ever because memory or a thread was missing; the text says for what."""


def name_limit(error: BaseException | None) -> str:
    """Names the limit of the operating system that caused an error; empty if none did."""
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
    """True if the disk caused an error, so that the same action may work later."""
    return isinstance(error, DiskFailed | OSError) and not name_limit(error)


def most_files() -> int | None:
    """The number of files that this process may have open; None if only memory bounds it."""
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
"""Descriptors that a process needs for itself: its files, threads' pipes and own calls."""

PER_PARTY = 2
"""Descriptors for each party that may connect: its connection, and the next one."""

_PR_SET_DUMPABLE = 4


def disable_core_dumps() -> None:
    """Keeps the memory of this process, with its keys, off the disk when it crashes.

    The limit of 0 prevents core files. On Linux the process is also marked as not dumpable, for
    programs that receive cores (core(5)); that also stops other processes of the user from reading
    its memory and environment. Programs that it starts inherit only the limit. On Windows the
    operator has to turn off the service that writes cores.
    """
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def demand_descriptors(parties: int) -> None:
    """Raises the limit of file descriptors for so many parties; ConfigError if that fails."""
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
"""Threads of the first probe: gRPC crashes natively if it cannot start its first ones."""

BIRTH = 5.0
"""Seconds after which a thread that has not begun will never begin."""


def probe(threads: int = 1, birth: float = BIRTH) -> None:
    """Tries to open a file and to start so many threads at once.

    The probe is needed because gRPC's own threads fail silently while heartbeats go on. It does not
    use `Thread.start`, which waits for ever for a thread that has no memory to begin.

    Args:
        birth: seconds to wait for each thread to begin.

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
    """Turns an error that a limit of the system caused into an OperatorError that names it."""
    try:
        yield
    except Exception as error:
        if limit := name_limit(error):
            raise OperatorError(limit) from error
        raise


def unstarted_threads() -> frozenset[threading.Thread]:
    """The threads that were started and do not run yet.

    A thread that finds no memory to begin ends silently, and `start` waits for it for ever.
    """
    return frozenset(thread for thread in threading.enumerate() if not thread.is_alive())
