"""A tensor that is held is an array to whoever asks, and a copy of its own."""

from __future__ import annotations

import numpy as np
import torch

from secureps.client.held_tensor import HeldTensor
from secureps.client.initial_model import schema_of


def test_it_is_the_array_of_its_values() -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    held = HeldTensor(tensor)
    made = np.asarray(held)
    assert np.array_equal(made, tensor.numpy())
    assert (made.shape, made.dtype) == (held.shape, held.dtype)
    assert np.asarray(held, np.float64).dtype == np.float64
    made[0] = 9
    assert float(tensor[0, 0]) == 0
    assert schema_of({"a": held}) == schema_of({"a": tensor.numpy()})  # type: ignore[dict-item]
