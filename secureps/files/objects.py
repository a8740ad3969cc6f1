"""Files in an object store, by fsspec, and a plan's file of version 0.

An object is written once: `create` never overwrites other bytes, and may be repeated with the same
bytes after a cut. Errors and logs show a URL without the secrets that open its store.

A plan's file of version 0 may lie in a store too. Each process downloads it once, into a temporary
file of at most `MOST_BYTES`, whatever length the store claims. The plan pins the file's digest.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PureWindowsPath
from typing import Any
from urllib.parse import unquote

from secureps.errors import ConfigError, DamagedStore, DiskFailed, PlanRefused
from secureps.extras import from_extras
from secureps.messages.encoding import file_digest
from secureps.wording import one_line

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*://.")
_PIECE = 8 << 20
"""Bytes that are read of an object at a time."""

_MOST_REASON = 300
"""The most characters of a library's error that are shown."""


def is_url(place: str) -> bool:
    """True if a place is a URL, and no path."""
    return _URL.match(place) is not None


def redact(url: str) -> str:
    """Hides a URL's user, password and query, which open the store to every reader of the URL."""
    if re.search(r"\?.*@", url, re.S):  # the "@" may end a password or be part of the query
        return re.sub(r"://.*", "://***", url, flags=re.S)
    return re.sub(r"://.*@", "://***@", re.sub(r"\?.*", "?***", url, flags=re.S), flags=re.S)


class ObjectStore:
    """The objects below a URL; `name` is the URL without secrets.

    Args:
        url: s3://BUCKET/PREFIX, for example, or another URL that fsspec knows. Its library reads
            the keys from where it looks for them: the environment and ~/.aws for s3fs.

    Raises:
        ConfigError: this is no URL, or no installed package can open it; says what to install.
    """

    def __init__(self, url: str) -> None:
        self.name = redact(url).rstrip("/")
        if not is_url(url):
            raise ConfigError(f"{self.name}: no URL of an object store, as s3://BUCKET/PREFIX")
        self._secrets = _secrets(url)
        try:
            with from_extras():
                self._files, self._root = _open(url)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        except Exception as error:
            raise ConfigError(f"{self.name}: {self._describe(error)}") from None

    def create(self, name: str, data: bytes) -> None:
        """Writes an object, unless it exists with these bytes already.

        An object that has only the beginning of these bytes is written anew: some stores show a
        file that was cut off.

        Raises:
            ConfigError: an object of that name has other bytes.
            DiskFailed: the store refuses, or cannot be reached; it may work again.
        """
        path = self._path(name)
        with self._name_errors(name):
            try:
                self._write_new(path, data)
                return
            except FileExistsError:
                there = bytes(self._files.cat_file(path))
            if there == data:
                return
            if len(there) < len(data) and data.startswith(there):
                self._files.pipe_file(path, data, mode="overwrite")
                return
        raise ConfigError(
            f"{self.name}/{name} is there, and is another: nothing is written over it; name a "
            "place of its own"
        )

    def download(self, name: str, path: Path, most: int) -> None:
        """Downloads an object into a file of this machine, piece by piece.

        Raises:
            ConfigError: the object is longer than `most` bytes; the file has what was read.
            DamagedStore: there is no such object.
            DiskFailed: as `create`; or the disk of this machine refuses.
        """
        with self._name_errors(name):
            try:
                source = self._files.open(self._path(name), "rb")
            except FileNotFoundError:
                raise DamagedStore(f"{self.name}/{name}: absent") from None
            with source, path.open("wb") as file:
                while piece := source.read(_PIECE):
                    if file.tell() + len(piece) > most:
                        raise ConfigError(f"{self.name}/{name}: longer than {most} bytes")
                    file.write(piece)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Returns the sizes of all objects below a folder, by name; raises as `create`."""
        path = self._path(folder)
        with self._name_errors(folder):
            self._files.invalidate_cache()
            with suppress(FileNotFoundError):
                found = self._files.find(path, detail=True)
                return {
                    key.removeprefix(path).lstrip("/"): int(each["size"] or 0)
                    for key, each in found.items()
                }
            return {}

    def demand_bucket(self) -> None:
        """Raises DiskFailed if the bucket is missing, or these keys may not list it."""
        bucket = self._root.partition("/")[0]
        if not bucket:  # a store of files or memory has none
            return
        with self._name_errors(""):
            self._files.invalidate_cache()
            with suppress(FileNotFoundError):
                self._files.ls(bucket)
                return
        raise DiskFailed(f"{self.name}: no bucket {bucket}, or these keys may not read it")

    def _write_new(self, path: str, data: bytes) -> None:
        """Writes a new object; FileExistsError if there is one.

        Only the innermost missing folder is made: making all of them would create a bucket for any
        misspelt name.
        """
        try:
            self._files.pipe_file(path, data, mode="create")
        except FileNotFoundError:
            with suppress(FileExistsError):
                self._files.mkdir(path.rpartition("/")[0], create_parents=False)
            self._files.pipe_file(path, data, mode="create")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    @contextmanager
    def _name_errors(self, name: str) -> Iterator[None]:
        """Turns a library's errors into a DiskFailed that shows no secret."""
        try:
            with from_extras():
                yield
        except (ConfigError, DamagedStore):
            raise
        except Exception as error:
            where = f"{self.name}/{name}".rstrip("/")
            raise DiskFailed(f"{where}: {self._describe(error)}") from None

    def _describe(self, error: Exception) -> str:
        text = one_line(error) or "no reason given"
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return f"{type(error).__name__}: {redact(text)[:_MOST_REASON]}"


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        options = {"auto_mkdir": True} if url.startswith("file:") else {}
        files, root = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        raise error.__cause__ or error from None  # names the package, not another tool
    return files, root.rstrip("/")


