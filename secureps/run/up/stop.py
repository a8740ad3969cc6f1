"""`secureps stop`: ends the play of a run that was started in another terminal, in order."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from secureps.errors import OperatorError
from secureps.run.run_lock import PATIENCE, is_claimed, player
from secureps.run.up.folder import Origin, RunFolder
from secureps.run.up.runs import standing

STOP_SECONDS = 60.0
"""Seconds for a run to end: its processes get some of their own, then results are written."""

_TICK = 0.05


def stop(root: Path, seconds: float = STOP_SECONDS) -> str:
    """Ends the process that plays a run, by SIGTERM, and waits until nothing of it is left.

    Returns:
        the state of the run in words: that it is over, or how to go on with it.

    Raises:
        ConfigError: no folder of a run.
        OperatorError: the process is not known, is another user's, or has not ended after so many
            seconds.
    """
    folder = RunFolder(root.resolve())
    Origin.read(folder)
    if not is_claimed(folder.root):
        return f"nobody plays {root} now: {standing(folder)}"
    process = _player(folder.root)
    if process is not None:
        try:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(process, signal.SIGTERM)
        except PermissionError:
            text = f"{root}: process {process} plays this run, and is another user's"
            raise OperatorError(text) from None
    until = time.monotonic() + seconds
    while is_claimed(folder.root):
        if time.monotonic() > until:
            raise OperatorError(
                f"{root}: process {process} was told to stop, and still plays this run after "
                f"{seconds:g} s: wait, or end it with `kill -9 {process}`"
            )
        time.sleep(_TICK)
    return f"{root}: {standing(folder)}"


def _player(root: Path) -> int | None:
    """The id of the process that plays the run; None if it has ended meanwhile."""
    until = time.monotonic() + PATIENCE
    while is_claimed(root):
        if (process := player(root)) is not None:
            return process
        if time.monotonic() > until:
            raise OperatorError(
                f"{root}: a process plays this run, but its id is not known: end it where it began"
            )
        time.sleep(_TICK)
    return None
