"""A run as its files show it, whoever runs its parties: how far it is, and what they say."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 180.0


class OnDisk:
    """A run in whose folder `checkpoints` are.

    Args:
        logs: the folder and the pattern of its parties' logs.
    """

    def __init__(self, run: Path, logs: tuple[Path, str]) -> None:
        self.run, self._logs = run, logs

    def reached(self, version: int) -> bool:
        """Whether a version is whole on the servers' disks."""
        return (self.run / "checkpoints" / f"{version:06d}" / "manifest.json").is_file()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"{what}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        folder, pattern = self._logs
        found = sorted(folder.glob(pattern))
        return "\n".join(f"{path.name}: {path.read_text()[-2500:]}" for path in found)
