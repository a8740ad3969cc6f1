"""Names the client whose code killed a simulation's process.

A simulation runs all clients' scripts in its own process. A native abort in one of them runs no
handler here, so a small process beside it is told what is called before it is, and says it
when this one has gone without a word. It is started by the path of this file, without the
package: what must not live here is any import but the standard library's, at the top.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

OVER = b"\n"
"""The last line of a process that ends in order."""


@contextmanager
def last_words() -> Iterator[None]:
    """Watches this process while clients' code runs: if it dies, a line on stderr says in whose."""
    from secureps.client.script_errors import entering, leaving
    from secureps.tracebacks import dump_crashes

    dump_crashes()
    arguments = (sys.executable, "-I", "-S", __file__)
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ) as beside:
        assert beside.stdin is not None
        told = beside.stdin

        def tell(what: str) -> None:
            with suppress(BrokenPipeError):
                told.write(what.encode() + b"\n")
                told.flush()

        entering(tell)
        try:
            yield
        finally:
            leaving(tell)
            tell("")


def wait() -> None:
    """Reads the names of calls, a line each, until the other process is gone."""
    last = b""
    for line in sys.stdin.buffer:
        last = line
    if last not in (b"", OVER):
        what = last.decode(errors="replace").strip()
        print(
            f"error: {what} ended the simulation's process: a crash in native code, or it took "
            "more memory than there is; the dump above names the line of a crash "
            "(the script's fault)",
            file=sys.stderr,
        )


if __name__ == "__main__":
    wait()
