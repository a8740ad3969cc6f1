"""Copies checkpoints to an object store as they are made, and reads them from there.

    URL/000007/shard-0.safetensors    parts first
    URL/000007/manifest.json          last: what makes a checkpoint complete, there too

Local files stay as they are. The copier repeats a refused copy while the process lives, and
`secureps status` says so; no step of the run waits for it, and the next process copies what a
killed one did not. A reader first brings a checkpoint to this machine, and judges it there as any
other (`store.checkpoint`): half a copy is no checkpoint.
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
from secureps.messages.orders import Task, WriteCheckpoint
from secureps.messages.run import COORDINATOR
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
"""Seconds until a store that refused is asked again: at first, and at most."""

PATIENT = 5
"""Tries after which the log says that another server's part is missing."""

MOST_UNCOPIED = 20
"""Checkpoints that wait for a store and are not deleted; a store may be down for days."""

LAST_WAIT = 1.5
"""Seconds that the end of a process waits for a copy under way."""


class CheckpointCopies(Meter):
    """Copies the checkpoints of one server; as its meter it hears that one was written.

    A shard copies its own parts. The coordinator copies everything in its folder, and a manifest
    once all parts are there.
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
        """Copies in a thread, which tells `trouble` what is wrong, and "" when it has passed."""
        self._trouble = trouble
        self._thread.start()

    def on_work(self, task: Task, seconds: float, result: TaskResult | None = None) -> None:
        if isinstance(task, WriteCheckpoint | WriteManifest):
            self._due.set()

    def uncopied(self) -> tuple[int, ...]:
        """The checkpoints that must not be deleted yet; thread-safe."""
        return tuple(int(each.name) for each in self._find_uncopied()[:MOST_UNCOPIED])

    def copy(self) -> str:
        """Copies what is left, for a short-lived process; returns what is in the way."""
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
        """Copies what is left; returns what the store refuses, and what waits for other servers."""
        awaited = []
        try:
            if self._done is None:
                self._done = self._find_copied()
            for directory in self._find_uncopied():
                if self._ended.is_set():
                    break
                try:
                    missing = self._copy(directory)
                except (ConfigError, DamagedStore) as error:  # the same however often it is tried
                    if (directory / self._own).is_file():  # else it was pruned meanwhile
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
        """What an earlier process copied, but for the newest, which is compared byte by byte."""
        sizes, left = self._store.sizes(), self._find_uncopied()
        return {
            each.name
            for each in left[1:]
            if sizes.get(f"{each.name}/{self._own}") == (each / self._own).stat().st_size
        }

    def _copy(self, directory: Path) -> str:
        """Copies a checkpoint, or its own part; returns the part that is missing."""
        number = directory.name
        if self._own == MANIFEST:
            there = self._store.sizes(number)
            manifest = read_manifest(directory)
            for part in manifest.files:
                if there.get(part.file) == part.size:
                    continue
                if not (directory / part.file).is_file():
                    return part.file
                self._store.create(f"{number}/{part.file}", read_part(directory, manifest, part))
        self._store.create(f"{number}/{self._own}", (directory / self._own).read_bytes())
        return ""


class CopiedCheckpoints:
    """The checkpoints below a store's URL, brought one by one into an empty `folder`."""

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
        """A text about files that were brought, with URLs in place of paths."""
        return text.replace(str(self._folder), self._store.name)

    def _download(self, number: str, sizes: dict[str, int]) -> Path:
        directory = self._folder / number
        directory.mkdir(exist_ok=True)
        if f"{number}/{MANIFEST}" not in sizes:
            return directory
        # whoever loads it says what is wrong; a store may send more than it says
        with suppress(DamagedStore, ConfigError):
            self._store.download(f"{number}/{MANIFEST}", directory / MANIFEST, MANIFEST_LIMIT)
            for part in read_manifest(directory).files:
                if sizes.get(f"{number}/{part.file}") == part.size:
                    self._store.download(f"{number}/{part.file}", directory / part.file, part.size)
        return directory


def parts_at(store: ObjectStore, file: str) -> Iterator[Path]:
    """A shard's parts of the checkpoints at a store, newest first; each is gone after its turn."""
    sizes = store.sizes()
    with TemporaryDirectory(prefix="secureps-") as folder:
        for number in _numbers(sizes):
            if f"{number}/{file}" in sizes:
                path = Path(folder) / number / file
                path.parent.mkdir()
                with suppress(ConfigError):  # it is longer than the store said: damaged
                    store.download(f"{number}/{file}", path, sizes[f"{number}/{file}"])
                yield path
                path.unlink()


def _numbers(names: dict[str, int]) -> list[str]:
    found = {name.partition("/")[0] for name in names}
    return sorted(filter(NUMBER.fullmatch, found), key=int, reverse=True)
