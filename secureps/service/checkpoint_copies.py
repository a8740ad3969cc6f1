"""Copies checkpoints to an object store as they are made, and reads them from there.

    URL/000007/shard-0.safetensors    parts first
    URL/000007/manifest.json          last: what makes a checkpoint complete, there too

Local files stay. The copier repeats a refused copy while the process lives, and `secureps status`
shows it. No step of the run waits for a copy, and the next process copies the rest after a kill. A
reader first downloads a checkpoint, and then checks it as a local one (`store.checkpoint`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from secureps.errors import ConfigError, DamagedStore, DiskFailed
from secureps.files.objects import ObjectStore
from secureps.messages.orders import WriteCheckpoint
from secureps.messages.run import COORDINATOR, Task
from secureps.roles.coordinator.state import WriteManifest
from secureps.roles.machine import TaskResult
from secureps.service.environment import Meter
from secureps.service.logs import tell
from secureps.store.checkpoint import (
    MANIFEST,
    MANIFEST_LIMIT,
    NUMBER,
    checkpoint_directories,
    read_manifest,
    read_part,
)

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds between two tries at a store that refuses: at first, and at most."""

PATIENT = 5
"""Tries after which the log says that another server's part is missing."""

MOST_UNCOPIED = 20
"""The most checkpoints that stay on disk because the store lacks them."""

LAST_WAIT = 1.5
"""Seconds that a process waits at its end for a copy that is being made."""


class CheckpointCopies(Meter):
    """Copies the checkpoints of one server; as a meter it learns of each new one.

    A shard copies its own parts. The coordinator copies its whole folder, and a manifest once all
    parts are in the store.
    """

    def __init__(self, party: str, checkpoints: Path, store: ObjectStore) -> None:
        self._party, self._checkpoints, self._store = party, checkpoints, store
        self._own = MANIFEST if party == COORDINATOR else f"{party}.safetensors"
        self._trouble: Callable[[str], None] = lambda text: None
        self._due, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)
        self._done: set[str] | None = None
        self._refused: dict[str, str] = {}
        self._said = ""

    def start(self, trouble: Callable[[str], None]) -> None:
        """Starts the copying thread; `trouble` gets each failure in words, and "" once it ends."""
        self._trouble = trouble
        self._thread.start()

    def on_work(self, task: Task, seconds: float, result: TaskResult | None = None) -> None:
        if isinstance(task, WriteCheckpoint | WriteManifest):
            self._due.set()

    def uncopied(self) -> tuple[int, ...]:
        """The checkpoints that must not be deleted yet; thread-safe."""
        return tuple(int(each.name) for each in self._find_uncopied()[:MOST_UNCOPIED])

    def copy(self) -> str:
        """Copies in the caller's thread, for a short-lived process; returns the failures."""
        failed, awaited = self._copy_all()
        return "; ".join([*self._refused.values(), *failed, *awaited])

    def stop(self) -> None:
        self._ended.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(LAST_WAIT)
        if left := self._find_uncopied():
            text = (
                f"{len(left)} checkpoints are not at {self._store.name}: this server copies them "
                "when it is started again"
            )
            tell(self._party, "NotCopied", text, logging.WARNING)

    # --- on the thread ------------------------------------------------------------

    def _run(self) -> None:
        tries = 0
        while not self._ended.is_set():
            self._due.clear()
            failed, awaited = self._copy_all()
            tries = tries + 1 if failed or awaited else 0
            late = awaited if tries > PATIENT else []
            self._say("; ".join([*self._refused.values(), *failed, *late]))
            if tries:
                self._ended.wait(min(LONGEST_WAIT, FIRST_WAIT * 1.5 ** min(tries - 1, 20)))
            elif not self._ended.is_set():
                self._due.wait()

    def _say(self, text: str) -> None:
        if text == self._said:
            return
        self._said = text
        if text:
            text = f"does not copy checkpoints: {text}"
            tell(self._party, "Trouble", f"{text}; trying again", logging.WARNING)
        else:
            tell(self._party, "TroubleOver", f"copies checkpoints to {self._store.name} again")
        self._trouble(text)

    def _find_uncopied(self) -> list[Path]:
        over = {*(self._done or ()), *self._refused}
        found = (
            each for each in checkpoint_directories(self._checkpoints) if each.name not in over
        )
        return [each for each in found if (each / self._own).is_file()]

    def _copy_all(self) -> tuple[list[str], list[str]]:
        """Copies the rest; returns the store's refusals, and the missing parts of others."""
        awaited = []
        try:
            if self._done is None:
                self._done = self._find_copied()
            for directory in self._find_uncopied():
                if self._ended.is_set():
                    break
                try:
                    missing = self._copy(directory)
                except (ConfigError, DamagedStore) as error:  # no retry mends it
                    if (directory / self._own).is_file():  # unless it was pruned meanwhile
                        self._refused[directory.name] = str(error)
                    continue
                if missing:
                    awaited.append(f"{self._store.name}/{directory.name} lacks {missing}")
                    continue
                self._done.add(directory.name)
                text = f"checkpoint {int(directory.name)} is at {self._store.name}"
                tell(self._party, "Copied", text)
        except (DiskFailed, OSError) as error:
            return [str(error)], awaited
        return [], awaited

    def _find_copied(self) -> set[str]:
        """Finds checkpoints of earlier processes in the store by size.

        The newest is left out, so that it is compared byte by byte: its copy may be cut off.
        """
        sizes, left = self._store.sizes(), self._find_uncopied()
        return {
            each.name
            for each in left[1:]
            if sizes.get(f"{each.name}/{self._own}") == (each / self._own).stat().st_size
        }

    def _copy(self, directory: Path) -> str:
        """Copies a checkpoint, or a shard's own part; returns the missing part's name, or ""."""
        number = directory.name
        if self._own == MANIFEST:
            there = self._store.sizes(number)
            manifest = read_manifest(directory)
            for part in manifest.files:
                if there.get(part.file) == part.size:
                    continue
                if not (directory / part.file).is_file():
                    return part.file
                self._store.create(f"{number}/{part.file}", read_part(directory, part))
        self._store.create(f"{number}/{self._own}", (directory / self._own).read_bytes())
        return ""


