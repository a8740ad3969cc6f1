"""Keeps the tensors that never leave their client on its disk, version by version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.messages.orders import GroupVersion
from secureps.store.checkpoint import read_state, write_state

Tensors = dict[str, NDArray[Any]]
Model = Sequence[GroupVersion]
"""The versions of a model's groups, at least one."""

KEPT = 3
"""Versions kept: a client that is started again may have to train from an earlier one once more."""


class LocalTensors:
    """The local tensors of one client, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, model: Model, before: Tensors, after: Tensors) -> None:
        """Saves the local tensors that a training from `model` left.

        Nothing is written if training did not change them: a frozen base is never copied.
        """
        if all(np.array_equal(before[name], each) for name, each in after.items()):
            return
        version = 1 + _newest(model)
        write_state(self._file(version), after, {"version": str(version)})
        for path in self._files()[:-KEPT]:
            path.unlink()

    def load(self, model: Model | None = None) -> Tensors | None:
        """The newest saved tensors, or the newest from before `model`; None if there are none."""
        found = self._files()
        if model is not None:
            found = [path for path in found if path <= self._file(_newest(model))]
        return dict(read_state(found[-1])[0]) if found else None

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("local-*.safetensors"))

    def _file(self, version: int) -> Path:
        return self._folder / f"local-{version:08d}.safetensors"


def _newest(model: Model) -> int:
    return max(at.version for at in model)
