"""The device on which updates are made in tests: SECUREPS_TEST_DEVICE, or else the CPU."""

import os
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

DEVICE = torch.empty(0, device=os.environ.get("SECUREPS_TEST_DEVICE", "cpu")).device
"""With its number, if it has one."""


def there(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.copy()).to(DEVICE)


def back(tensor: Tensor) -> NDArray[Any]:
    assert tensor.device == DEVICE
    return tensor.cpu().numpy()
