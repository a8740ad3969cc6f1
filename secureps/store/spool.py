"""The spool: payloads under keys, durable or cached.

A shard spools blocks and sums; a client's outbox is a spool too. Keys are paths of plain words,
such as "update/hospital-1/all/3/0". On disk each is one file of one flat directory ("~" for "/"),
so that one fsync of the directory makes a new name durable.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from secureps.buffers import Buffers
from secureps.errors import DiskFailed, Malformed, OperatorError
from secureps.messages.encoding import payload_digest, payload_hasher
from secureps.store.atomic_file import fresh_file, hash_pieces, make_directory, put_in_place, sync
from secureps.store.durability import count_wait, open_to_read

KEY_LIMIT = 250
"""Longest key, in characters: file systems allow 255."""

_STAR = "*" if os.sep == "/" else "+"
"""The character for "*" in file names: Windows does not allow "*"."""
_KEY = re.compile(r"[A-Za-z0-9._*-]+(/[A-Za-z0-9._*-]+)*")
_DOTS = re.compile(r"\.+")


class Spool(Protocol):
    """Payloads under keys; safe to use from several threads.

    All methods raise Malformed for a key that is none.
    """

    def put(self, key: str, *payload: bytes | memoryview) -> None:
        """Stores a payload, given in pieces, durably; it replaces an earlier one.

        Raises DiskFailed if the disk refuses; then the key is as before.
        """

    def cache(self, key: str, payload: bytes | memoryview) -> None:
        """Stores a payload without waiting for the disk: a power cut may lose or damage it."""

    def keep(self, name: str, pieces: Iterable[bytes | memoryview]) -> tuple[int, bytes]:
        """Stores pieces as `put`, under NAME/DIGEST; returns the length and the digest.

        Raises as `put`, and errors of `pieces`; then nothing is stored.
        """

    def get(self, key: str) -> bytes:
        """Returns the payload; KeyError if there is none."""

    def read(self, key: str, buffers: Buffers) -> memoryview:
        """Returns a read-only view of a payload; KeyError if there is none.

        A payload that was on disk is read into a buffer from `buffers`.
        """

    def delete(self, key: str) -> None:
        """Deletes a payload if there is one; it may come back after a power cut."""

    def keys(self, prefix: str = "") -> list[str]:
        """Lists the keys that begin with `prefix`, sorted."""


def check_key(key: str) -> str:
    """Returns the key; Malformed unless it is words of [A-Za-z0-9._*-] with slashes between."""
    if (
        not isinstance(key, str)
        or len(key) > KEY_LIMIT
        or _KEY.fullmatch(key) is None
        or any(_DOTS.fullmatch(part) for part in key.split("/"))
    ):
        raise Malformed(f"not a key: {key!r:.80}")
    return key


class MemorySpool:
    """A spool for simulation and tests; hand the same object to a restarted party."""

    def __init__(self) -> None:
        self._payloads: dict[str, bytes] = {}

    def put(self, key: str, *payload: bytes | memoryview) -> None:
        self._payloads[check_key(key)] = b"".join(payload)

    def cache(self, key: str, payload: bytes | memoryview) -> None:
        self.put(key, payload)

    def keep(self, name: str, pieces: Iterable[bytes | memoryview]) -> tuple[int, bytes]:
        check_key(f"{name}/{payload_digest(b'').hex()}")
        payload = b"".join(pieces)
        digest = payload_digest(payload)
        self.put(f"{name}/{digest.hex()}", payload)
        return len(payload), digest

    def get(self, key: str) -> bytes:
        return self._payloads[check_key(key)]

    def read(self, key: str, buffers: Buffers) -> memoryview:
        return memoryview(self.get(key))

    def delete(self, key: str) -> None:
        self._payloads.pop(check_key(key), None)

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in tuple(self._payloads) if key.startswith(prefix))


class DiskSpool:
    """A spool in a directory, which is made if it does not exist.

    Opening it deletes the files of interrupted `put`s (~*.tmp), so only one process may have it
    open; the journal's lock ensures that.

    Raises:
        OperatorError: the directory cannot be made or read.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._count = itertools.count()
        try:
            make_directory(self._root, 0o700)
            for stale in self._root.glob("~*.tmp"):
                stale.unlink()
            sync(self._root)
        except OSError as error:
            raise OperatorError(f"{self._root}: {error.strerror}") from None

    def put(self, key: str, *payload: bytes | memoryview) -> None:
        path = self.path(key)
        with self._fresh_file(payload) as fresh:
            put_in_place(fresh, path)

    def cache(self, key: str, payload: bytes | memoryview) -> None:
        path = self.path(key)
        with self._fresh_file((payload,), durable=False) as fresh, count_wait():
            os.replace(fresh, path)

    def keep(self, name: str, pieces: Iterable[bytes | memoryview]) -> tuple[int, bytes]:
        check_key(f"{name}/{payload_digest(b'').hex()}")  # before any work
        hasher = payload_hasher()
        with self._fresh_file(hash_pieces(pieces, hasher)) as fresh:
            length = fresh.stat().st_size
            put_in_place(fresh, self.path(f"{name}/{hasher.digest().hex()}"))
        return length, hasher.digest()

    @contextmanager
    def _fresh_file(
        self, pieces: Iterable[bytes | memoryview], durable: bool = True
    ) -> Iterator[Path]:
        # No key begins with "~", so a temporary file never looks like a payload.
        fresh = self._root / f"~{next(self._count)}.tmp"
        try:
            with fresh_file(fresh, pieces, durable=durable):
                yield fresh
        except OSError as error:
            raise DiskFailed(f"{self._root}: cannot write: {error.strerror}") from error

    def get(self, key: str) -> bytes:
        try:
            with open_to_read(self.path(key)) as file:
                return file.read()
        except FileNotFoundError:
            raise KeyError(key) from None

    def read(self, key: str, buffers: Buffers) -> memoryview:
        """Reads instead of mapping: a failing disk is then an OSError, not a SIGBUS."""
        try:
            with open_to_read(self.path(key), buffered=False) as file:
                room = buffers.lend(max(1, os.fstat(file.fileno()).st_size))
                have = 0
                while count := file.readinto(room[have:]):
                    have += count
        except FileNotFoundError:
            raise KeyError(key) from None
        return room[:have].toreadonly()

    def delete(self, key: str) -> None:
        with count_wait():
            self.path(key).unlink(missing_ok=True)

    def keys(self, prefix: str = "") -> list[str]:
        with count_wait(), os.scandir(self._root) as entries:
            names = [entry.name for entry in entries if entry.name[0] != "~"]
        keys = [name.replace("~", "/").replace(_STAR, "*") for name in names]
        return sorted(key for key in keys if key.startswith(prefix))

    def path(self, key: str) -> Path:
        return self._root / check_key(key).replace("/", "~").replace("*", _STAR)
