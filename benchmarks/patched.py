"""A Hugging Face `Trainer` in a federation by `ps.patch`, beside plain FedAvg in floats.

    python -m benchmarks.patched [SEEDS]

Five holders train a GPT-2 of 31,000 values, two layers of width 32, to guess the next byte of the
Python sources of an installed package each. Both ways take the same script, batches, Adam and
schedule; only the exchange differs: encrypted, clipped and rounded by `ps.patch`, or a mean of
floats in memory. The last models are judged on text that nobody trained on.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset, RandomSampler

import secureps as ps
from benchmarks.report import Row, mean_interval, report
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.policy.plan import Plan
from tests.kits.disk_federation import DiskFederation

PACKAGES = ("numpy", "torch", "sklearn", "matplotlib", "pydantic")
BYTES, LENGTH, WORDS = 200_000, 32, 128
HELD_OUT = 400
VERSIONS, STEPS = 8, 20
SEEDS = 5
NAMES = tuple(f"client-{number:02d}" for number in range(len(PACKAGES)))
PLAN = {
    "name": "patched",
    "versions": VERSIONS,
    "shards": 2,
    "cipher": {"name": "rlwe", "holders": 3, "threshold": 2, "capacity": 8},
    "group": [
        {
            "clip": 20.0,
            "range": 0.25,
            "weighting": "uniform",
            "rule": {"quorum": 5, "minimum": 5, "start": 5, "deadline": 600.0},
            "optimizer": {"name": "sgd", "learning_rate": 1.0},
        }
    ],
    "training": {"local_steps": STEPS},
}


class Text(Dataset[dict[str, Tensor]]):
    """Pieces of a package's sources, of 32 bytes each."""

    def __init__(self, package: str, held_out: bool = False) -> None:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        files = sorted(Path(spec.origin).parent.rglob("*.py"))
        pieces, size = list[bytes](), 0
        for path in files:
            if size >= BYTES:
                break
            pieces.append(path.read_bytes())
            size += len(pieces[-1])
        values = np.frombuffer(b"".join(pieces)[:BYTES], np.uint8).astype(np.int64) % WORDS
        rows = torch.from_numpy(values[: len(values) // LENGTH * LENGTH].reshape(-1, LENGTH))
        self.rows = rows[-HELD_OUT:] if held_out else rows[:-HELD_OUT]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[at], "labels": self.rows[at]}


def gpt2(seed: int) -> Any:
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """Its batches are drawn by its own seed, because five of them share this process."""

    batches: int

    def _get_train_sampler(self, *_: Any) -> RandomSampler:
        drawn = torch.Generator().manual_seed(self.batches)
        return RandomSampler(self.train_dataset, generator=drawn)


class Floats:
    """FedAvg in memory: holders wait for each other, and get the mean of their models."""

    def __init__(self) -> None:
        self._meeting = threading.Barrier(len(PACKAGES), action=self._average)
        self._given: dict[int, Mapping[str, Any]] = {}
        self._mean: dict[str, Any] = {}

    def join(self, *_: Any, initial: Any, **rest: Any) -> _FloatSession:
        return _FloatSession(self, initial)

    def meet(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self._given[threading.get_ident()] = given
        self._meeting.wait()
        return self._mean

    def _average(self) -> None:
        given = list(self._given.values())
        self._mean = {n: np.mean([each[n] for each in given], 0, np.float64) for n in given[0]}
        self._mean = {name: each.astype(np.float32) for name, each in self._mean.items()}


class _FloatSession:
    def __init__(self, floats: Floats, initial: Any) -> None:
        self._floats, self._initial, self._version = floats, initial, 0
        self.model: dict[str, Any] = {}

    def __enter__(self) -> _FloatSession:
        self.model = {name: each.detach().numpy().copy() for name, each in self._initial.items()}
        return self

    def __exit__(self, *_: object) -> None: ...

    def pull(self) -> ps.PulledModel | None:
        if self._version == VERSIONS:
            return None
        config = ps.FitConfig({"all": self._version}, self._version + 1, {})
        return ps.PulledModel(self.model, config)

    def push(self, parameters: Mapping[str, Any], **_: Any) -> None:
        self.model, self._version = self._floats.meet(parameters), self._version + 1


@contextmanager
def exchange(plan: Plan, folder: Path, private: bool) -> Iterator[dict[str, Any]]:
    """Where a holder takes part: a federation of real servers, or a mean in memory."""
    if not private:
        with patch("secureps.client.patch.join", Floats().join):
            yield {"kit": folder, "plan": plan, "server": "127.0.0.1:1"}
        return
    federation = DiskFederation(plan, folder, len(NAMES), lambda number: None)  # type: ignore[arg-type, return-value]
    federation.clients = NAMES[:1]
    with federation:
        federation.clients = NAMES
        yield {"kit": federation.directory, "plan": plan, "server": federation.server}


def trained(seed: int, private: bool) -> Any:
    """The last model of a run."""
    plan = Plan(parse(PlanSection, PLAN, "patched"))

    def make(number: int) -> Trainer:
        arguments = transformers.TrainingArguments(
            f"{folder}/{number}",
            max_steps=VERSIONS * STEPS,
            per_device_train_batch_size=16,
            learning_rate=1e-2,
            warmup_steps=STEPS,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        made = Trainer(models[number], arguments, train_dataset=Text(PACKAGES[number]))
        made.batches = 1000 * seed + number
        return made

    def holder(number: int) -> None:
        torch.set_num_threads(1)
        session = ps.patch(trainers[number], **where, name=NAMES[number])
        try:
            trainers[number].train()
        except BaseException:  # the others would wait for it
            traceback.print_exc()
            os._exit(1)
        assert not private or session.finished == f"all {VERSIONS} versions are made"

    models = [gpt2(seed) for _ in PACKAGES]
    with TemporaryDirectory() as folder:
        # before any server: meanwhile accelerate empties the environment, which gRPC's threads read
        trainers = [make(number) for number in range(len(PACKAGES))]
        with (
            exchange(plan, Path(folder), private) as where,
            ThreadPoolExecutor(len(PACKAGES)) as threads,
        ):
            list(threads.map(holder, range(len(PACKAGES))))
    return models[0]


def judge(model: Any) -> tuple[float, float]:
    """The share of next bytes that are guessed, in percent, and the loss."""
    rows = torch.cat([Text(package, held_out=True).rows for package in PACKAGES])
    with torch.no_grad():
        found = model.eval()(input_ids=rows, labels=rows)
    right = found.logits[:, :-1].argmax(-1) == rows[:, 1:]
    return 100 * right.double().mean().item(), found.loss.item()


def main(seeds: int) -> None:
    rows: list[Row] = []
    for seed in range(seeds):
        ours, theirs = judge(trained(seed, True)), judge(trained(seed, False))
        scores = {"patched %": ours[0], "floats %": theirs[0], "difference": ours[0] - theirs[0]}
        rows.append({"seed": str(seed), **scores, "loss": ours[1], "loss of floats": theirs[1]})
        print(rows[-1], flush=True)
    apart, within = mean_interval([float(row["difference"]) for row in rows])
    spread = statistics.stdev(float(row["floats %"]) for row in rows)
    title = (
        f"{apart:+.3f} points of accuracy, +- {within:.3f} (95 %); floats alone spread {spread:.2f}"
    )
    report("patched", title, rows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS)
