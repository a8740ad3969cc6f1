"""The private sum: clipped gradients of a sample's records, each computed from that record alone.

The model is called through `torch.func.vmap`, so its code sees one record at a time, and no record
changes what another one adds. A model that vmap cannot take is called for one record after the
other.

A record adds nothing if its loss or its gradient is not finite, or if the model or the loss fails
for it. If training ended instead, that would tell everybody about the record, without any noise.

A loss whose divisor depends on the batch (weights of classes, the number of tokens that are not
padding) would let a record change other gradients, past its own clip. So torch's own losses are
called with `reduction="none"`, and any other loss is called for each record alone. Models that
would let a record's data past its clip, or past the noise, are refused.
"""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.loss import _Loss
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from secureps.client import ghost_clipping as ghost
from secureps.client.ghost_clipping import VALUES
from secureps.errors import PlanRefused
from secureps.wording import one_line

log = logging.getLogger("secureps")

MICROBATCH = 1024
"""The most records whose gradients are computed together, which bounds memory."""

MADE = 16
"""Number of made-up records on which model and loss are tried before the first step."""

Batch = Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]]
"""indices -> the inputs and targets of these records, on the model's device."""

Parts = Mapping[nn.Parameter, Sequence[ghost.Part]]


def make_records(x: Tensor, y: Tensor, count: int = MADE) -> tuple[Tensor, Tensor]:
    """Makes up `count` records of the same shapes and dtypes, on the CPU.

    Floats lie in [0, 1), whole numbers are 0 and 1. Models are tried on these, because the outcome
    of a trial must not depend on a real record.
    """
    generator = torch.Generator().manual_seed(1)

    def made(like: Tensor) -> Tensor:
        shape = (count, *like.shape[1:])
        if like.is_floating_point() or like.is_complex():
            return torch.rand(shape, generator=generator, dtype=like.dtype)
        return torch.randint(0, 2, shape, generator=generator).to(like.dtype)

    return made(x), made(y)


@dataclass(frozen=True, eq=False)
class BatchedGradients:
    """Computes gradients of many records in one pass.

    It adds zeros, the taps, to each layer's output. The loss's gradients by the taps, and the
    layers' inputs, give the records' gradients (`ghost_clipping`). `uses` are those of one record.
    """

    module: nn.Module
    loss: Measure
    layers: Sequence[ghost.Layer]
    uses: Sequence[ghost.LayerUse]

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Parts]:
        """Computes the losses of records [records], and the parts of their gradients."""
        outputs, inputs, taps = self._pass(x)
        losses = record_losses(self.loss, outputs, y)
        of = [at for at, use in enumerate(self.uses) if use.edge is not None]
        grads = torch.autograd.grad(losses.sum(), [taps[at] for at in of], allow_unused=True)
        seen = [
            (self.uses[at].layer, inputs[at].detach().flatten(0, 1), grad.flatten(0, 1))
            for at, grad in zip(of, grads, strict=True)
            if grad is not None  # None if the loss does not depend on the layer
        ]
        return losses.detach(), ghost.by_parameter(seen)

    def outputs(self, x: Tensor) -> Any:
        """Computes the model's outputs; the first dimension counts records."""
        return self._pass(x)[0]

    def _pass(self, x: Tensor) -> tuple[Any, Sequence[Tensor], Sequence[Tensor]]:
        """Returns the outputs, each layer's input [records, 1, ...], and the taps."""
        taps = tuple(
            torch.zeros((), dtype=use.dtype, device=x.device)
            .expand(len(x), *use.shape)
            .requires_grad_(use.edge is not None)
            for use in self.uses
        )
        # Under vmap fused attention is slow on a CPU, and an error on CUDA.
        try:
            with sdpa_kernel(SDPBackend.MATH):
                outputs, inputs = torch.func.vmap(self._pass_one, randomness="different")(x, taps)
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise _changed_model(one_line(error)) from error
        return outputs, inputs, taps

    def _pass_one(self, x: Tensor, taps: Sequence[Tensor]) -> tuple[Any, Sequence[Tensor]]:
        with ghost.watch_uses(self.layers, taps) as uses:
            outputs = self.module(x[None])
        if len(uses) != len(taps):
            raise _changed_model(f"it calls {len(uses)} layers in place of {len(taps)}")
        refuse_other_rows(outputs, 1)
        return map_tensors(outputs, itemgetter(0)), tuple(use.x for use in uses)


