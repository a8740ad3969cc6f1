"""Long local training and Nesterov's outer step, beside data-parallel training of the same steps.

    python -m benchmarks.outer [VERSIONS]

A small transformer learns the manual that Python brings along (`pydoc_data.topics`), character by
character. Four clients have a quarter of it each, and both rows take the same batches.
Data-parallel training averages gradients in each step of AdamW, 4 bytes a value up and 4 down. The
other takes LOCAL_STEPS steps at each client before a version, as DiLoCo does (Douillard et al.
2023). It is played in the clear, which gives the same bits as encrypted; its bytes are `rlwe`'s.
Each row tries all RATES and keeps the best, because the best rates of the two rows may differ.
"""

from __future__ import annotations

import copy
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pydoc_data.topics import topics
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import secureps as ps
from benchmarks.report import Row, report
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.block_deltas import FLOAT_BYTES
from secureps.policy.explain.explanation import explain
from secureps.policy.plan import Plan
from secureps.run.check import assume_service
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names

CLIENTS, BATCH, LENGTH, WIDTH, LAYERS = 4, 8, 32, 32, 2
VERSIONS, LOCAL_STEPS = 75, 21
RATES, WARM = (1.6e-2, 3.2e-2), 50
"""The inner learning rate grows in WARM steps to one of RATES, and falls to zero by a cosine."""

SYMBOLS, CHARACTERS = torch.unique(
    torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8),
    return_inverse=True,
)
PAGES = CHARACTERS[: len(CHARACTERS) // 1000 * 1000].reshape(-1, 1000)
HELD_OUT = PAGES[::10].flatten()
PARTS = torch.chunk(PAGES[torch.arange(len(PAGES)) % 10 > 0].flatten(), CLIENTS)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.looks, self.joins = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.thinks = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], 3, 4, WIDTH // 4)
        q, k, v = self.looks(self.before(x)).view(shape).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joins(seen.transpose(1, 2).reshape(x.shape))
        made: Tensor = x + self.thinks(self.between(x))
        return made


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.p = nn.Embedding(len(SYMBOLS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(SYMBOLS))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.norm(self.blocks(self.e(x) + self.p.weight)))
        return made


