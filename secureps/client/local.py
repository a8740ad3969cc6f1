"""Tensors that never leave a client, on its own disk: those of its last few trainings.

What must not live here: which they are (the plan's `local` patterns).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from secureps.store.checkpoint import read_state, write_state

KEPT = 3
"""Trainings whose tensors are kept: an older version may be trained from again."""


@dataclass(frozen=True)
class LocalTensors:
    """In one folder, by the version that they belong to."""

    folder: Path

    def save(self, version: int, tensors: dict[str, NDArray[Any]]) -> None:
        """Durable, in place of the oldest."""
        write_state(self._file(version), tensors, {"version": str(version)})
        for path in sorted(self.folder.glob("local-*.safetensors"))[:-KEPT]:
            path.unlink()

    def before(self, version: int) -> dict[str, NDArray[Any]] | None:
        """The newest of this version or an older one; None if there is none."""
        earlier = sorted(self.folder.glob("local-*.safetensors"))
        usable = [path for path in earlier if path <= self._file(version)]
        return dict(read_state(usable[-1], None)[0]) if usable else None

    def _file(self, version: int) -> Path:
        return self.folder / f"local-{version:08d}.safetensors"