@dataclass(frozen=True, eq=False)
class SingleGradients:
    """Computes gradients of one record after the other, by plain autograd."""

    module: nn.Module
    loss: Measure

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Parts]:
        """Computes the loss of one record [1], and its gradients."""
        own = [each for each in self.module.parameters() if each.requires_grad]
        try:
            losses = record_losses(self.loss, self.module(x), y)
        except PlanRefused as error:  # this may depend on the record: treat it as unusable
            raise ValueError(str(error)) from error
        grads = torch.autograd.grad(losses.sum(), own, allow_unused=True)
        made = {
            parameter: [grad.detach()[None].to(ghost.wide_dtype(grad.dtype))]
            for parameter, grad in zip(own, grads, strict=True)
            if grad is not None
        }
        return losses.detach(), made

    def outputs(self, x: Tensor) -> Any:
        """Computes the model's outputs; the first dimension counts records."""
        apart = [self.module(each[None]) for each in x]
        columns = zip(*(tensors_in(each) for each in apart), strict=True)
        return map_tensors(apart[0], lambda _: torch.cat(next(columns)))


RAISES = ("cpu",)
"""Devices that raise an error for an index out of range. On CUDA the process cannot continue after
it, so one record with a wrong label would end its client."""


class IndicesChecked(TorchFunctionMode):
    """Raises IndexError for values out of range in torch's own losses and in `embedding`."""

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
    """The values of all records, even inside torch.func.vmap."""
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
    """Adds up a model's gradients by record, each clipped to `bound` (L2), `most` at a time.

    `left_out` counts the drawn records that have added nothing so far.
    """

    gradients: BatchedGradients | SingleGradients
    most: int
    bound: float
    device: torch.device
    left_out: int = field(default=0, init=False)

    def add(self, batch: Batch, index: NDArray[np.int64], sums: ghost.Sums) -> None:
        for start in range(0, len(index), self.most):
            part = index[start : start + self.most]
            self.left_out += len(part) - self._add_usable(batch, part, sums)

    def _add_usable(self, batch: Batch, part: NDArray[np.int64], sums: ghost.Sums) -> int:
        """Adds the usable records of a part; returns how many they are.

        They are computed again with the same random draws, so that the sum is the same, bit for
        bit, as if the unusable records had never been in the part.
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
                if len(usable) == len(part):  # none of these records fails alone
                    raise
            else:
                norms, add = ghost.clipped_sum(parts, losses, self.bound)
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
    """Tries a model and a loss on made-up records, and chooses how gradients are computed.

    Raises PlanRefused if the model or the loss fails, does not return a row for each record, hides
    a gradient, or mixes records.
    """
    x, y = made
    rewind = _make_rewind(x.device)
    layers = ghost.ghost_layers(module)
    try:
        with ghost.watch_uses(layers) as uses:
            outputs = module(x[:1].clone())
        refuse_reentrant(outputs)
        one = record_losses(loss, outputs, y[:1]).sum()
        ghost.refuse_outside(one, uses, module)
        most = min(MICROBATCH, max(1, VALUES // max(1, ghost.count_values(one, uses))))
        gradients = choose_gradients(BatchedGradients(module, loss, layers, uses), x, y)
        if isinstance(gradients, SingleGradients):
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


def zero_sums(parameters: Iterable[nn.Parameter]) -> ghost.Sums:
    return {each: torch.zeros_like(each, dtype=ghost.wide_dtype(each.dtype)) for each in parameters}


def choose_gradients(
    together: BatchedGradients, x: Tensor, y: Tensor
) -> BatchedGradients | SingleGradients:
    """Computes records together if `torch.func.vmap` can take the model, else alone."""
    try:
        together(x.clone(), y)
        return together
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        alone = SingleGradients(together.module, together.loss)
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


def _changed_model(what: str) -> PlanRefused:
    return PlanRefused(
        f"record privacy: the model is not what it was when it was tried before the first step: "
        f"{what}; its forward must do the same in every call"
    )


# --- the losses of single records, and what DP-SGD refuses of losses and models ----


Measure = Callable[..., Tensor]
"""(outputs, targets) -> a scalar, float32 or float64; a loss is a mean over the records."""


def record_losses(loss: Measure, outputs: Any, targets: Tensor) -> Tensor:
    """Computes each record's loss from its own output and target alone; [records].

    Raises PlanRefused if outputs have no row for each record, or the loss is no mean over them.
    """
    refuse_other_rows(outputs, len(targets))
    own, whole = _keep_records_apart(loss)
    if _is_torchs(own):
        losses = own(outputs, targets)
        if losses.ndim == 0 or len(losses) != len(targets):
            raise _no_mean_error(f"gives {tuple(losses.shape)} for {len(targets)} records")
        rest = losses.reshape(len(targets), -1)
        return rest.sum(dim=1) if whole else rest.mean(dim=1)
    return _losses_alone(own, whole, outputs, targets)


def _losses_alone(own: Measure, whole: bool, outputs: Any, targets: Tensor) -> Tensor:
    """Computes each record's loss as if there were no other records; [records]."""

    def one(outputs: Any, target: Tensor) -> Tensor:
        found = own(map_tensors(outputs, lambda each: each[None]), target[None]).reshape(-1)
        return found.sum() if whole else found.mean()

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            losses = torch.func.vmap(one)(outputs, targets)
    except RuntimeError:  # vmap cannot take a loss that draws, or branches on values
        apart = ((map_tensors(outputs, itemgetter(at)), y) for at, y in enumerate(targets))
        losses = torch.stack([one(*each) for each in apart])
    return losses


