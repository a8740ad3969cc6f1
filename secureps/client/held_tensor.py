"""A tensor of a trained model that stays in the memory of the device where it was trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class HeldTensor:
    """A tensor that NumPy takes for an array: `numpy.asarray` copies it to the host.

    Args:
        tensor: of torch, of floating-point numbers that NumPy has too.
    """

    tensor: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """As an array has it."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's."""
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        own: NDArray[Any] = self.tensor.detach().to("cpu", copy=True).numpy()
        return own if dtype is None else own.astype(dtype)
