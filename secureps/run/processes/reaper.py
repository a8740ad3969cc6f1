"""Ends a supervisor's processes when the supervisor itself was killed.

A native abort, SIGKILL and the kernel's out-of-memory killer run no handler, so the servers of a
run would outlive their supervisor. This small process reads the supervisor's process groups from a
pipe, and ends those that are left when the supervisor is gone. It is started by the path of this
file, without the package, so it imports only the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

_TICK = 0.05
_LOOK = 1.0
"""Seconds between two checks for the supervisor, because a fork may keep the pipe open."""


def watch(supervisor: int, grace: float) -> None:
    """Reads lines `+GROUP` and `-GROUP` from stdin until the supervisor is gone."""
    groups: set[int] = set()
    rest = b""
    while True:
        if not select.select([0], [], [], _LOOK)[0]:
            if os.getppid() == supervisor:
                continue
            break
        data = os.read(0, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            change = groups.add if line[:1] == b"+" else groups.discard
            change(int(line[1:]))
    _end(groups, grace)


def _end(groups: set[int], grace: float) -> None:
    left = {group for group in groups if signal_group(group, signal.SIGTERM)}
    until = time.monotonic() + grace
    while left and time.monotonic() < until:
        time.sleep(_TICK)
        left = {group for group in left if signal_group(group, 0)}
    for group in left:
        signal_group(group, signal.SIGKILL)


def signal_group(group: int, number: int) -> bool:
    """Signals a process group; returns whether it still had a process.

    A group has the number of the process that leads it. The kernel cannot reuse this number while a
    member is left, and does not in the instant after.
    """
    with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a zombie
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]))
