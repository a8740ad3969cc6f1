"""Ends a supervisor's processes when the supervisor itself was killed.

A native abort, SIGKILL and the kernel's out-of-memory killer run no handler; the servers of a
run would go on for nobody. So a small process beside the supervisor reads from a pipe which
process groups there are, and when the supervisor is gone it ends those that are left. It is
started by the path of this file, without the package: what must not live here is any import
but the standard library's.
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
"""Seconds between two checks for the supervisor: a fork may keep its end of the pipe open."""


def watch(supervisor: int, grace: float) -> None:
    """Reads `+GROUP` and `-GROUP`, a line each, from stdin, until the supervisor is gone."""
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
    left = {group for group in groups if _signal(group, signal.SIGTERM)}
    until = time.monotonic() + grace
    while left and time.monotonic() < until:
        time.sleep(_TICK)
        left = {group for group in left if _signal(group, 0)}
    for group in left:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Signals a group, and tells whether it still had a process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]))
