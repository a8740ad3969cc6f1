"""Tensors that never travel: each client's own (`local`), and those that all have alike (`frozen`).

Each client keeps local tensors on its disk, by version. It makes frozen ones itself; parties
compare digests of their values when they join.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.initial_model import Tensors
from secureps.errors import WrongShape
from secureps.messages.encoding import digest
from secureps.messages.orders import GroupVersion
from secureps.messages.schema import TensorSpec
from secureps.store.checkpoint import read_state, write_state

Model = Sequence[GroupVersion]
"""The versions of a model's groups, at least one."""

KEPT = 3
"""Versions kept: a restarted client may have to train from an earlier one again."""


class LocalTensors:
    """The local tensors of one client, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, model: Model, before: Tensors, after: Tensors) -> None:
        """Saves the local tensors after a training from `model`, if it changed them."""
        if all(np.array_equal(before[name], each) for name, each in after.items()):
            return
        version = 1 + _newest(model)
        write_state(self._file(version), after, {"version": str(version)})
        for path in self._files()[:-KEPT]:
            path.unlink()

    def load(self, model: Model | None = None) -> Tensors | None:
        """The newest saved tensors, at or before `model` if it is given; None if there are none."""
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


def digests_of(tensors: Tensors) -> dict[str, str]:
    """The digest of each tensor's values, in hex: equal for equal bits."""
    return {name: _bits(array).hex() for name, array in tensors.items()}


def take_frozen(initial: Tensors, frozen: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """The frozen tensors of a fresh model; WrongShape if they are not those announced."""
    taken = {spec.name: initial[spec.name] for spec in frozen}
    for spec in frozen:
        if spec.values != _bits(taken[spec.name]).hex():
            raise WrongShape(
                f"{spec.name} is frozen, and has other values than when this client joined: the "
                "file that it comes from has changed, or parameters(seed) is not one model"
            )
    return taken


def refuse_changed(before: Tensors, after: Tensors, frozen: Sequence[TensorSpec]) -> None:
    """Raises WrongShape if training has changed a frozen tensor, by a bit."""
    for spec in frozen:
        if _bits(before[spec.name]) != _bits(after[spec.name]):
            raise WrongShape(
                f"{spec.name} was trained, and the plan has it frozen: leave it as it came "
                "(requires_grad_(False)), or take it out of frozen"
            )


def _bits(array: NDArray[Any]) -> bytes:
    """Hashes an array in little-endian row order, the same on every machine."""
    whole = np.asarray(array)
    little = whole.astype(whole.dtype.newbyteorder("<"), copy=False)
    return digest("secureps-frozen", little.tobytes())
