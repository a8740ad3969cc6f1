"""A run as its files show it, whoever runs its parties: how far it is, and what they say."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 300.0
"""Seconds without a word in any log: a busy machine compiles kernels for three minutes."""


class OnDisk:
    """A run in whose folder `checkpoints` are.

    Args:
        logs: the folder and the pattern of its parties' logs.
    """

    def __init__(self, run: Path, logs: tuple[Path, str]) -> None:
        self.run, self._logs = run, logs

    def reached(self, version: int) -> bool:
        return (self.run / "checkpoints" / f"{version:06d}" / "manifest.json").is_file()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Polls until it is so; fails, with everybody's log, when nothing is said for too long."""
        said, end = -1, 0.0
        while not condition():
            if (now := sum(path.stat().st_size for path in self._found())) != said:
                said, end = now, time.monotonic() + PATIENCE
            assert time.monotonic() < end, f"{what}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-2500:]}" for path in self._found())

    def _found(self) -> list[Path]:
        folder, pattern = self._logs
        return sorted(folder.glob(pattern))
