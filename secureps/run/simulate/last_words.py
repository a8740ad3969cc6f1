"""Names the client whose code killed a simulation's process.

A simulation runs all clients' scripts in its own process, where a native abort runs no handler. So
each call is written first, into the memory of a file that a small process beside it shares, which
says what was called if this one goes without a word. That process is started by the path of this
file, without the package: at its top it imports the standard library alone.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

ROOM = 1024
"""Bytes for the name of a call, which ends in zeros; all are zero once a process ends in order."""


@contextmanager
def naming_last_call() -> Iterator[None]:
    """Watches this process while clients' code runs: if it dies, a line on stderr says in whose."""
    from secureps.client.trainer import add_listener, remove_listener
    from secureps.tracebacks import dump_crashes

    dump_crashes()
    arguments = (sys.executable, "-I", "-S", __file__)
    with tempfile.TemporaryFile() as file:
        file.truncate(ROOM)
        # The file is the other one's standard output: a handle that every system hands on.
        with (
            mmap.mmap(file.fileno(), ROOM) as called,
            subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=file, start_new_session=True
            ) as beside,
        ):
            assert beside.stdin is not None

            def tell(what: str) -> None:
                called[:] = what.encode()[:ROOM].ljust(ROOM, b"\0")

            add_listener(tell)
            try:
                yield
            finally:
                remove_listener(tell)
                tell("")


def report_last_call() -> None:
    """Waits until the other process is gone, and says what it called last."""
    sys.stdin.buffer.read()
    standard_output = 1
    os.lseek(standard_output, 0, os.SEEK_SET)
    what = os.read(standard_output, ROOM).rstrip(b"\0").decode(errors="replace")
    if what:
        print(
            f"error: {what} ended the simulation's process: a crash in native code, or it took "
            "more memory than there is; the dump above names the line of a crash "
            "(the script's fault)",
            file=sys.stderr,
        )


if __name__ == "__main__":
    report_last_call()
