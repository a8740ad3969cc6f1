"""Names the client whose code killed a simulation's process.

A simulation runs all clients' scripts in its own process, where a native abort runs no handler. So
a small process beside it hears of each call before the call, and reports the last one if the
simulation dies. That process is started by the path of this file, without the package, so the top
of this module imports only the standard library.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def naming_last_call() -> Iterator[None]:
    """Watches this process: if clients' code kills it, a line on stderr names the client."""
    from secureps.client.trainer import add_listener, remove_listener
    from secureps.tracebacks import dump_crashes

    dump_crashes()
    beside = subprocess.Popen(
        (sys.executable, "-I", "-S", __file__), stdin=subprocess.PIPE, start_new_session=True
    )
    calls = beside.stdin
    assert calls is not None

    def tell(what: str) -> None:
        with suppress(OSError):  # somebody has killed it
            calls.write(f"{what}\n".encode())
            calls.flush()

    add_listener(tell)
    try:
        yield
    finally:
        remove_listener(tell)
        tell("")
        beside.communicate()


def report_last_call() -> None:
    """Waits until the simulation's process is gone; prints its last call, if it did not end it."""
    what = ""
    for line in sys.stdin.buffer:
        what = line.decode(errors="replace").strip()
    if what:
        print(
            f"error: {what} ended the simulation's process: a crash in native code, or it took "
            "more memory than there is; the dump above names the line of a crash "
            "(the script's fault)",
            file=sys.stderr,
        )


if __name__ == "__main__":
    report_last_call()
