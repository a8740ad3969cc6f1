"""A client of two processes in a simulated federation: `python -m tests.kits.ranked_client`.

Every sum of its training is exact in float32, in whatever order: it has the bits of one process.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from secureps.client.torch import TorchTrainer
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ScriptFailed
from secureps.messages.encoding import payload_digest
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
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


class Layers(nn.Sequential):
    """Two layers, and a buffer; several processes hold a share of each tensor."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 3), nn.Linear(3, 1))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))
        for each in self.parameters():
            nn.init.constant_(each, 0.5)

    def shards(self) -> list[nn.Module]:
        return [self[0]]


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "whole": zeros,
    "fetched": zeros,
    "shares": Layers,
}


class Ranked(TorchTrainer):
    """Keeps a digest of every model that it trained, and how often it evaluated one."""

    def __init__(self, model: str = "whole") -> None:
        pairs: Any = [*zip(X, Y, strict=True)]
        given: Any = {"train": (X, Y)}
        if model == "fetched":
            given = {"train": DataLoader(pairs, num_workers=1), "optimizer": torch.optim.AdamW}
        held_out, loss = (X, Y), functional.mse_loss
        super().__init__(
            MODELS[model], held_out=held_out, loss=loss, metrics={}, device="cpu", **given
        )
        self.trained: list[str] = []
        self.evaluated = 0

    def _train_model(self, *given: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        state, metrics = super()._train_model(*given)
        self.trained.append(digest_of({n: t.numpy() for n, t in state.items()}))
        return state, metrics

    def _evaluate(self, *given: Any) -> EvaluateResult:
        self.evaluated += 1
        return super()._evaluate(*given)


class Still:
    """A trainer of the same model in NumPy, which learns nothing."""

    def __init__(self, parameters: Tensors) -> None:
        self._parameters = parameters

    def parameters(self, seed: int) -> Tensors:
        return {name: each.copy() for name, each in self._parameters.items()}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        return FitResult(parameters, 5, {}, 2)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        raise AssertionError("nobody evaluates here")


def played(trainer: TorchTrainer) -> list[Any]:
    """The digest of the model of a federation in which it is one of three clients, and its loss."""
    still = Still(trainer.parameters(1))
    plan = small_plan(versions=1, local=[], group=[GROUP], training=SETTINGS)
    trainers = dict.fromkeys(CLIENTS, still) | {CLIENTS[0]: trainer}
    with TemporaryDirectory() as folder:
        simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), Path(folder))
        simulation.run(lambda: finished(simulation))
        found = simulation.model()
        return [digest_of(found), trainer.evaluate(found).loss]


class Failing(Ranked):
    """Fails in an evaluation, before the collectives that the others wait in."""

    def _evaluate(self, *given: Any) -> EvaluateResult:
        raise MemoryError("no memory left")


def ends(rank: int, failing: int) -> list[str]:
    """What a rank says where one fails alone in an evaluation: to that call, and to another."""
    trainer, said = (Failing if rank == failing else Ranked)("shares"), list[str]()
    parameters = trainer.parameters(1)
    lead = (trainer.evaluate, lambda given: trainer.fit(given, FitConfig({}, 1, SETTINGS)))
    for call in lead if rank == 0 else [lambda given: trainer.follow()]:
        try:
            call(parameters)
        except (MemoryError, ScriptFailed) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def begin(rank: int, store: str) -> None:
    wait = timedelta(minutes=1)
    distributed.init_process_group("gloo", f"file://{store}", wait, rank=rank, world_size=2)


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    begin(rank, store)
    for kind in MODELS:
        trainer, made = Ranked(kind), list[Any]()
        reason = trainer.follow()
        if reason is None:
            made = played(trainer)
            trainer.dismiss()
        told = {"reason": reason, "made": made, "trained": trainer.trained}
        print(json.dumps(told | {"evaluated": trainer.evaluated}))
    distributed.destroy_process_group()
    for failing in (0, 1):
        begin(rank, f"{store}-{failing}")
        print(json.dumps(ends(rank, failing)))
    # gloo's threads of a group that failed are still there, and one that lets go of a tensor while
    # the interpreter ends would abort this process (pytorch #38228)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
