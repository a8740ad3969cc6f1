"""Tells the tensors that all parties have alike, and sees to it that they stay as they are.

They never travel: each client makes them itself, and parties compare digests of their values when
they join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.initial_model import initial_parameters
from secureps.client.script_errors import blamed
from secureps.client.site import Site
from secureps.errors import WrongShape
from secureps.messages.encoding import digest
from secureps.messages.schema import TensorSpec

Tensors = Mapping[str, NDArray[Any]]


class FrozenTensors:
    """The frozen tensors of one client, which no training changes: made once."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: dict[str, NDArray[Any]] = {}

    def load(self, frozen: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
        """Those of the run.

        Raises:
            ScriptFailed: the trainer raised, or made others than when this client joined.
        """
        if frozen and not self._made:
            initial = initial_parameters(self._site.trainer, self._site.seed)
            with blamed("what parameters returned"):
                self._made = take_frozen(initial, frozen)
        return self._made


def digests_of(tensors: Tensors) -> dict[str, str]:
    """The digest of each tensor's values, in hex: equal for equal bits, whatever lies where."""
    return {name: _bits(array).hex() for name, array in tensors.items()}


def take_frozen(initial: Tensors, frozen: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """The frozen tensors of a fresh model, as the run has them.

    Raises:
        WrongShape: they are not those that this client told when it joined.
    """
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
    """The same on every machine: little-endian, row by row."""
    whole = np.asarray(array)
    little = whole.astype(whole.dtype.newbyteorder("<"), copy=False)
    return digest("secureps-frozen", little.tobytes())