def batches(part: Tensor, seed: int, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields inputs, and the characters that follow each of them."""
    drawn = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(part) - LENGTH, (size, 1), generator=drawn)
        text = part[starts + torch.arange(LENGTH + 1)]
        yield text[:, :-1], text[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, following: Tensor) -> Tensor:
    return functional.cross_entropy(model(inputs).flatten(0, 1), following.flatten())


def held_out_loss(model: nn.Module) -> float:
    known = batches(HELD_OUT, 99, 256)
    with torch.no_grad():
        return statistics.fmean(float(loss_of(model, *next(known))) for _ in range(8))


class Inner:
    """AdamW, whose rate follows the step of the whole run."""

    def __init__(self, model: nn.Module, steps: int, rate: float) -> None:
        self.model, self.steps, self.rate, self.taken = model, steps, rate, 0
        self.adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)

    def step(self, *parts: tuple[Tensor, Tensor]) -> None:
        """Steps by the mean gradient of some parts of a batch."""
        falls = 0.5 * (1 + math.cos(math.pi * self.taken / self.steps))
        rate = self.rate * min(1.0, (self.taken + 1) / WARM) * falls
        for group in self.adam.param_groups:
            group["lr"] = rate
        loss = loss_of(self.model, *(torch.cat(part) for part in zip(*parts, strict=True)))
        self.adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.taken += 1


class Client:
    """A data holder; its AdamW goes on from version to version."""

    def __init__(self, number: int, model: nn.Module, steps: int, rate: float) -> None:
        self.inner = Inner(copy.deepcopy(model), steps, rate)
        self.text = batches(PARTS[number], number)

    def parameters(self, seed: int) -> dict[str, Any]:
        return {name: each.numpy().copy() for name, each in self.inner.model.state_dict().items()}

    def examples(self) -> int:
        return 1

    def fit(self, parameters: Mapping[str, Any], config: ps.FitConfig) -> ps.FitResult:
        model = self.inner.model
        model.load_state_dict({name: torch.from_numpy(each) for name, each in parameters.items()})
        steps = int(config.settings["local_steps"])
        for _ in range(steps):
            self.inner.step(next(self.text))
        return ps.FitResult(self.parameters(0), 1, {}, steps=steps)

    def evaluate(self, parameters: Mapping[str, Any]) -> ps.EvaluateResult:
        raise AssertionError("the plans have no evaluation")


def plan_of(versions: int, cipher: str) -> Plan:
    group = {
        "clip": 100.0,
        "bits": 3,
        "codec": ["rotate", {"name": "round", "length": "mean_norm"}],
        "pull_bits": 3,
        "rule": {"quorum": CLIENTS, "minimum": CLIENTS},
        "optimizer": {"name": "nesterov", "learning_rate": 1.0, "momentum": 0.5},
    }
    body = {
        "name": "outer",
        "versions": versions,
        "cipher": {"name": cipher, "capacity": CLIENTS},
        "group": [group],
        "training": {"local_steps": LOCAL_STEPS},
    }
    return Plan(parse(PlanSection, body, "outer"))


def played(plan: Plan, model: nn.Module, steps: int, rate: float) -> float:
    """The held-out loss of the last version."""
    names = client_names(CLIENTS)
    clients = {name: Client(k, model, steps, rate) for k, name in enumerate(names)}
    with TemporaryDirectory(prefix="secureps-outer-") as folder:
        simulation = Simulation(plan, Cast(clients, UnsafeSeed(1)), Path(folder))
        simulation.run()
        made = {name: torch.from_numpy(each) for name, each in simulation.model().items()}
    last = copy.deepcopy(model)
    last.load_state_dict(made)
    return held_out_loss(last)


def bytes_of(plan: Plan, values: int) -> int:
    """Bytes of a client in a whole run, both ways; of what it pulls the first version is whole."""
    explained = explain(plan, {"all": values}, assume_service(plan))
    (group,) = explained.groups
    assert explained.committee is not None
    assert group.bytes_up is not None
    assert group.bytes_down is not None
    up = group.bytes_up + explained.committee.submission
    versions = plan.section.versions
    return versions * up + FLOAT_BYTES * values + (versions - 1) * group.bytes_down


def data_parallel(model: nn.Module, steps: int, rate: float) -> float:
    inner = Inner(copy.deepcopy(model), steps, rate)
    texts = [batches(part, number) for number, part in enumerate(PARTS)]
    for _ in range(steps):
        inner.step(*map(next, texts))
    return held_out_loss(inner.model)


def best(play: Callable[[float], float]) -> float:
    """The lowest held-out loss of all RATES."""
    losses = {rate: play(rate) for rate in RATES}
    print(*(f"rate {rate:g}: {loss:.4f}" for rate, loss in losses.items()), flush=True)
    return min(losses.values())


def main() -> None:
    versions = int(sys.argv[1]) if len(sys.argv) > 1 else VERSIONS
    steps = versions * LOCAL_STEPS
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Transformer()
    values = sum(each.numel() for each in model.parameters())
    plain, rlwe = plan_of(versions, "plain"), plan_of(versions, "rlwe")
    gradients = best(lambda rate: data_parallel(model, steps, rate))
    each_step = gradients, 2 * FLOAT_BYTES * values * steps
    outer = best(lambda rate: played(plain, model, steps, rate)), bytes_of(rlwe, values)
    rows: list[Row] = [
        {
            "": name,
            "loss": loss,
            "above, %": 100 * (loss / each_step[0] - 1),
            "MB of a client": total / 1e6,
            "times fewer": each_step[1] / total,
        }
        for name, (loss, total) in {"data-parallel": each_step, "outer step": outer}.items()
    ]
    report("outer", f"{values:,} values, {steps:,} steps of {CLIENTS} clients", rows)


if __name__ == "__main__":
    main()
