"""A client of two processes in a simulated federation: `python -m tests.kits.ranked_client`.

Every sum of its training is exact in float32, in whatever order: it has the bits of one process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional

from secureps.client.torch import TorchTrainer
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.encoding import payload_digest
from secureps.run.party_names import client_names
from secureps.run.simulate.simulation import Cast, Simulation
from tests.kits.federations import Tensors, finished, small_plan

CLIENTS = client_names(3)
X = np.array([[1, 2, 0, 1], [0, 1, 1, 2], [2, 0, 1, 0], [1, 1, 1, 1], [0, 2, 1, 0]], np.float32)
Y = np.array([[2], [1], [3], [0], [4]], np.float32)
"""Batches of four records and of one, of which rank 1 has no share."""
GROUP = {
    "clip": 64.0,
    "range": 64.0,
    "most_examples": 32,
    "rule": {"quorum": 3, "minimum": 2, "deadline": 10.0},
}
SETTINGS = {"lr": 0.25, "batch_size": 4, "local_steps": 2}


def zeros() -> nn.Module:
    layer = nn.Linear(4, 1)
    for each in layer.parameters():
        nn.init.zeros_(each)
    return layer


def digest_of(tensors: Mapping[str, Any]) -> str:
    return payload_digest(b"".join(np.asarray(tensors[n]).tobytes() for n in sorted(tensors))).hex()


class Ranked(TorchTrainer):
    """Keeps a digest of every model that it trained."""

    def __init__(self) -> None:
        super().__init__(zeros, (X, Y), (X, Y), functional.mse_loss, {}, "cpu")
        self.trained: list[str] = []

    def _trained(self, *given: Any) -> tuple[nn.Module, dict[str, float]]:
        module, metrics = super()._trained(*given)
        self.trained.append(digest_of({n: t.numpy() for n, t in module.state_dict().items()}))
        return module, metrics


class Still:
    """A trainer of the same model in NumPy, which learns nothing."""

    def parameters(self, seed: int) -> Tensors:
        return {"weight": np.zeros((1, 4), np.float32), "bias": np.zeros(1, np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        return FitResult(parameters, 5, {}, 2)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        raise AssertionError("nobody evaluates here")


def played(trainer: TorchTrainer) -> str:
    """The digest of the model of a federation in which it is one of three clients."""
    plan = small_plan(versions=1, local=[], group=[GROUP], training=SETTINGS)
    trainers = dict.fromkeys(CLIENTS, Still()) | {CLIENTS[0]: trainer}
    with TemporaryDirectory() as folder:
        simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), Path(folder))
        simulation.run(lambda: finished(simulation))
        return digest_of(simulation.model())


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    trainer, model = Ranked(), ""
    reason = trainer.follow()
    if reason is None:
        model = played(trainer)
        trainer.dismiss()
    print(json.dumps({"reason": reason, "model": model, "trained": trainer.trained}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
