"""Disks that can be full, stop a party in the middle of a write, and forget what was not synced.

A double of the calls by which `secureps.store` makes files durable: `os.fsync` and `os.replace`
note what a disk would hold, and wait for no disk.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from secureps.messages.encoding import from_plain, to_plain
from secureps.store import journal
from secureps.store.journal import MemoryJournal
from secureps.store.journal_rows import RECORDS

Gate = Callable[[str], None]
"""Called before and after each operation: it may raise what a full disk or a death does."""


class Journal(MemoryJournal):
    """Records as SQLite keeps them: a transaction is whole or absent, and lost unless synced."""

    def __init__(
        self, gate: Gate, told: Callable[[Any], None], rows: list[tuple[float, Any]] | None = None
    ) -> None:
        super().__init__(rows)
        self._gate = gate
        self._told = told
        self._synced = len(self.rows)

    def append(self, at: float, records: Sequence[Any]) -> None:
        self._gate("append")
        super().append(at, records)
        if journal.SYNCHRONOUS == "FULL":
            self._synced = len(self.rows)
        for record in records:
            self._told(record)
        self._gate("appended")

    def replay(self) -> Iterator[tuple[float, Any]]:
        """Every record from the text that a journal has of it."""
        for at, record in super().replay():
            kind = RECORDS[type(record).__name__]
            yield at, from_plain(kind, json.loads(json.dumps(to_plain(record))))

    @property
    def durable(self) -> Sequence[Any]:
        return [record for _, record in self.rows[: self._synced]]

    def cut(self) -> None:
        del self.rows[self._synced :]


@dataclass(frozen=True)
class Copy:
    """A party's disk as it was: its files, and its journal."""

    name: str
    folder: Path
    rows: list[tuple[float, Any]]


class Disk:
    """Files, and what of them is durable; `links` is a folder on the same disk, of its own."""

    def __init__(self, gate: Gate, links: Path) -> None:
        self._gate = gate
        self._links = links
        self._content: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Everything that is synced or renamed meanwhile goes through this disk."""
        replace = os.replace

        def renamed(source: Any, target: Any) -> None:
            self._gate("rename")
            replace(source, target)
            self._gate("renamed")

        with patch.object(os, "fsync", self._sync), patch.object(os, "replace", renamed):
            yield

    def _sync(self, handle: int) -> None:
        self._gate("sync")
        self._keep(Path(os.readlink(f"/proc/self/fd/{handle}")))
        self._gate("synced")

    def _keep(self, path: Path) -> None:
        if path.is_dir():
            self._names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        elif path.is_file():
            inode = path.stat().st_ino
            self._content[inode] = path.read_bytes()
            with suppress(FileExistsError):  # while it has a link its number is no other file's
                os.link(path, self._links / str(inode))

    def durable(self, path: Path) -> bool:
        """Whether a file is there after a cut, whole and under its name."""
        inode = self._names.get(path.parent, {}).get(path.name)
        return inode is not None and self._content.get(inode) == path.read_bytes()

    def wipe(self, folder: Path) -> None:
        """A folder is deleted, and whatever the disk knew of it."""
        shutil.rmtree(folder, ignore_errors=True)
        self._names = {p: names for p, names in self._names.items() if not p.is_relative_to(folder)}

    def bring(self, copy: Path, folder: Path) -> None:
        """A folder is what it was when it was copied, and the disk knows it."""
        self.wipe(folder)
        shutil.copytree(copy, folder)
        for path in (folder, *folder.rglob("*")):
            self._keep(path)

    def rot(self, path: Path, rng: random.Random) -> None:
        """A bit of a file flips, for good."""
        content = bytearray(path.read_bytes())
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
            self._keep(path)

    def cut(self, folder: Path, rng: random.Random, mine: Callable[[Path], bool]) -> None:
        """The power fails: what was not synced may be there, torn, or gone."""
        if not folder.is_dir():
            return
        names = self._names.get(folder, {})
        here = {entry.name: entry for entry in os.scandir(folder)}
        for name in sorted(here):
            path, durable = folder / name, names.get(name)
            if here[name].is_dir():
                if durable is None and mine(path) and rng.random() < 0.5:
                    shutil.rmtree(path)
                else:
                    self.cut(path, rng, mine)
            elif mine(path):
                self._tear(path, here[name].inode(), durable, rng)
        for name in sorted(names.keys() - here.keys()):
            old = self._content.get(names[name])
            if old is not None and mine(folder / name) and rng.random() < 0.5:
                (folder / name).write_bytes(old)  # its deletion was not synced
        for path in folder.iterdir():
            self._keep(path)  # what is there after the cut stays there
        self._keep(folder)

    def _tear(self, path: Path, inode: int, durable: int | None, rng: random.Random) -> None:
        synced = self._content.get(inode)
        if durable != inode and rng.random() < 0.5:  # its name was not synced
            old = None if durable is None else self._content.get(durable)
            path.unlink()
            if old is not None:
                path.write_bytes(old)
        elif synced is None:
            whole = path.read_bytes()
            path.write_bytes(whole[: rng.randint(0, len(whole))])
        elif path.read_bytes() != synced:
            path.write_bytes(synced)
