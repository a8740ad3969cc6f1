"""What a run of `up` says and leaves behind when it is interrupted, or fails.

What must not live here: the processes (`run.processes.supervisor`), and how signals wait
(`run.processes.signals`).
"""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from secureps.errors import SecurepsError
from secureps.run.report.terminal import Progress
from secureps.run.up.folder import RunFolder
from secureps.store.text_file import replace_text


@contextmanager
def told_how_to_go_on(root: Path, options: Sequence[str], console: Console) -> Iterator[None]:
    """After Ctrl-C or SIGTERM: the command that goes on with the run in this folder."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        words = ["secureps", "resume", str(root), *options]
        text = f"stopped; this goes on with it: {shlex.join(words)}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        raise


@contextmanager
def noted(folder: RunFolder) -> Iterator[None]:
    """What a play fails with, for `secureps runs`."""
    folder.failed.unlink(missing_ok=True)
    try:
        yield
    except SecurepsError as error:
        replace_text(folder.failed, " ".join(str(error).split()))
        raise


@contextmanager
def told_that_it_stops(progress: Progress) -> Iterator[None]:
    """At once, since the processes take a while to end."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        progress.say("stopping ...")
        raise


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and a lost terminal end the run as an error does: with nothing left over."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:  # nohup means what it says
                    stack.callback(signal.signal, number, signal.signal(number, end))
        yield
