"""The private sum: clipped gradients of a sample's records, each of which the model sees alone.

The model is called through `torch.func.vmap`, under which its code sees one record at a time, so no
record changes what another one adds, in batches of any size. A model that vmap cannot take is
called for one record after the other.

A record adds nothing if its loss or its gradient is not finite, or if the model or the loss fails
for it. A training that ended there would tell everybody of this record, without any noise.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from secureps.client.ghost_clipping import (
    VALUES,
    Layer,
    Part,
    Sums,
    Use,
    by_parameter,
    clipped_sum,
    ghost_layers,
    refuse_outside,
    values_made,
    watched,
    wide,
)
from secureps.client.record_checks import (
    Measure,
    of_tensors,
    record_losses,
    refuse_mixing_loss,
    refuse_other_rows,
    refuse_reentrant,
    tensors_in,
)
from secureps.errors import PlanRefused
from secureps.wording import one_line

log = logging.getLogger("secureps")

MICROBATCH = 1024
"""The most records whose gradients are computed together, which bounds memory."""

MADE = 16
"""Made records on which model and loss are tried before the first step."""

Batch = Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]]
"""Indices -> the inputs and targets of these records, on the model's device."""

Parts = Mapping[nn.Parameter, Sequence[Part]]


def made_records(x: Tensor, y: Tensor, count: int = MADE) -> tuple[Tensor, Tensor]:
    """Makes `count` records of the same shapes and dtypes that no data holder has, on the CPU.

    Floats lie in [0, 1), whole numbers are 0 and 1. Models are tried on these before the first
    step, because the outcome of a trial must not depend on a record.
    """
    generator = torch.Generator().manual_seed(1)

    def made(like: Tensor) -> Tensor:
        shape = (count, *like.shape[1:])
        if like.is_floating_point() or like.is_complex():
            return torch.rand(shape, generator=generator, dtype=like.dtype)
        return torch.randint(0, 2, shape, generator=generator).to(like.dtype)

    return made(x), made(y)


@dataclass(frozen=True, eq=False)
class Together:
    """Gradients of many records in one pass: each layer's output has a zero added by record.

    The loss's gradients by these zeros, `taps`, and the layers' inputs give the records' gradients
    (`ghost_clipping`). `uses` are those of the layers in a pass of one record.
    """

    module: nn.Module
    loss: Measure
    layers: Sequence[Layer]
    uses: Sequence[Use]

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Parts]:
        """The losses of these records [records], and the parts of their gradients."""
        outputs, inputs, taps = self._pass(x)
        losses = record_losses(self.loss, outputs, y)
        of = [at for at, use in enumerate(self.uses) if use.edge is not None]
        grads = torch.autograd.grad(losses.sum(), [taps[at] for at in of], allow_unused=True)
        seen = [
            (self.uses[at].layer, inputs[at].detach().flatten(0, 1), grad.flatten(0, 1))
            for at, grad in zip(of, grads, strict=True)
            if grad is not None  # else nothing that came out of the layer reaches the loss
        ]
        return losses.detach(), by_parameter(seen)

    def outputs(self, x: Tensor) -> Any:
        """The model's outputs for these records; records come first."""
        return self._pass(x)[0]

    def _pass(self, x: Tensor) -> tuple[Any, Sequence[Tensor], Sequence[Tensor]]:
        """Outputs by record, each layer's input [records, 1, ...], and the taps."""
        taps = tuple(
            torch.zeros((), dtype=use.dtype, device=x.device)
            .expand(len(x), *use.shape)
            .requires_grad_(use.edge is not None)
            for use in self.uses
        )
        # vmap runs a CPU's fused attention record by record, and refuses that of CUDA.
        try:
            with sdpa_kernel(SDPBackend.MATH):
                outputs, inputs = torch.func.vmap(self._one, randomness="different")(x, taps)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise _refuse_change(one_line(error)) from error
        return outputs, inputs, taps

    def _one(self, x: Tensor, taps: Sequence[Tensor]) -> tuple[Any, Sequence[Tensor]]:
        with watched(self.layers, taps) as uses:
            outputs = self.module(x[None])
        if len(uses) != len(taps):
            raise _refuse_change(f"it calls {len(uses)} layers in place of {len(taps)}")
        refuse_other_rows(outputs, 1)
        return of_tensors(outputs, itemgetter(0)), tuple(use.x for use in uses)


