"""loraexample: A Flower app that trains low-rank adapters (LoRA) of a frozen base."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

SEED = 7  # of the split, the base and batches
WIDTH, HEADS, STEPS = 32, 4, 60

Records = tuple[Tensor, Tensor]


class LoraLinear(nn.Module):
    """A frozen linear layer and a low-rank change of it, which is nothing at first."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        start = torch.Generator().manual_seed(SEED)
        drawn = torch.randn(rank, base.in_features, generator=start)
        self.lora_a = nn.Parameter(drawn / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """As the frozen layer, and its change."""
        changed: Tensor = self.base(x) + x @ self.lora_a.T @ self.lora_b.T
        return changed


class Transformer(nn.Module):
    """Reads a digit row by row: one layer of attention, ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(8, WIDTH))
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of ten classes, of images of shape (n, 8, 8)."""
        x = self.embed(x) + self.position
        seen = self.norms[0](x)
        parts = (each(seen) for each in (self.query, self.key, self.value))
        heads = (each.unflatten(2, (HEADS, -1)).transpose(1, 2) for each in parts)
        attended = functional.scaled_dot_product_attention(*heads)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.network(self.norms[1](x))
        scores: Tensor = self.head(self.norms[2](x).mean(dim=1))
        return scores


@cache
def load_images() -> Records:
    """All of scikit-learn's digits, in an order that says nothing."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(y))
    images = torch.tensor(x[order] / 16, dtype=torch.float32).reshape(-1, 8, 8)
    return images, torch.tensor(y[order])


@cache
def pretrained() -> dict[str, Tensor]:
    """The base, of public records: a quarter of the digits, of which it saw 0 to 4 alone."""
    images, labels = load_images()
    public = torch.arange(len(labels) // 4)
    public = public[labels[public] < 5]
    with torch.random.fork_rng([]):
        torch.manual_seed(SEED)
        model = Transformer()
        adam = torch.optim.Adam(model.parameters(), lr=3e-3)
        for step in range(STEPS):
            batch = public[torch.arange(64 * step, 64 * (step + 1)) % len(public)]
            adam.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            adam.step()
    return {name: each.detach() for name, each in model.state_dict().items()}


def get_model(rank: int) -> nn.Module:
    """The base with adapters of its attention and its head, of which nothing else trains."""
    model = Transformer()
    model.load_state_dict(pretrained())
    model.requires_grad_(False)
    for name in ("query", "value", "head"):
        setattr(model, name, LoraLinear(getattr(model, name), rank))
    return model


def get_adapters(model: nn.Module) -> dict[str, Tensor]:
    """What trains, by name; the base stays where it is."""
    return {name: each for name, each in model.state_dict().items() if "lora_" in name}


def set_adapters(model: nn.Module, adapters: dict[str, Tensor]) -> None:
    """The other way."""
    model.load_state_dict(adapters, strict=False)


def load_data(partition_id: int, num_partitions: int) -> tuple[Records, Records]:
    """One partition of the other digits: 80% to train, 20% to test."""
    images, labels = load_images()
    quarter = len(labels) // 4
    own = slice(quarter + partition_id, None, num_partitions)
    x, y = images[own], labels[own]
    cut = len(y) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def train(model: nn.Module, data: Records, epochs: int, lr: float, batch_size: int) -> float:
    """Trains the adapters; returns the mean loss on the way."""
    x, y = data
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=lr, momentum=0.9)
    order = torch.Generator().manual_seed(SEED)
    losses = []
    for _ in range(epochs):
        for batch in torch.randperm(len(y), generator=order).split(batch_size):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(model: nn.Module, data: Records) -> tuple[float, float]:
    """Loss and accuracy."""
    x, y = data
    scores = model(x)
    loss = functional.cross_entropy(scores, y).item()
    return loss, float((scores.argmax(1) == y).float().mean())
