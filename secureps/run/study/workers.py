"""The processes that play a study's trials: how they begin, say how far they are, and end.

None outlives the process that began it, however that ends.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from multiprocessing import active_children, parent_process
from pathlib import Path

from secureps.run.processes.signals import Terminated, terminable
from secureps.run.study.trial import Comparison, Likeness, Outcome, Trial, play

GRACE = 5.0
"""Seconds for a worker to remove its trial's temporary files."""

Places = MutableSequence[float]
"""Two numbers for each trial that is played now: its virtual seconds, and its version."""

BEGINS = -1.0
"""The version of a trial that has not said anything."""

_places: list[Places] = []
"""In a worker: what it has in common with the main process."""


def begin(kernels: Path, places: Places) -> None:
    """Sets a worker up to ignore Ctrl-C: it ends its trial, and the main process decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _places.append(places)
    from secureps.compiled import keep_in

    keep_in(kernels)


def play_at(path: Path, job: Trial | Comparison, place: int) -> Outcome | Likeness:
    """Plays a job in a worker, and says at its place how far it is; SIGTERM ends the worker."""

    def tell(seconds: float, version: int) -> None:
        _places[0][2 * place], _places[0][2 * place + 1] = seconds, version

    try:
        with terminable(Terminated):
            return play(path, job, tell)
    except Terminated as ended:  # else the pool would send it as a result, and go on
        os._exit(128 + int(ended.args[0]))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


@contextmanager
def none_left_over() -> Iterator[None]:
    """Ends all workers where a signal ends the block, and with them what they play."""
    try:
        yield
    except KeyboardInterrupt:
        workers = active_children()
        for worker in workers:
            worker.terminate()
        until = time.monotonic() + GRACE
        for worker in workers:
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                worker.kill()
        raise