def _secrets(url: str) -> tuple[str, ...]:
    """The secret parts of a URL, encoded and decoded, the longest first."""
    found = set[str]()
    if match := re.search(r"://(.*)@", url, re.S):
        user, _, password = match[1].partition(":")
        found |= {match[1], password or user}
    found.add(url.partition("?")[2])
    found |= {unquote(each) for each in found}
    return tuple(sorted(filter(None, found), key=len, reverse=True))


MOST_BYTES = 32 << 30
"""The longest file that is fetched: 8 billion values of 32 bits."""

_fetched: dict[tuple[int, str], Path] = {}
_lock = threading.Lock()


def is_remote(initial: str) -> bool:
    """True if reading a plan's file of version 0 connects to another machine."""
    # Windows connects and logs in to the server of a path //SERVER/SHARE/FILE.
    return is_url(initial) or PureWindowsPath(initial).drive.startswith("\\\\")


def pin_initial(initial: str, base: Path, fetch: bool = True) -> tuple[str, str]:
    """Returns the place of a plan's file of version 0, for all parties, and its hex digest.

    Args:
        initial: a URL, or a path that is relative to `base`.
        fetch: whether to read files of other machines; if not, their digest is empty.

    Raises:
        PlanRefused: there is no such file or object, or the URL has a secret.
        ConfigError: the file is too long, or the package that opens its store is missing.
        DiskFailed: the store refuses, or cannot be reached; it may work again.
    """
    if is_url(initial) and redact(initial) != initial:
        # A plan's text goes to all parties, and into checkpoints.
        raise PlanRefused(
            f"initial: {redact(initial)}: a plan is told to all parties, and a URL with a user, "
            "a password or a query opens the store to them: name it without, and give keys "
            "where its library looks for them"
        )
    if not fetch and is_remote(initial):
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
    """Returns a file of this machine: the path itself, or the downloaded file of a URL.

    DamagedStore if the URL has no object; ConfigError and DiskFailed as `pin_initial`.
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
        raise ConfigError(f"{redact(url)}: no URL of a file, as s3://BUCKET/model.safetensors")
    store = ObjectStore(place)
    try:
        folder = Path(tempfile.mkdtemp(prefix="secureps-"))
    except OSError as error:
        raise DiskFailed(f"no temporary folder for {redact(url)}: {error}") from None
    try:
        path = folder / "initial.safetensors"
        store.download(name, path, MOST_BYTES)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    atexit.register(_remove, os.getpid(), folder)
    return path


def _remove(process: int, folder: Path) -> None:
    """Removes the file at the exit of the process that made it, but not in its forks."""
    if process == os.getpid():
        with suppress(OSError):
            shutil.rmtree(folder)
