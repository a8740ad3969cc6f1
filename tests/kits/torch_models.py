"""Small models of torch, each of named parts and a forward function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Built(nn.Module):
    """A model of these layers and parameters; its forward is a function of the model and x."""

    def __init__(
        self, forward: Callable[[Any, Tensor], Any], **parts: nn.Module | nn.Parameter
    ) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)
