"""SGD on a PyTorch model, and DP-SGD by Opacus' own clipping and noise.

DP-SGD is algorithm 1 of Abadi et al. 2016. Where the model and the loss allow it, gradients are
clipped by ghost clipping (Li et al. 2021; Bu et al. 2022): the norms of the records' gradients are
computed without the gradients, in a second backward pass; elsewhere by per-record gradients.
Opacus is imported at the first private step; it costs more than a second. What must not live
here: seeds, models, and what a plan says.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from secureps.client.trainer import RecordPrivacy
from secureps.errors import ConfigError, NotFinite, PlanRefused

Measure = Callable[..., Tensor]
"""(outputs, targets) -> a scalar, float32 or float64; a loss is a mean over the records."""


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
        PlanRefused: a layer mixes records, or changes a buffer, or has no per-record gradient.
        NotFinite: the loss became NaN or infinite.
    """
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    rng, noise = generators
    refuse_mixing_layers(module)
    records = len(task.x)
    before = {name: each.detach().clone() for name, each in module.named_buffers()}
    try:
        if ghost_fits(module, task.loss):
            wrapped: Any = GradSampleModuleFastGradientClipping(
                module, loss_reduction="mean", max_grad_norm=privacy.max_grad_norm
            )
            step, kind = _ghost_step, DPOptimizerFastGradientClipping
        else:
            wrapped = GradSampleModule(module, loss_reduction="mean")
            step, kind = _per_record_step, DPOptimizer
        optimizer = _noisy(kind, sgd, privacy, records, noise)
    except NotImplementedError as error:
        raise PlanRefused(f"record privacy: {' '.join(str(error).split())}") from None
    with warnings.catch_warnings():
        # Opacus hooks the first layer, whose input needs no gradient: as intended
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for _ in range(steps):
            index = np.flatnonzero(rng.random(records) < privacy.sample_rate)
            step(wrapped, optimizer, task, index)
    # A statistic of the records in a buffer would leave the client without clip and noise.
    for name, each in module.named_buffers():
        if not torch.equal(each, before[name]):
            raise PlanRefused(
                f"record privacy: training changes buffer {name!r}, which would leave "
                "without noise; use a layer that keeps no statistics (GroupNorm)"
            )


def ghost_fits(module: nn.Module, loss: Measure) -> bool:
    """Whether ghost clipping works for a model and a loss.

    Every layer with parameters of its own must be one that Opacus has a formula for, no
    parameter may belong to two of them, and the loss must tell records apart (`reduction`, as
    the losses of `torch.nn.functional` have).
    """
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    owners: Counter[int] = Counter()
    for layer in module.modules():
        own = [each for each in layer.parameters(recurse=False) if each.requires_grad]
        if own and type(layer) not in GradSampleModuleFastGradientClipping.NORM_SAMPLERS:
            return False
        owners.update(id(each) for each in own)
    if not owners or max(owners.values()) > 1:
        return False
    try:
        return "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return False


def _per_record_step(module: Any, optimizer: Any, task: Task, index: NDArray[np.int64]) -> None:
    """Takes one step on these records, each of whose gradients is computed, clipped and added.

    Without any records it is a step of noise.
    """
    optimizer.zero_grad()
    if len(index):
        x, y = task.batch(index)
        torch.autograd.backward(demand_finite(task.loss(module(x), y)))
    else:
        for each in optimizer.params:
            each.grad_sample = torch.zeros((0, *each.shape), device=task.device)
    optimizer.step()


def _ghost_step(module: Any, optimizer: Any, task: Task, index: NDArray[np.int64]) -> None:
    """Takes one step by the records' norms, then by the gradient of the reweighted loss."""
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    optimizer.zero_grad()
    if len(index):
        x, y = task.batch(index)
        for each in optimizer.params:  # of a layer that this batch does not reach
            each._norm_sample = torch.zeros(len(index), device=task.device)
        losses = demand_finite(task.loss(module(x), y, reduction="none"))
        # A record's loss may be a vector, of which `reduction="mean"` takes the mean.
        losses = losses.reshape(len(index), -1).mean(dim=1)
        DPTensorFastGradientClipping(module, optimizer, losses, "mean").backward()
    for each in optimizer.params:
        if each.grad is None or not len(index):
            each.grad = torch.zeros_like(each)
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


_INSTEAD = (
    "; what mixes records stays refused where the plan keeps it local; GroupNorm or LayerNorm do "
    "not mix them, and opacus.validators.ModuleValidator.fix(model) puts GroupNorm in"
)


def refuse_mixing_layers(module: nn.Module) -> None:
    """Refuses layers without per-record gradients (BatchNorm), trainable or not.

    One that mixes records would let a record change the gradients of others, past its own clip.

    Raises:
        PlanRefused: there is one; names it.
    """
    from opacus import layers
    from opacus.validators import ModuleValidator

    for name, layer in module.named_modules():
        check = ModuleValidator.VALIDATORS.get(type(layer))
        errors = [] if check is None else check(layer)
        if errors:
            own = f"DP{type(layer).__name__}"  # DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
            text = f"; take opacus.layers.{own} in its place, which has the same arguments"
            raise PlanRefused(
                f"record privacy: layer {name or 'the model'!r} ({type(layer).__name__}) cannot "
                f"be trained under DP-SGD: {' '.join(str(errors[0]).split())}"
                f"{text if hasattr(layers, own) else _INSTEAD}"
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
