"""Checkpoints at an object store, as servers copied them there: read newest first, one by one.

A checkpoint is brought into a folder of this machine before anything is made of it, and is judged
there as any other (`store.checkpoint`): half a copy is no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from secureps.errors import ConfigError, DamagedStore
from secureps.files.objects import ObjectStore
from secureps.store.checkpoint import MANIFEST, MANIFEST_LIMIT, NUMBER, read_manifest


class CopiedCheckpoints:
    """The checkpoints below a store's URL; iterated over, the directories that they are brought to.

    Args:
        folder: an empty one of this machine, for as long as they are used.
    """

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store, self._folder = store, folder

    def __str__(self) -> str:
        return self._store.name

    def __iter__(self) -> Iterator[Path]:
        sizes = self._store.sizes()
        if not sizes:
            self._store.demand_bucket()
        for number in _numbers(sizes):
            yield self._brought(number, sizes)

    def told(self, text: str) -> str:
        """A text about files that were brought, with their URLs in place of paths."""
        return text.replace(str(self._folder), self._store.name)

    def _brought(self, number: str, sizes: dict[str, int]) -> Path:
        """Brings what is there of one checkpoint, and no file that is longer than it may be."""
        directory = self._folder / number
        directory.mkdir(exist_ok=True)
        if f"{number}/{MANIFEST}" not in sizes:
            return directory
        # whoever loads it says what is wrong; a store may send more than it says
        with suppress(DamagedStore, ConfigError):
            self._store.bring(f"{number}/{MANIFEST}", directory / MANIFEST, MANIFEST_LIMIT)
            for part in read_manifest(directory).files:
                if sizes.get(f"{number}/{part.file}") == part.size:
                    self._store.bring(f"{number}/{part.file}", directory / part.file, part.size)
        return directory


def parts_at(store: ObjectStore, file: str) -> Iterator[Path]:
    """A shard's parts of the checkpoints at a store, newest first; each is gone after its turn.

    Raises:
        DiskFailed: the store refuses, or cannot be reached.
    """
    sizes = store.sizes()
    with TemporaryDirectory(prefix="secureps-") as folder:
        for number in _numbers(sizes):
            if f"{number}/{file}" in sizes:
                path = Path(folder) / number / file
                path.parent.mkdir()
                with suppress(ConfigError):  # it is longer than the store said: damaged
                    store.bring(f"{number}/{file}", path, sizes[f"{number}/{file}"])
                yield path
                path.unlink()


def _numbers(names: dict[str, int]) -> list[str]:
    """The numbers of checkpoints of which objects have these names, the newest first."""
    found = {name.partition("/")[0] for name in names}
    return sorted(filter(NUMBER.fullmatch, found), key=int, reverse=True)
