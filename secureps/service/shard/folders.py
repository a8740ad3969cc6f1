"""Where a shard's files lie: its versions, and its parts of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


def nowhere() -> Iterator[Path]:
    """No parts of checkpoints."""
    return iter(())


@dataclass(frozen=True, slots=True)
class ShardFolders:
    """The folders of a shard: its states, and its parts of checkpoints.

    `initial` is its own path or URL of the file of version 0; None: the plan's.
    `elsewhere` brings its parts of a store's checkpoints, newest first, each for a moment; it
    raises DiskFailed.
    """

    states: Path
    checkpoints: Path
    elsewhere: Callable[[], Iterator[Path]] = nowhere
    initial: str | None = None

    def state(self, group: str, version: int, epoch: int) -> Path:
        """The file of a version, whether it exists or not.

        Beside a file with other blocks, that of a placement's epoch has another name.
        """
        name = f"{group}-{version:06d}" + (f".{epoch}" if epoch else "")
        return self.states / f"{name}.safetensors"

    def state_files(self, group: str) -> Iterator[tuple[Path, int, int]]:
        """The files of a group's versions that there are, with version and epoch."""
        for path in self.states.glob(f"{group}-*.safetensors"):
            name, _, number = path.stem.rpartition("-")
            if name == group:
                version, epoch = map(int, [*number.split("."), "0"][:2])
                yield path, version, epoch
