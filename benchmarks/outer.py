"""Long local training and an outer step, beside data-parallel training of the same steps.

    python -m benchmarks.outer [VERSIONS]

A small transformer learns the manual that Python brings along (`pydoc_data.topics`), character by
character. Four clients have a quarter of it each. All rows take the same steps of AdamW on the same
batches. Data-parallel training averages gradients in each of them, 4 bytes a value up and 4 down.
The others train for LOCAL_STEPS before a version, as DiLoCo does (Douillard et al. 2023), and are
played in the clear, which gives the same bits as encrypted; their bytes are those of `rlwe`.
"""

from __future__ import annotations

import copy
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
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
LOCAL_STEPS = 100
"""Steps of AdamW between two versions of a value; of fragments, over a turn of each."""
RATE, WARM, LAST = 4e-3, 50, 0.1
"""The inner learning rate grows in WARM steps, and falls to LAST of it by a cosine."""
FRAGMENTS = {"first": "[ep].*", "lower": "blocks.0.*", "upper": "blocks.1.*", "last": "*"}
"""Groups of about a quarter of the values each, by the pattern of their tensors."""

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
        return x + self.thinks(self.between(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.p = nn.Embedding(len(SYMBOLS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(SYMBOLS))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.blocks(self.e(x) + self.p.weight)))


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

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.model, self.steps, self.taken = model, steps, 0
        self.adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.01)

    def step(self, *parts: tuple[Tensor, Tensor]) -> None:
        """Steps by the mean gradient of some parts of a batch."""
        falls = 0.5 * (1 + math.cos(math.pi * self.taken / self.steps))
        rate = RATE * min(1.0, (self.taken + 1) / WARM) * (LAST + (1 - LAST) * falls)
        for group in self.adam.param_groups:
            group["lr"] = rate
        loss = loss_of(self.model, *(torch.cat(part) for part in zip(*parts, strict=True)))
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.taken += 1


class Client:
    """A data holder; its AdamW goes on from version to version."""

    def __init__(self, number: int, model: nn.Module, steps: int) -> None:
        self.inner = Inner(copy.deepcopy(model), steps)
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


def plan_of(versions: int, optimizer: Mapping[str, Any], turns: bool, cipher: str) -> Plan:
    rule = {"name": "fragments" if turns else "sync", "quorum": CLIENTS, "minimum": CLIENTS}
    own = {"clip": 1000.0, "range": 0.5, "rule": rule, "optimizer": optimizer}
    parts = FRAGMENTS if turns else {"all": "*"}
    groups = [{"name": name, "pattern": pattern} | own for name, pattern in parts.items()]
    steps = LOCAL_STEPS // len(groups)
    body = {
        "name": "outer",
        "versions": versions,
        "cipher": {"name": cipher, "capacity": CLIENTS},
        "group": groups,
        "training": {"local_steps": steps},
    }
    return Plan(parse(PlanSection, body, "outer"))


def played(plan: Plan, model: nn.Module, steps: int) -> float:
    """The held-out loss of the last version."""
    clients = {name: Client(k, model, steps) for k, name in enumerate(client_names(CLIENTS))}
    with TemporaryDirectory(prefix="secureps-outer-") as folder:
        simulation = Simulation(plan, Cast(clients, UnsafeSeed(1)), Path(folder))
        simulation.run()
        made = {name: torch.from_numpy(each) for name, each in simulation.model().items()}
    last = copy.deepcopy(model)
    last.load_state_dict(made)
    return held_out_loss(last)


def bytes_of(plan: Plan, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Bytes of a client in a whole run, both ways; and of its largest update."""
    explained = explain(plan, sizes, assume_service(plan))
    assert explained.committee is not None
    ups = [(group.bytes_up or 0) + explained.committee.submission for group in explained.groups]
    downs = [group.bytes_down or 0 for group in explained.groups]
    return plan.section.versions * (sum(ups) + sum(downs)), max(ups)


def data_parallel(model: nn.Module, steps: int) -> float:
    inner = Inner(copy.deepcopy(model), steps)
    texts = [batches(part, number) for number, part in enumerate(PARTS)]
    for _ in range(steps):
        inner.step(*map(next, texts))
    return held_out_loss(inner.model)


def main() -> None:
    versions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    steps = versions * LOCAL_STEPS
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Transformer()
    plans = plan_of(1, {}, True, "plain")
    schema = {n: each.numpy() for n, each in model.state_dict().items()}
    values = sum(each.size for each in schema.values())
    print(values, {n: e.size for n, e in schema.items()}, len(CHARACTERS), plans.groups)
    way = 2 * FLOAT_BYTES * values
    rows: list[Row] = []

    def add(name: str, loss: float, total: int, most: int) -> None:
        whole = float(rows[0]["loss"]) if rows else loss
        rows.append(
            {
                "": name,
                "loss": loss,
                "above, %": 100 * (loss / whole - 1),
                "MB of a client": total / 1e6,
                "times fewer": steps * way / total,
                "largest update, kB": most / 1e3,
            }
        )
        print(rows[-1], flush=True)

    add("data-parallel", data_parallel(model, steps), steps * way, FLOAT_BYTES * values)
    nesterov = {"name": "nesterov", "learning_rate": 0.7, "momentum": 0.9}
    for name, optimizer, turns in (
        ("averaged", {}, False),
        ("Nesterov", nesterov, False),
        ("Nesterov, fragments", nesterov, True),
    ):
        plan = plan_of(versions, optimizer, turns, "plain")
        loss = played(plan, model, steps)
        sizes = {"all": values}
        add(name, loss, *bytes_of(plan_of(versions, optimizer, turns, "rlwe"), sizes if not turns else dict.fromkeys(FRAGMENTS, values // 4)))
    report("outer", f"{values:,} values, {steps:,} steps of {CLIENTS} clients", rows)


if __name__ == "__main__":
    main()
