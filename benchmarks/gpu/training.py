"""Training steps of models of about 25 million values, and what making them private adds to one.

A step is the difference of two trainings by `TorchTrainer.fit_held`, of which one takes some steps
more: records come from the host's memory, and kernels are those whose bits repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from benchmarks.gpu.codec import CODECS, made_of, memory_of, memory_row, plan_of, taken
from benchmarks.gpu.models import FEW, MODELS, Trained
from benchmarks.gpu.timing import Memory, Sizes, one_core, timed
from benchmarks.record_level import Narrow
from benchmarks.report import Row
from secureps.client.torch import TorchTrainer
from secureps.client.trainer import FitConfig, FitResult, HeldTensor


def _models(sizes: Sizes) -> Mapping[str, Trained]:
    return FEW if sizes.tiny else MODELS


def _fit(trainer: TorchTrainer, batch: int, steps: int) -> Callable[[], FitResult]:
    """A training from the same model."""
    start = trainer.parameters(seed=1)
    settings = {"lr": 0.01, "batch_size": batch, "local_steps": steps}
    return lambda: trainer.fit_held(start, FitConfig({"all": 1}, 1, settings))


def step_of(
    device: torch.device,
    model: Trained,
    make: Callable[[], nn.Module],
    steps: int,
    tries: int = 1,
) -> float:
    """Seconds of a step with the model's records, by the device's events.

    Args:
        steps: more of them in one training than in the other.
    """
    data = model.data(model.records)
    trainer = TorchTrainer(make, data, data, device=str(device))
    fits = [_fit(trainer, model.records, count) for count in (1, 1 + steps)]
    fits[0]()
    one, more = (min(timed(device, fit)[0] for _ in range(tries)) for fit in fits)
    return max(more - one, 1e-9) / steps  # where other work lies: of tiny models


def trained_of(device: torch.device, model: Trained) -> dict[str, HeldTensor]:
    """Tensors of a trained model, where it was trained."""
    data = model.data(model.records)
    trainer = TorchTrainer(model.make, data, data, device=str(device))
    found = _fit(trainer, model.records, 1)().parameters
    return {
        name: each if isinstance(each, HeldTensor) else HeldTensor(torch.from_numpy(each))
        for name, each in found.items()
    }


def training(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Steps of every model, in float32 and in bfloat16, beside one core's with a record each."""
    for name, model in _models(sizes).items():
        with one_core():
            one = replace(model, records=1)
            core = model.records * step_of(torch.device("cpu"), one, model.make, 2)
        kinds: dict[str, Callable[[], nn.Module]] = {
            "float32": model.make,
            "bfloat16": partial(_narrow, model),
        }
        for kind, make in kinds.items():
            step = step_of(device, model, make, sizes.steps, sizes.tries)
            yield {
                "model": f"{name}, {kind}",
                "weights": _weights(model),
                "records": model.records,
                "step, ms": 1e3 * step,
                "one core, ms": 1e3 * core,
                "times as fast": core / step,
            }


def _narrow(model: Trained) -> nn.Module:
    return Narrow(model.make())


def _weights(model: Trained) -> int:
    return sum(each.numel() for each in model.make().parameters())


def shares(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """For how much of a training step, in float32, a device is busy with its update."""
    for name, model in _models(sizes).items():
        step = step_of(device, model, model.make, sizes.steps, sizes.tries)
        made = made_of(plan_of(CODECS["16 bits"]), trained_of(device, model))
        update, small, _ = taken(device, made, sizes.tries)
        codec = update[0] + small[0]
        yield {
            "model": name,
            "step, ms": 1e3 * step,
            "update and integers, ms": 1e3 * codec,
            "of a step": codec / step,
            "of 100 steps": codec / (100 * step),
        }


def memory(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """The most that a training took, and an update beyond the trained model and its values."""
    for name, model in _models(sizes).items():
        peak = Memory(device)
        tensors = trained_of(device, model)
        training = peak.peak
        size, beyond = memory_of(device, tensors)
        yield memory_row(name, size, training, beyond)
        del tensors
