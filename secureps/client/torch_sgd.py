"""SGD on a PyTorch model, and DP-SGD with the noise of Opacus.

DP-SGD is algorithm 1 of Abadi et al. 2016. Records' gradients are clipped by ghost clipping
(`ghost_clipping`); those of recurrent layers are made and clipped by Opacus.
Opacus is imported at the first private step; it costs more than a second. What must not live
here: seeds, models, and what a plan says.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from secureps.client.ghost_clipping import (
    Layer,
    add_clipped,
    ghost_layers,
    refuse_outside,
    values_made,
    watched,
    wide,
)
from secureps.client.gradient_norms import VALUES
from secureps.client.record_checks import Kept, nothing_written, refuse_mixing, refuse_model
from secureps.client.record_loss import PROBED, Measure, refuse_mixing_loss, total_loss
from secureps.client.trainer import RecordPrivacy
from secureps.errors import ConfigError, NotFinite, PlanRefused
from secureps.wording import one_line

MICROBATCH = 1024
"""The most records whose gradients are computed at a time: memory does not grow with a sample."""


@dataclass(frozen=True, eq=False)
class Task:
    """The data of one training: x and y by record, the loss, the device."""

    x: Tensor
    y: Tensor
    loss: Measure
    device: torch.device

    def batch(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The records at these indices, on the device."""
        chosen = torch.from_numpy(index)
        return self.x[chosen].to(self.device), self.y[chosen].to(self.device)


def demand_finite(loss: Tensor) -> Tensor:
    """Returns the loss; raises NotFinite if any of it is NaN or infinite."""
    if not bool(torch.isfinite(loss.detach()).all()):
        raise NotFinite(
            f"training loss is {float(loss.detach().mean())}; lower lr, or look for NaN in this "
            "holder's records"
        )
    return loss


def descend(
    module: nn.Module, sgd: torch.optim.SGD, task: Task, batches: Iterator[NDArray[np.int64]]
) -> float:
    """Plain SGD over batches of record numbers; returns the mean loss."""
    losses = []
    for index in batches:
        sgd.zero_grad()
        x, y = task.batch(index)
        loss = demand_finite(task.loss(module(x), y))
        torch.autograd.backward(loss)
        losses.append(float(loss.detach()))
        sgd.step()
    return sum(losses) / len(losses)


def descend_privately(
    module: nn.Module,
    sgd: torch.optim.SGD,
    privacy: RecordPrivacy,
    task: Task,
    steps: int,
    generators: tuple[np.random.Generator, Sequence[torch.Generator]],
) -> None:
    """Takes private steps, each on its own Poisson sample of the records.

    Args:
        generators: one for the samples, and several for the noise, which is the sum of theirs.
    Raises:
        PlanRefused: the model or the loss mixes records, changes what leaves without noise, or has
            no per-record gradients.
        NotFinite: the loss became NaN or infinite.
    """
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    rng, noise = generators
    refuse_model(module)
    kept = Kept(module)
    _refuse_loss(module, task)
    kept.refuse_changes()
    refuse_mixing(module, task.loss, *task.batch(_three(task.x)))
    kept.refuse_changes()
    kept.leave_trained()
    records = len(task.x)
    step: Callable[[Any, NDArray[np.int64]], None]
    if ghost_fits(module):
        ghosts = Ghosts(module, ghost_layers(module), task, privacy.max_grad_norm)
        own_step = partial(_ghost_step, ghosts, records_at_a_time(ghosts))
        step, kind = own_step, DPOptimizerFastGradientClipping
    else:
        try:
            wrapped = GradSampleModule(module, loss_reduction="sum")
        except NotImplementedError as error:
            raise PlanRefused(f"record privacy: {one_line(error)}") from None
        step, kind = partial(_per_record_step, wrapped, task), DPOptimizer
    optimizer = _noisy(kind, sgd, privacy, records, noise)
    with warnings.catch_warnings():
        # Opacus hooks the first layer, whose input needs no gradient: as intended
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for _ in range(steps):
            step(optimizer, np.flatnonzero(rng.random(records) < privacy.sample_rate))
            kept.refuse_changes()  # now: the next step may find it as it was


def _refuse_loss(module: nn.Module, task: Task) -> None:
    """Refuses a loss that lets records change each other's gradients, by some of them."""
    index = np.unique(np.linspace(0, len(task.x) - 1, PROBED).astype(np.int64))
    x, y = task.batch(index)
    with torch.no_grad():
        outputs = module(x)
    refuse_mixing_loss(task.loss, outputs, y)


def _three(x: Tensor) -> NDArray[np.int64]:
    """Three records that differ, if three of the first do: [3]."""
    x = x[:MICROBATCH].reshape(min(len(x), MICROBATCH), -1)
    second = int((x != x[0]).any(dim=1).int().argmax())
    third = int(((x != x[0]).any(dim=1) & (x != x[second]).any(dim=1)).int().argmax())
    return np.array([0, second, third])


