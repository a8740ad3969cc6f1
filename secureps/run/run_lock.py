"""Claims a folder for a run: refuses one that holds another, and locks it while it is played.

A run is played by one process at a time, with nothing left of an earlier one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from secureps.errors import ConfigError, OperatorError
from secureps.store import file_lock

ORIGIN, STUDY, METRICS = "origin.json", "study.json", "metrics.jsonl"

HOLDS = {
    ORIGIN: "a run of `secureps up`, which `secureps resume {}` goes on with",
    STUDY: "a study, which `secureps study` of the same scenario goes on with",
    METRICS: "a report of `secureps simulate` already",
}
"""Files that mark a folder as taken, and what each says of it."""

PATIENCE = 1.0
"""Seconds to wait for the lock: a command that only looks holds it for an instant."""


def new_folder(root: Path) -> None:
    """Makes a folder for a run, a report or a study; ConfigError says what it holds."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in root.iterdir()}
    except FileExistsError:
        raise ConfigError(f"{root} is a file: name a folder by --out") from None
    except OSError as error:
        raise OperatorError(f"{root}: cannot make the folder: {error}") from None
    if there:
        held = [what.format(root) for mark, what in HOLDS.items() if mark in there]
        text = f"holds {held[0]}" if held else "is not empty"
        raise ConfigError(f"{root} {text}: name a folder of its own by --out, or remove this one")


@contextmanager
def claimed(root: Path) -> Iterator[None]:
    """Locks a run's folder while the `with` lasts: two plays would write the same journals.

    Raises OperatorError if somebody plays it, an earlier party still runs, or there are no locks.
    """
    handle = file_lock.open_lock(root / "lock")
    try:
        until = time.monotonic() + PATIENCE
        while not _ask_lock(root, file_lock.take, handle):
            if time.monotonic() > until:
                raise OperatorError(f"{root}: this run is being played now")
            time.sleep(0.02)
        refuse_running(root, {path.name: path for path in sorted(root.glob("state/*"))})
        file_lock.note(handle, str(os.getpid()))
        yield
    finally:
        os.close(handle)


def refuse_running(where: Path, states: Mapping[str, Path], patience: float = 0.0) -> None:
    """Raises OperatorError if a party of an earlier start still writes its state folder.

    Args:
        where: the folder to name.
        states: by the party's name.
        patience: seconds in which they may end.
    """
    until = time.monotonic() + patience
    for name, state in states.items():
        lock = state / "journal.db.lock"
        while lock.exists() and _is_held(lock):
            if time.monotonic() > until:
                raise OperatorError(
                    f"{where}: {name} still runs, although what started it is gone: "
                    "end the processes that name this folder, then try again"
                )
            time.sleep(0.02)


def is_claimed(root: Path) -> bool:
    """Whether a process plays the run in a folder; OperatorError if its disk has no locks."""
    return (root / "lock").exists() and _is_held(root / "lock")


def player(root: Path) -> int | None:
    """The id of the process that plays the run; None if there is none, or not yet.

    The id in a lock may be that of an earlier play, which the kernel has since given to another
    process: it counts only if that process has the lock open, so `stop` never ends a stranger.
    """
    if not is_claimed(root):
        return None
    import psutil  # by `secureps stop` alone

    lock = (root / "lock").resolve()
    with suppress(ValueError, psutil.Error):
        number = int(lock.read_text())
        if str(lock) in (file.path for file in psutil.Process(number).open_files()):
            return number
    return None


def _is_held(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        return _ask_lock(path, file_lock.is_held, handle)
    finally:
        os.close(handle)


def _ask_lock(path: Path, ask: Callable[[int], bool], handle: int) -> bool:
    try:
        return ask(handle)
    except OSError as error:
        raise OperatorError(f"{path}: cannot lock: {error.strerror}") from None