@dataclass(frozen=True, eq=False)
class Alone:
    """Gradients of one record after the other, by plain autograd."""

    module: nn.Module
    loss: Measure

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Parts]:
        """The loss of this one record [1], and its gradients."""
        own = [each for each in self.module.parameters() if each.requires_grad]
        try:
            losses = record_losses(self.loss, self.module(x), y)
        except PlanRefused as error:  # the outputs may depend on the record's values
            raise ValueError(str(error)) from error
        grads = torch.autograd.grad(losses.sum(), own, allow_unused=True)
        made = {
            parameter: [grad.detach()[None].to(wide(grad.dtype))]
            for parameter, grad in zip(own, grads, strict=True)
            if grad is not None
        }
        return losses.detach(), made

    def outputs(self, x: Tensor) -> Any:
        """The model's outputs for these records; records come first."""
        apart = [self.module(each[None]) for each in x]
        columns = zip(*(tensors_in(each) for each in apart), strict=True)
        return of_tensors(apart[0], lambda _: torch.cat(next(columns)))


RAISES = ("cpu",)
"""Devices that raise an error for an index out of range. On CUDA the process cannot go on after it:
one record with a wrong label would end its client."""


class IndicesChecked(TorchFunctionMode):
    """Raises IndexError where a loss or a table is given a value out of its range, on any device.

    It sees torch's own losses and `embedding`, whoever calls them, and no other indexing.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if check := IN_RANGE.get(func):
            bound = inspect.signature(func).bind(*args, **(kwargs or {}))
            bound.apply_defaults()
            if not bool(check(**bound.arguments).all()):
                raise IndexError(f"{func.__name__}: a value is out of range")
        return func(*args, **(kwargs or {}))


def _values(tensor: Tensor) -> Tensor:
    """The values of all records, also inside of torch.func.vmap."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.detach()


def _are_classes(input: Tensor, target: Tensor, ignore_index: int, **_: Any) -> Tensor:
    values, classes = _values(target), input.shape[min(1, input.ndim - 1)]
    if values.is_floating_point():  # probabilities of classes
        return torch.ones((), dtype=torch.bool)
    return (values == ignore_index) | ((values >= 0) & (values < classes))


def _are_rows(input: Tensor, weight: Tensor, **_: Any) -> Tensor:
    values = _values(input)
    return (values >= 0) & (values < len(weight))


def _are_probabilities(input: Tensor, target: Tensor, **_: Any) -> Tensor:
    values = torch.cat([_values(input).flatten(), _values(target).flatten()])
    return (values >= 0) & (values <= 1)


IN_RANGE: Mapping[Any, Callable[..., Tensor]] = {
    functional.cross_entropy: _are_classes,
    functional.nll_loss: _are_classes,
    functional.embedding: _are_rows,
    functional.binary_cross_entropy: _are_probabilities,
}


