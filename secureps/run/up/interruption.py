"""Handles the interruption or failure of a run of `up`: what is printed and what is kept."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from secureps.errors import OperatorError, SecurepsError
from secureps.run.report.terminal import Progress
from secureps.run.up.folder import RunFolder
from secureps.store.atomic_file import replace_text
from secureps.store.journal_height import NO_SPACE
from secureps.wording import one_line


@contextmanager
def told_how_to_go_on(root: Path, options: Sequence[str], console: Console) -> Iterator[None]:
    """Prints, after Ctrl-C or SIGTERM, the command that goes on with the run."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        words = ["secureps", "resume", str(root), *options]
        text = f"stopped; this goes on with it: {shlex.join(words)}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        raise


@contextmanager
def noted(folder: RunFolder) -> Iterator[None]:
    """Writes down the error of a play that fails, for `secureps runs` and for `secureps log`."""
    folder.failed.unlink(missing_ok=True)
    try:
        yield
    except SecurepsError as error:
        with suppress(OSError):  # the disk may be what failed
            replace_text(folder.failed, one_line(error))
            folder.logs.mkdir(exist_ok=True)
            with (folder.logs / "up.log").open("a") as log:
                stamp = logging.Formatter().formatTime(logging.makeLogRecord({}))
                log.write(f"{stamp} up: failed: {one_line(error)} ({error.fault} fault)\n")
        raise


@contextmanager
def full_disk_named(root: Path, then: str) -> Iterator[None]:
    """Says of a disk that is full what to do, and that the run is not lost (OperatorError).

    Args:
        root: the run's folder; then: what to do once there is space.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        where = error.filename or root
        raise OperatorError(
            f"{where}: {error.strerror}: make room on the disk, and {then}"
        ) from None


@contextmanager
def told_that_it_stops(progress: Progress) -> Iterator[None]:
    """Prints at once that the run stops, since its processes take a while to end."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        progress.say("stopping ...")
        raise