def _keep_records_apart(loss: Measure) -> tuple[Measure, bool]:
    """Sets `reduction="none"` if a loss has that; returns also whether a record's values add up."""
    if isinstance(loss, _Loss):
        kind: Any = loss.reduction
    else:
        try:
            asked = inspect.signature(loss).parameters.get("reduction")
        except (TypeError, ValueError):
            asked = None
        if asked is None:
            return loss, False
        kind = asked.default
    if kind not in ("mean", "batchmean"):
        raise _no_mean_error(f"has reduction={kind!r}")
    if isinstance(loss, _Loss):
        own = copy.copy(loss)
        own.reduction = "none"
        return own, kind == "batchmean"
    return partial(loss, reduction="none"), kind == "batchmean"


def _is_torchs(loss: Measure) -> bool:
    while isinstance(loss, partial):
        loss = loss.func
    kind: Any = type(loss) if isinstance(loss, _Loss) else loss
    return getattr(kind, "__module__", None) in ("torch.nn.functional", "torch.nn.modules.loss")


def _no_mean_error(what: str) -> PlanRefused:
    return PlanRefused(
        f"record privacy: the loss {what}; it must be a mean over the records, each record's loss "
        "of its own output and target alone (reduction='mean'; in place of weights or masks that "
        "change the divisor, multiply each record's loss)"
    )


def refuse_mixing_loss(loss: Measure, outputs: Any, targets: Tensor) -> None:
    """Refuses a loss whose gradients for a batch are not those of each record alone."""
    refuse_other_rows(outputs, len(targets))
    apart = map_tensors(
        outputs, lambda each: each.detach().clone().requires_grad_(not is_whole(each))
    )
    inputs = [each for each in tensors_in(apart) if each.requires_grad]
    own, whole = _keep_records_apart(loss)
    try:
        if own is loss:
            together = loss(apart, targets) * len(targets)
        else:
            together = record_losses(loss, apart, targets).sum()
        alone = _losses_alone(own, whole, apart, targets).sum()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, Warning) as error:
        raise _no_mean_error(f"fails for {len(targets)} records: {one_line(error)[:300]}") from None
    if together.ndim:
        raise _no_mean_error(f"is no scalar but {tuple(together.shape)}")
    if not bool(torch.isfinite(together.detach())):
        return  # a loss that is not finite for these records proves nothing
    if not bool(torch.isfinite(alone.detach())):
        raise _no_mean_error("is NaN for a record alone, as the mean of no values is")
    for one, other in zip(_gradients(together, inputs), _gradients(alone, inputs), strict=True):
        room = torch.finfo(one.dtype).eps ** 0.5
        if not bool(((one - other).abs() <= room * (other.abs() + other.abs().amax())).all()):
            raise _no_mean_error("of a batch is not the mean of its records' losses")