@dataclass(eq=False)
class PrivateSum:
    """How a model's clipped gradients are added up.

    Args:
        gradients: of records, each of which the model sees alone.
        most: records that `gradients` takes at a time.
        bound: on each record's gradient, L2.
        left_out: how often a drawn record added nothing.
    """

    gradients: Together | Alone
    most: int
    bound: float
    device: torch.device
    left_out: int = field(default=0, init=False)

    def add(self, batch: Batch, index: NDArray[np.int64], sums: Sums) -> None:
        """Adds the clipped gradients of these records to `sums`."""
        for start in range(0, len(index), self.most):
            part = index[start : start + self.most]
            self.left_out += len(part) - self._add_usable(batch, part, sums)

    def _add_usable(self, batch: Batch, part: NDArray[np.int64], sums: Sums) -> int:
        """Adds records that are taken together, without unusable ones; returns how many.

        The rest is passed again, with the same random draws: the sum is bit for bit that of a part
        that never had the records which are left out.
        """
        rewind = _make_rewind(self.device)
        while len(part):
            try:
                losses, parts = self._try(batch, part)
            except (torch.OutOfMemoryError, PlanRefused):
                raise
            except Exception:
                rewind()
                usable = part[:0] if len(part) == 1 else self._find_passing(batch, part)
                if len(usable) == len(part):  # no record of these fails alone
                    raise
            else:
                norms, add = clipped_sum(parts, losses, self.bound)
                finite = losses.isfinite() & norms.isfinite()
                if bool(finite.all()):
                    add(sums)
                    return len(part)
                usable = part[finite.cpu().numpy()]
            part = usable
            rewind()
        return 0

    def _try(self, batch: Batch, part: NDArray[np.int64]) -> tuple[Tensor, Parts]:
        with nullcontext() if self.device.type in RAISES else IndicesChecked():
            return self.gradients(*batch(part))

    def _find_passing(self, batch: Batch, part: NDArray[np.int64]) -> NDArray[np.int64]:
        try:
            self._try(batch, part)
        except (torch.OutOfMemoryError, PlanRefused):
            raise
        except Exception:
            if len(part) == 1:
                return part[:0]
            half = len(part) // 2
            both = (self._find_passing(batch, each) for each in (part[:half], part[half:]))
            return np.concatenate(list(both))
        return part


def private_sum(
    module: nn.Module, loss: Measure, made: tuple[Tensor, Tensor], bound: float
) -> PrivateSum:
    """Tries a model and a loss on `made_records`, and chooses how gradients are added up.

    Raises PlanRefused if the model or the loss fails, gives no row for a record, hides a gradient,
    or mixes records.
    """
    x, y = made
    rewind = _make_rewind(x.device)
    layers = ghost_layers(module)
    try:
        with watched(layers) as uses:
            outputs = module(x[:1].clone())
        refuse_reentrant(outputs)
        one = record_losses(loss, outputs, y[:1]).sum()
        refuse_outside(one, uses, module)
        most = min(MICROBATCH, max(1, VALUES // max(1, values_made(one, uses))))
        gradients = choose_gradients(Together(module, loss, layers, uses), x, y)
        if isinstance(gradients, Alone):
            most = 1
        with torch.no_grad():
            together = gradients.outputs(x.clone())
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, Warning) as error:
        raise PlanRefused(
            f"record privacy: the model or its loss fails for one record alone that is made to try "
            f"it, of floats in [0, 1) and of whole numbers 0 and 1 ({one_line(error)[:300]}); it "
            "must work for one: squeeze(1), not squeeze()"
        ) from error
    refuse_mixing_loss(loss, together, y)
    rewind()
    return PrivateSum(gradients, most, bound, x.device)


def zeros(parameters: Iterable[nn.Parameter]) -> Sums:
    """Empty sums of these parameters' gradients."""
    return {each: torch.zeros_like(each, dtype=wide(each.dtype)) for each in parameters}


def choose_gradients(together: Together, x: Tensor, y: Tensor) -> Together | Alone:
    """Takes records together where `torch.func.vmap` can take the model, else alone."""
    try:
        together(x.clone(), y)
        return together
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        alone = Alone(together.module, together.loss)
        alone(x[:1].clone(), y[:1])
        log.warning(
            "record privacy: the model takes one record after the other, which is slow, because "
            "torch.func.vmap cannot take it: %s",
            one_line(error.__cause__ or error),
        )
        return alone


def _make_rewind(device: torch.device) -> Callable[[], None]:
    """Returns a function that sets torch's generators back to where they are now."""
    host = torch.get_rng_state()
    own = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(host)
        if own is not None:
            torch.cuda.set_rng_state(own, device)

    return rewind


def _refuse_change(what: str) -> PlanRefused:
    return PlanRefused(
        f"record privacy: the model is not what it was when it was tried before the first step: "
        f"{what}; its forward must do the same in every call"
    )
