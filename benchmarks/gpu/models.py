"""Models whose training step is timed: a ResNet and a transformer of about 25 million values.

Of torch alone. Nothing in them mixes records, so that they are trained privately as well as not,
and no layer has a backward pass on CUDA without an order of its sums: `TorchTrainer` refuses those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.record_level import Transformer


def _convolution(into: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(into, out, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.GroupNorm(min(8, out), out))


class Bottleneck(nn.Module):
    """Three convolutions beside a way around them (He et al. 2015, figure 5, right)."""

    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.first, self.second = (
            _convolution(into, width, 1),
            _convolution(width, width, 3, stride),
        )
        self.third, self.around = _convolution(width, out, 1), nn.Sequential()
        if into != out or stride > 1:
            self.around = _convolution(into, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.relu(self.second(torch.relu(self.first(x))))
        found: Tensor = torch.relu(self.third(made) + self.around(x))
        return found


class ResNet(nn.Module):
    """Images [records, 3, side, side] in, classes out."""

    def __init__(self, width: int, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        # A convolution with a stride where ResNets have a pool: that has no order on CUDA.
        self.stem = nn.Sequential(
            _convolution(3, width, 7, 2), nn.ReLU(), _convolution(width, width, 3, 2), nn.ReLU()
        )
        stages, into = list[nn.Module](), width
        for k, depth in enumerate(depths):
            for place in range(depth):
                stages.append(Bottleneck(into, width << k, 2 if place == 0 and k else 1))
                into = 4 * (width << k)
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))
        return found


@dataclass(frozen=True)
class Trained:
    """A model, the shape of its records (of tokens, where it has `words`), and how many a step."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    records: int
    classes: int
    words: int = 0

    def data(self, records: int) -> tuple[Tensor, Tensor]:
        """Random records, the same at every call."""
        generator, shape = torch.Generator().manual_seed(1), (records, *self.shape)
        x = torch.randn(shape, generator=generator)
        if self.words:
            x = torch.randint(0, self.words, shape, generator=generator)
        return x, torch.randint(0, self.classes, (records,), generator=generator)


MODELS: Mapping[str, Trained] = {
    "ResNet": Trained(partial(ResNet, 64, (3, 4, 6, 3), 1000), (3, 224, 224), 64, 1000),
    "transformer": Trained(
        partial(Transformer, words=8192, places=256, width=512, blocks=7, heads=8),
        *((256,), 64, 10, 8192),
    ),
}
FEW: Mapping[str, Trained] = {
    "ResNet": Trained(partial(ResNet, 4, (1, 1), 10), (3, 16, 16), 2, 10),
    "transformer": Trained(
        partial(Transformer, words=50, places=8, width=16, blocks=1, heads=2), (8,), 2, 10, 50
    ),
}
"""The same, for tests."""
