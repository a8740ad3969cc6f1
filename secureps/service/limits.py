"""Checks the operating system's limits before a process begins, and while it works.

A process that can start no thread and open no file cannot do its work, and must not look alive:
it ends, says which limit it met, and is started again. One that has keys leaves no memory behind.
"""

from __future__ import annotations

import ctypes
import os
import threading
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from secureps.errors import ConfigError, OperatorError
from secureps.exhaustion import Starved, exhaustion, most_files

OWN_DESCRIPTORS = 128
"""Descriptors of a process that serves nobody: its files, its threads' pipes, its own calls."""

PER_PARTY = 2
"""Descriptors for each party that may connect: its connection, and the one that follows it."""


_PR_SET_DUMPABLE = 4


def no_core_dumps() -> None:
    """Sees to it that this process' memory, with its keys, is written to no disk when it crashes.

    A limit of 0 keeps it from files, but not from programs that take cores over (core(5)): for
    them the process is marked as one not to dump, where Linux is. That also keeps other processes
    of the same user from reading its memory and environment. Programs that it starts inherit the
    limit alone. Windows is asked for none: what writes cores there is a service of the system's,
    which its operator turns off.
    """
    if resource is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def demand_descriptors(parties: int) -> None:
    """Raises the limit of file descriptors for so many parties.

    Raises:
        ConfigError: the hard limit is too low.
    """
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

    Without this, gRPC's own threads fail in silence: the process looks alive, and its heartbeats
    go on. `Thread.start` would wait for ever for one that finds no memory for its first steps.

    Args:
        birth: seconds to wait for each to begin.

    Raises:
        OSError, RuntimeError, MemoryError: as `exhaustion` names them.
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
def limits_named() -> Iterator[None]:
    """Has what ends the `with`, if a limit of the operating system caused it, name that limit.

    Raises:
        OperatorError: it was such a limit.
    """
    try:
        yield
    except Exception as error:
        if limit := exhaustion(error):
            raise OperatorError(limit) from error
        raise


def starting() -> frozenset[threading.Thread]:
    """The threads that were started and do not run yet.

    One that finds no memory for its first steps ends in silence, and `start` waits for it for ever.
    """
    return frozenset(thread for thread in threading.enumerate() if not thread.is_alive())
