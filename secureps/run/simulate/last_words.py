"""Names the client whose code killed a simulation's process.

A simulation runs all clients' scripts in its own process, where a native abort runs no handler. So
it writes each call into a mapped file before the call. A small process shares the file, and reports
the last call if the simulation dies. That process is started by the path of this file, without the
package, so the top of this module imports only the standard library.
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
"""Bytes for the name of the last call, padded with zeros; all zero after an orderly end."""


@contextmanager
def naming_last_call() -> Iterator[None]:
    """Watches this process: if clients' code kills it, a line on stderr names the client."""
    from secureps.client.trainer import add_listener, remove_listener
    from secureps.tracebacks import dump_crashes

    dump_crashes()
    arguments = (sys.executable, "-I", "-S", __file__)
    with tempfile.TemporaryFile() as file:
        file.truncate(ROOM)
        # The file is the other process's stdout, a handle that every system passes on.
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
    """Waits until the simulation's process is gone, and prints its last call."""
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