class CopiedCheckpoints:
    """Iterates over the checkpoints of a store, and downloads each into an empty `folder`."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store, self._folder = store, folder

    def __str__(self) -> str:
        return self._store.name

    def __iter__(self) -> Iterator[Path]:
        sizes = self._store.sizes()
        if not sizes:
            self._store.demand_bucket()
        for number in _numbers(sizes):
            yield self._download(number, sizes)

    def name_urls(self, text: str) -> str:
        return text.replace(str(self._folder), self._store.name)

    def _download(self, number: str, sizes: dict[str, int]) -> Path:
        directory = self._folder / number
        directory.mkdir(exist_ok=True)
        if f"{number}/{MANIFEST}" not in sizes:
            return directory
        # The caller's load reports the damage. A store may send more bytes than it announced.
        with suppress(DamagedStore, ConfigError):
            self._store.download(f"{number}/{MANIFEST}", directory / MANIFEST, MANIFEST_LIMIT)
            for part in read_manifest(directory).files:
                if sizes.get(f"{number}/{part.file}") == part.size:
                    self._store.download(f"{number}/{part.file}", directory / part.file, part.size)
        return directory


def parts_at(store: ObjectStore, file: str) -> Iterator[Path]:
    """Downloads a shard's parts of a store's checkpoints, newest first, one at a time."""
    sizes = store.sizes()
    with TemporaryDirectory(prefix="secureps-") as folder:
        for number in _numbers(sizes):
            if f"{number}/{file}" in sizes:
                path = Path(folder) / number / file
                path.parent.mkdir()
                with suppress(ConfigError):  # longer than the store said: the caller sees damage
                    store.download(f"{number}/{file}", path, sizes[f"{number}/{file}"])
                yield path
                path.unlink()


def _numbers(names: dict[str, int]) -> list[str]:
    found = {name.partition("/")[0] for name in names}
    return sorted(filter(NUMBER.fullmatch, found), key=int, reverse=True)