def _gradients(loss: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    if not loss.requires_grad:
        return [torch.zeros_like(each) for each in inputs]
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [
        torch.zeros_like(own) if each is None else each
        for own, each in zip(inputs, found, strict=True)
    ]


def refuse_other_rows(outputs: Any, count: int) -> None:
    """Raises PlanRefused if an output's first dimension does not count records."""
    for each in tensors_in(outputs):
        if each.ndim == 0 or len(each) != count:
            raise PlanRefused(
                f"record privacy: the model gives {tuple(each.shape)} for {count} records; it must "
                "give a row for each, and work for one record alone: squeeze(1), not squeeze()"
            )


def tensors_in(outputs: Any) -> list[Tensor]:
    """Lists the tensors in tuples, lists and dicts of tensors; PlanRefused for anything else."""
    found = tree_leaves(outputs)
    for each in found:
        if not isinstance(each, Tensor):
            raise PlanRefused(
                f"record privacy: the model gives a {type(each).__name__}; it must give a tensor "
                "(of a model of transformers, its logits), or a tuple, list or dict of tensors"
            )
    return found


def map_tensors(outputs: Any, made: Callable[[Tensor], Tensor]) -> Any:
    """Applies a function to each tensor; PlanRefused as `tensors_in`."""
    tensors_in(outputs)  # refuses what is no tensor
    return tree_map(made, outputs)


def is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


_OF_OPACUS = (
    "torch gives no gradients by record of it; take opacus.layers.DP{0} in its place, which has "
    "the same arguments"
)
_REFUSED: Mapping[type[nn.Module], str] = {
    _BatchNorm: (
        "it mixes the records of a batch, so that one record changes what comes of the others, "
        "past its clip, and also where the plan keeps the layer local; take GroupNorm or "
        "LayerNorm, or put GroupNorm in with "
        "model = opacus.validators.ModuleValidator.fix(model)"
    ),
    _InstanceNorm: (
        "it keeps running statistics of the records, which no noise covers; leave out "
        "track_running_stats"
    ),
    **dict.fromkeys((nn.GRU, nn.LSTM, nn.RNN, nn.MultiheadAttention), _OF_OPACUS),
}
"""Layers, and their subclasses, that cannot be trained under DP-SGD: why, and what to do."""


def refuse_model(module: nn.Module) -> None:
    """Refuses weights too narrow for noise, and layers without gradients by record (PlanRefused).

    In bfloat16 rounding removes the noise that is added to a long sum.
    """
    for name, each in module.named_parameters():
        if each.requires_grad and torch.finfo(each.dtype).bits < 32:
            raise PlanRefused(
                f"record privacy: parameter {name!r} is {str(each.dtype).removeprefix('torch.')}, "
                "in which noise is lost by rounding; keep weights float32, and let the model's "
                "forward compute under torch.autocast"
            )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.EmbeddingBag) and layer.weight.requires_grad:
            raise PlanRefused(
                f"record privacy: layer {name or 'the model'!r} (EmbeddingBag) takes records one "
                "after the other and not by rows; take an Embedding, and the mean of what it gives"
            )
        for own in ("max_norm", "scale_grad_by_freq"):
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and getattr(layer, own):
                raise PlanRefused(
                    f"record privacy: layer {name or 'the model'!r} ({type(layer).__name__}) "
                    f"scales rows by which records look them up, without noise: leave out {own}"
                )
        for kind, why in _REFUSED.items():
            harmless = isinstance(layer, _InstanceNorm) and not layer.track_running_stats
            if isinstance(layer, kind) and not harmless:
                raise PlanRefused(
                    f"record privacy: layer {name or 'the model'!r} ({type(layer).__name__}) "
                    f"cannot be trained: {why.format(kind.__name__)}"
                )


def refuse_reentrant(outputs: Any) -> None:
    """Raises PlanRefused for a checkpoint that hides a forward pass from autograd."""
    for node in ghost.graph_nodes(each.grad_fn for each in tensors_in(outputs)):
        if type(node).__name__ == "CheckpointFunctionBackward":
            raise PlanRefused(
                "record privacy: the model calls torch.utils.checkpoint with use_reentrant=True, "
                "under which no layer in it has gradients by record; take use_reentrant=False"
            )


class TensorGuard:
    """The values of a model's tensors, which only the optimizer may change.

    A forward pass could write a record's data into them, which would be sent without noise. Values
    are compared, because autograd does not count writes to `.data`.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._values = {name: each.detach().clone() for name, each in self._now()}

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._module.named_buffers()
        yield from self._module.named_parameters()

    def accept_step(self) -> None:
        for name, each in self._module.named_parameters():
            if each.requires_grad:
                self._values[name] = each.detach().clone()

    def refuse_changes(self) -> None:
        """Refuses a new or changed tensor, because it has neither clip nor noise."""
        sent = self._module.state_dict()
        for name, each in self._now():
            before = self._values.get(name)
            if before is None and name not in sent:  # made at its first use, and never sent
                continue
            if before is None or not _equal(each, before):
                kind = "parameter" if isinstance(each, nn.Parameter) else "buffer"
                raise PlanRefused(
                    f"record privacy: training {'makes' if before is None else 'changes'} {kind} "
                    f"{name!r}, which would leave without noise; use a layer that keeps no "
                    "statistics (GroupNorm), make what a model needs in its constructor, and let "
                    "the optimizer alone change parameters"
                )


def _equal(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one, other) or torch.allclose(one, other, 0.0, 0.0, equal_nan=True)
