"""The file of version 0 that a plan names, by its path or by a URL at an object store.

What a URL names is fetched once by each process, into a file of this machine that goes with the
process, and is as long as `MOST_BYTES` at most, whatever the store says. A plan pins its digest:
parties that find other bytes there are of another run.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path, PureWindowsPath

from secureps.errors import ConfigError, DamagedStore, DiskFailed, PlanRefused
from secureps.files.objects import ObjectStore, is_url, shown
from secureps.messages.encoding import file_digest

MOST_BYTES = 32 << 30
"""The longest file that is fetched: 8 billion values of 32 bits."""

_fetched: dict[tuple[int, str], Path] = {}
_lock = threading.Lock()


def is_elsewhere(initial: str) -> bool:
    """Whether reading a plan's file of version 0 dials another machine."""
    # Windows logs in to whichever server a path names: //SERVER/SHARE/FILE is as good as a URL.
    return is_url(initial) or PureWindowsPath(initial).drive.startswith("\\\\")


def pinned(initial: str, base: Path, fetch: bool = True) -> tuple[str, str]:
    """Where a plan's file of version 0 is, as all parties are told, and its hex digest.

    Args:
        initial: a URL, or a path that is relative to `base`.
        fetch: whether another machine may be asked; without, the digest of its file is empty.

    Raises:
        PlanRefused: no such file or object, or a URL that must not be told.
        ConfigError: it is too long, or what opens its store is not installed.
        DiskFailed: the store refuses, or cannot be reached; it may work again.
    """
    if is_url(initial) and shown(initial) != initial:
        # A plan's text goes to all parties, and into checkpoints.
        raise PlanRefused(
            f"initial: {shown(initial)}: a plan is told to all parties, and a URL with a user, "
            "a password or a query opens the store to them: name it without, and give keys "
            "where its library looks for them"
        )
    if not fetch and is_elsewhere(initial):
        return initial, ""
    place = initial
    if not is_url(initial):
        path = (base / initial).resolve()
        if not os.path.isfile(path):
            raise PlanRefused(f"initial: no file {path}")
        place = str(path)
    try:
        return place, file_digest(initial_path(place).read_bytes()).hex()
    except DamagedStore as error:
        raise PlanRefused(f"initial: {error}") from None


def initial_path(place: str) -> Path:
    """The file of this machine that a path names, or that was fetched from a URL.

    Raises:
        DamagedStore: there is no object of that URL.
        ConfigError, DiskFailed: as `pinned`.
    """
    if not is_url(place):
        return Path(place)
    key = (os.getpid(), place)
    with _lock:
        if key not in _fetched:
            _fetched[key] = _fetch(place)
        return _fetched[key]


def _fetch(url: str) -> Path:
    place, _, name = url.rpartition("/")
    if not is_url(place) or not name:
        raise ConfigError(f"{shown(url)}: no URL of a file, as s3://BUCKET/model.safetensors")
    store = ObjectStore(place)
    try:
        folder = Path(tempfile.mkdtemp(prefix="secureps-"))
    except OSError as error:
        raise DiskFailed(f"no temporary folder for {shown(url)}: {error}") from None
    try:
        path = folder / "initial.safetensors"
        store.bring(name, path, MOST_BYTES)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    atexit.register(_remove, os.getpid(), folder)
    return path


def _remove(process: int, folder: Path) -> None:
    """Removes a process's copy, and not that of the process that it was forked from."""
    if process == os.getpid():
        with suppress(OSError):
            shutil.rmtree(folder)
