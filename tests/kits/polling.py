"""Waiting for what tells nobody: what another process or thread comes to."""

import subprocess
import time
from collections.abc import Callable


def until(
    condition: Callable[[], object],
    seconds: float = 60.0,
    of: subprocess.Popen[str] | None = None,
    pause: float = 0.005,
) -> None:
    """Asks again and again until it holds; AssertionError if it never does, or a process ends."""
    end = time.monotonic() + seconds
    while not condition():
        assert of is None or of.poll() is None, of.stdout and of.stdout.read()
        assert time.monotonic() < end, "it did not happen"
        time.sleep(pause)
