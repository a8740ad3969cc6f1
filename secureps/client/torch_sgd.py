"""SGD on a PyTorch model, and DP-SGD with the noise of Opacus.

DP-SGD is algorithm 1 of Abadi et al. 2016; `private_sum` clips records' gradients and adds them up.
Opacus is imported at the first private step; it costs more than a second. What must not live
here: seeds, models, and what a plan says.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from secureps.client.private_sum import made_records, private_sum, zeros
from secureps.client.record_checks import Kept, nothing_written, refuse_model
from secureps.client.record_loss import Measure
from secureps.client.trainer import RecordPrivacy
from secureps.errors import NotFinite, ScriptFailed

log = logging.getLogger("secureps")


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
    """Takes private steps, each on its own Poisson sample of the records; without any, of noise.

    A record without a finite loss and gradient adds nothing. How often that was so is logged here
    and told to nobody: no noise covers it.

    Args:
        generators: one for the samples, and several for the noise, which is the sum of theirs.
    Raises:
        PlanRefused: the loss mixes records, or the model does not work for one alone, has no
            gradients by record, or changes what leaves without noise.
    """
    rng, noise = generators
    refuse_model(module)
    kept = Kept(module)
    made = tuple(each.to(task.device) for each in made_records(task.x, task.y))
    gradients = private_sum(module, task.loss, (made[0], made[1]), privacy.max_grad_norm)
    kept.refuse_changes()
    kept.leave_trained()
    records = len(task.x)
    optimizer = _noisy(sgd, privacy, records, noise)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)  # of vmap
        for _ in range(steps):
            index = np.flatnonzero(rng.random(records) < privacy.sample_rate)
            optimizer.zero_grad()
            sums = zeros(optimizer.params)
            with nothing_written(module):
                gradients.add(task.batch, index, sums)
            for each in optimizer.params:
                each.grad = sums[each].to(each.dtype)
            optimizer.step()
            kept.refuse_changes()  # now: the next step may find it as it was
    if gradients.left_out:
        log.warning(
            "record privacy: in %d steps %d records that were drawn counted as nothing, because "
            "their loss or gradient is not finite, or the model fails for them: look for NaN, "
            "infinities, huge values and labels out of range; this line stays here",
            steps,
            gradients.left_out,
        )


def _noisy(
    sgd: torch.optim.SGD,
    privacy: RecordPrivacy,
    records: int,
    noise: Sequence[torch.Generator],
) -> Any:
    """Makes an Opacus optimizer whose noise is a sum of independent Gaussians.

    Each has its share of the variance and a generator of its own: an attacker who wants to
    subtract the noise has to find all of their seeds.
    """

    from opacus.optimizers import DPOptimizerFastGradientClipping

    class NoiseSumOptimizer(DPOptimizerFastGradientClipping):  # type: ignore[misc]
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
    """Refuses a model that torch.compile has compiled, as a whole or in part (ScriptFailed).

    Which kernels are made may depend on what the process computed before, and on a GPU on how long
    they took; nobody has shown that a client which was killed trains to the same bits.
    """
    for name, layer in module.named_modules():
        # `torch.compile(layer)` wraps it, and names its tensors anew; `layer.compile()` does not
        if hasattr(layer, "_orig_mod") or layer._compiled_call_impl is not None:
            own = f"layer {name.replace('_orig_mod.', '')!r}" if name else "the model"
            raise ScriptFailed(
                f"{own} is compiled, and TorchTrainer trains no compiled model: its bits need not "
                "repeat after a restart; leave out torch.compile"
            )


def refuse_float_classes(loss: Measure, targets: Tensor, name: str) -> None:
    """Refuses floats, one a record, where the loss wants classes (ScriptFailed)."""
    if loss is functional.cross_entropy and targets.is_floating_point() and targets.ndim == 1:
        raise ScriptFailed(
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
