"""Steps values on a device, to the bits that `model.optimizer` makes of them on the host.

The formulas are those of the host: an optimizer is given torch's vectors in place of NumPy's. Each
operation is one of torch's by itself, so that none is fused with another. Nothing stays on the
device between two steps. What must not live here: any formula of an optimizer, and whether a device
is used (`service.shard.devices`).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secureps.codec.chain import BlockCode
from secureps.codec.grid import BEYOND, Grid
from secureps.device import deltas
from secureps.device.encoding import decode
from secureps.device.norms import TOGETHER, divisor
from secureps.errors import NotFinite
from secureps.model.optimizer import Arithmetic, NoNumber, Optimizer, OptimizerState, Values


def _quotient(vector: Tensor, by: Tensor | float) -> Tensor:
    return vector / (divisor(by, vector, torch.float32) if isinstance(by, float) else by)


def _root(vector: Tensor) -> Tensor:
    """Of float32 torch's own is off by a bit now and then, on a CPU at least.

    Of float64 it may be, too: rounded to float32 it is the right one (Figueroa 1995, "When is
    double rounding innocuous?").
    """
    return vector.double().sqrt().float()


LIBRARY = Arithmetic(torch.float32, _root, torch.sign, _quotient)
"""Torch's, for `model.optimizer`."""


def weighted_mean(grid: Grid, sums: Tensor, shares: Fraction, total_weight: int) -> Tensor:
    """The mean update, float32 (n,): `Grid.weighted_mean`.

    Args:
        sums: int64 (n,).
    Raises:
        Malformed, NotFinite: as there.
    """
    exact = (sums - grid.zero(total_weight)).double() * grid.step
    mean = (exact / divisor(float(shares), exact)).float()
    if not bool(torch.isfinite(mean).all()):
        raise NotFinite(BEYOND)
    return mean


def decoded(code: BlockCode, means: Sequence[Tensor]) -> Tensor:
    """What a codec made these means of: float32 (values,), `BlockCode.decode`.

    Args:
        means: float32, one after another the block's.
    """
    return decode(code, torch.cat(tuple(means)).double())


class DeviceStep:
    """The arithmetic of steps on a device: a `service.shard.stepping.StepArithmetic`.

    Sums, values and state are copied there for a step, and what it makes is copied back.
    """

    together = TOGETHER
    library = LIBRARY

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mean(
        self, grid: Grid, sums: NDArray[np.int64], shares: Fraction, total_weight: int
    ) -> Tensor:
        """The mean of sums that lie on the host; see `weighted_mean`."""
        return weighted_mean(grid, self._there(sums), shares, total_weight)

    def decoded(self, code: BlockCode, means: Sequence[Tensor]) -> Tensor:
        """As the function."""
        return decoded(code, means)

    def apply(
        self, optimizer: Optimizer, mean: Tensor, values: Values, state: OptimizerState
    ) -> tuple[Values, OptimizerState]:
        """A step of an optimizer, built with LIBRARY, of values that lie on the host.

        Raises:
            NoNumber: a value or a slot would be none.
        """
        slots = {name: self._there(slot) for name, slot in state.slots.items()}
        there = OptimizerState(state.step, slots)
        made, after = optimizer.apply(mean, self._there(values), there)
        vectors: dict[str, Tensor] = {"": made, **after.slots}
        if any(bool(torch.isnan(vector).any()) for vector in vectors.values()):
            raise NoNumber
        back = {name: vector.cpu().numpy() for name, vector in vectors.items()}
        return back.pop(""), OptimizerState(after.step, back)

    def codes(self, exact: Values, published: Values, bits: int) -> NDArray[np.uint8]:
        """A difference of values that lie on the host: `codec.delta.encode`."""
        made = deltas.encode(self._there(exact), self._there(published), bits)
        codes: NDArray[np.uint8] = made.cpu().numpy()
        return codes

    def _there(self, array: NDArray[np.generic]) -> Tensor:
        """A copy of an array, which may be read-only."""
        return torch.from_numpy(np.array(array)).to(self._device)