def ghost_fits(module: nn.Module) -> bool:
    """Whether ghost clipping works for a model: not where it trains layers of packed records."""
    from opacus.layers.dp_rnn import RNNLinear

    packed = (layer for layer in module.modules() if isinstance(layer, RNNLinear))
    return not any(each.requires_grad for layer in packed for each in layer.parameters())


def _per_record_step(module: Any, task: Task, optimizer: Any, index: NDArray[np.int64]) -> None:
    """Takes one step on these records, each of whose gradients is computed, clipped and added.

    Without any records it is a step of noise.
    """
    optimizer.zero_grad()
    if len(index):
        x, y = task.batch(index)
        with nothing_written(module._module):
            torch.autograd.backward(demand_finite(total_loss(task.loss, module(x), y)))
    else:
        for each in optimizer.params:
            each.grad_sample = torch.zeros((0, *each.shape), device=task.device)
    optimizer.step()


@dataclass(frozen=True, eq=False)
class Ghosts:
    """What ghost clipping needs: a model, its layers, the task, and the bound on each record."""

    module: nn.Module
    layers: Sequence[Layer]
    task: Task
    bound: float

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of the records' losses."""
        return total_loss(self.task.loss, self.module(x), y)


def records_at_a_time(ghosts: Ghosts) -> int:
    """As many records as gradients fit in memory, by what the layers do with one, the first.

    A layer whose first dimension counts something else, places say, is one whose first dimension
    is not 1 here; among a batch of just as many records it would not show.

    Raises:
        PlanRefused: for what ghost clipping does not see.
    """
    x, y = ghosts.task.batch(np.arange(1))
    with watched(ghosts.layers) as uses:
        loss = ghosts.loss(x, y)
    refuse_outside(loss, uses, ghosts.module)
    return min(MICROBATCH, max(1, VALUES // max(1, values_made(loss, uses))))


def _zeros(parameters: Sequence[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
    return {each: torch.zeros_like(each, dtype=wide(each.dtype)) for each in parameters}


def _ghost_step(ghosts: Ghosts, most: int, optimizer: Any, index: NDArray[np.int64]) -> None:
    """Takes one step on these records; without any it is a step of noise."""
    optimizer.zero_grad()
    sums = _zeros(optimizer.params)
    with nothing_written(ghosts.module):
        for start in range(0, len(index), most):
            part = index[start : start + most]
            with watched(ghosts.layers) as uses:
                loss = demand_finite(ghosts.loss(*ghosts.task.batch(part)))
            add_clipped(loss, uses, len(part), ghosts.bound, sums)
    for each in optimizer.params:
        each.grad = sums[each].to(each.dtype)
    optimizer.step()


def _noisy(
    kind: Any,
    sgd: torch.optim.SGD,
    privacy: RecordPrivacy,
    records: int,
    noise: Sequence[torch.Generator],
) -> Any:
    """Makes an Opacus optimizer whose noise is a sum of independent Gaussians.

    Each has its share of the variance and a generator of its own: an attacker who wants to
    subtract the noise has to find all of their seeds.
    """

    class NoiseSumOptimizer(kind):  # type: ignore[misc]
        def add_noise(self) -> None:
            for self.generator in noise:
                super().add_noise()
                for each in self.params:
                    each.summed_grad = each.grad

    return NoiseSumOptimizer(
        sgd,
        noise_multiplier=privacy.noise_multiplier / math.sqrt(len(noise)),
        max_grad_norm=privacy.max_grad_norm,
        expected_batch_size=privacy.expected_batch(records),
    )


def refuse_compiled(module: nn.Module) -> None:
    """Refuses a model that torch.compile has compiled, as a whole or in part (ConfigError).

    Which kernels are made may depend on what the process computed before, and on a GPU on how long
    they took; nobody has shown that a client which was killed trains to the same bits.
    """
    for name, layer in module.named_modules():
        # `torch.compile(layer)` wraps it, and names its tensors anew; `layer.compile()` does not
        if hasattr(layer, "_orig_mod") or layer._compiled_call_impl is not None:
            own = f"layer {name.replace('_orig_mod.', '')!r}" if name else "the model"
            raise ConfigError(
                f"{own} is compiled, and TorchTrainer trains no compiled model: its bits need not "
                "repeat after a restart; leave out torch.compile"
            )


def refuse_float_classes(loss: Measure, targets: Tensor, name: str) -> None:
    """Refuses floats, one a record, where the loss wants classes (ConfigError)."""
    if loss is functional.cross_entropy and targets.is_floating_point() and targets.ndim == 1:
        raise ConfigError(
            f"{name}: targets are {str(targets.dtype).removeprefix('torch.')}, and the default "
            "loss, cross_entropy, wants classes: make them int64, or, to learn numbers, give "
            "TorchTrainer a loss, such as loss=torch.nn.functional.mse_loss"
        )


@contextmanager
def shapes_agree() -> Iterator[None]:
    """Makes an error of torch's warning that outputs [n, 1] and targets [n] are not of one shape.

    A loss broadcasts them to [n, n], and every record learns all records' targets.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Using a target size", UserWarning)
        yield
