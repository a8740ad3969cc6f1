"""What a step of DP-SGD costs beside a plain one: this project's, and both ways of Opacus.

    python -m benchmarks.record_level [--device cuda] [--turns 9] [--bfloat16]

Three models train the same records by plain SGD, by `TorchTrainer`'s private steps, and by Opacus
with per-record gradients (`hooks`) and ghost clipping (`ghost`); "noise alone" is a private step
without records. All take turns; ratios are within a turn. A CPU is one thread, in seconds of CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.report import Row, report
from secureps.client.torch_ranks import descend
from secureps.client.torch_sgd import Task, descend_privately
from secureps.client.trainer import RecordPrivacy

STEPS = 5
BOUND, NOISE, LR = 1.0, 1.0, 0.01


def mlp() -> nn.Module:
    stages = (nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return nn.Sequential(*stages)


def cnn() -> nn.Module:
    def stage(into: int, out: int) -> list[nn.Module]:
        return [
            *(nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(8, out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        ]

    stages = [*stage(3, 32), *stage(32, 64), nn.Flatten(), nn.Linear(64 * 64, 128), nn.ReLU()]
    return nn.Sequential(*stages, nn.Linear(128, 10))


class Block(nn.Module):
    """Attention between the places, then a network of each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        seen = self.before(x)
        q, k, v = (
            each(seen).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        found: Tensor = x + self.network(self.between(x))
        return found


class Transformer(nn.Module):
    """Tokens in, ten classes out."""

    def __init__(
        self, words: int = 1000, places: int = 64, width: int = 128, blocks: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.table, self.position = nn.Embedding(words, width), nn.Embedding(places, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).repeat(len(x), 1)
        seen = self.blocks(self.table(x) + self.position(places))
        found: Tensor = self.head(self.norm(seen).mean(dim=1))
        return found


class Narrow(nn.Module):
    """A model that computes in bfloat16 where torch finds that safe; its weights stay float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            found: Tensor = self.model(x)
        return found.float()


@dataclass(frozen=True)
class Case:
    """A model, the shape of its records (tokens, where that has no channels), how many a step."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    records: int
    tokens: int = 0


CASES = {
    "mlp": Case(mlp, (784,), 256),
    "cnn": Case(cnn, (3, 32, 32), 64),
    "transformer": Case(Transformer, (64,), 64, tokens=1000),
}

Way = Callable[[nn.Module, Task, int], None]


def plain(module: nn.Module, task: Task, steps: int) -> None:
    everything = np.arange(len(task.x))
    descend(module, _sgd(module), task, iter([everything] * steps))


def ours(module: nn.Module, task: Task, steps: int, rate: float = 1.0) -> None:
    generators = (
        np.random.default_rng(1),
        (torch.Generator(task.device).manual_seed(1),),
    )
    privacy = RecordPrivacy(NOISE, BOUND, rate, 1e-5)
    descend_privately(module, _sgd(module), privacy, task, steps, generators)


def opacus(module: nn.Module, task: Task, steps: int, mode: str = "hooks") -> None:
    """As Opacus' own pages have it, but without its sampling: every step has all records."""
    loader = DataLoader(TensorDataset(task.x, task.y), batch_size=len(task.x))
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=_sgd(module),
        data_loader=loader,
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=NOISE,
        max_grad_norm=BOUND,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    private, optimizer = made[0], made[1]
    loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = task.batch(np.arange(len(task.x)))
        loss(private(x), y).backward()
        optimizer.step()


WAYS: Mapping[str, Way] = {
    "plain": plain,
    "secureps": ours,
    "noise alone": partial(ours, rate=1e-12),
    "Opacus, hooks": opacus,
    "Opacus, ghost": partial(opacus, mode="ghost"),
}


def measure(
    device: torch.device, turns: int, steps: int = STEPS, narrow: bool = False, share: int = 1
) -> list[Row]:
    """Rows for each model and way; `share` divides the records of a step."""
    warnings.filterwarnings("ignore", category=UserWarning)  # of Opacus, of its own hooks
    rows: list[Row] = []
    for name, case in CASES.items():
        generator = torch.Generator().manual_seed(1)
        shape = (case.records // share, *case.shape)
        x = torch.randn(shape, generator=generator)
        if case.tokens:
            x = torch.randint(0, case.tokens, shape, generator=generator)
        y = torch.randint(0, 10, shape[:1], generator=generator)
        task = Task(x.to(device), y.to(device), functional.cross_entropy, device)
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(turns + 1):
            for way, run in WAYS.items():
                torch.manual_seed(1)
                module = Narrow(case.make()) if narrow else case.make()
                module = module.to(device).train()
                began = _now(device)
                run(module, task, steps)
                if turn:  # the first warms up
                    taken[way].append((_now(device) - began) / steps)
        for way, seconds in taken.items():
            ratios = [own / base for own, base in zip(seconds, taken["plain"], strict=True)]
            rows.append(
                {
                    "model": name,
                    "way": way,
                    "ms a step": 1e3 * statistics.median(seconds),
                    "to plain": statistics.median(ratios),
                    "least": min(ratios),
                    "most": max(ratios),
                }
            )
    return rows


def _sgd(module: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr=LR)


def _now(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--bfloat16", action="store_true", help="the models compute in bfloat16")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    torch.set_num_threads(1)
    rows = measure(device, asked.turns, narrow=asked.bfloat16)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "one thread of a CPU"
    name = "record_level_bfloat16" if asked.bfloat16 else "record_level"
    report(name, f"Steps of DP-SGD beside plain ones, {where}", rows)


if __name__ == "__main__":
    main()
