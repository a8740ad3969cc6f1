"""The losses of single records, and what DP-SGD refuses of losses and models.

A loss that divides by something else in the batch (weights of classes, the number of tokens that
are not padding) would let a record change the others' gradients, past its own clip. So torch's own
losses are asked for each record's (`reduction="none"`), and any other loss is called for each
record alone. Models that would let a record past its clip, or past the noise, are refused.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.loss import _Loss

from secureps.client.ghost_clipping import graph_nodes
from secureps.errors import PlanRefused
from secureps.wording import one_line

Measure = Callable[..., Tensor]
"""(outputs, targets) -> a scalar, float32 or float64; a loss is a mean over the records."""


def record_losses(loss: Measure, outputs: Any, targets: Tensor) -> Tensor:
    """The losses of records, each of its own output and target alone; [records].

    Raises:
        PlanRefused: outputs do not have the records first, or the loss is no mean over records.
    """
    refuse_other_rows(outputs, len(targets))
    own, whole = _leave_records_apart(loss)
    if _is_torchs(own):
        losses = own(outputs, targets)
        if losses.ndim == 0 or len(losses) != len(targets):
            raise _no_mean(f"gives {tuple(losses.shape)} for {len(targets)} records")
        rest = losses.reshape(len(targets), -1)
        return rest.sum(dim=1) if whole else rest.mean(dim=1)
    return _losses_alone(own, whole, outputs, targets)


def _losses_alone(own: Measure, whole: bool, outputs: Any, targets: Tensor) -> Tensor:
    """The loss of each record as if there were no other; [records]."""

    def one(outputs: Any, target: Tensor) -> Tensor:
        found = own(of_tensors(outputs, lambda each: each[None]), target[None]).reshape(-1)
        return found.sum() if whole else found.mean()

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            losses = torch.func.vmap(one)(outputs, targets)
    except RuntimeError:  # vmap takes no loss that draws, or branches on values
        apart = ((of_tensors(outputs, itemgetter(at)), y) for at, y in enumerate(targets))
        losses = torch.stack([one(*each) for each in apart])
    return losses


def _leave_records_apart(loss: Measure) -> tuple[Measure, bool]:
    """A loss that keeps records apart if it can, and whether a record's values are added up."""
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
        raise _no_mean(f"has reduction={kind!r}")
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


def _no_mean(what: str) -> PlanRefused:
    return PlanRefused(
        f"record privacy: the loss {what}; it must be a mean over the records, each record's loss "
        "of its own output and target alone (reduction='mean'; in place of weights or masks that "
        "change the divisor, multiply each record's loss)"
    )


def refuse_mixing_loss(loss: Measure, outputs: Any, targets: Tensor) -> None:
    """Refuses a loss whose gradients, of all records, are not those of each alone."""
    refuse_other_rows(outputs, len(targets))
    apart = of_tensors(
        outputs, lambda each: each.detach().clone().requires_grad_(not is_whole(each))
    )
    inputs = [each for each in tensors_in(apart) if each.requires_grad]
    own, whole = _leave_records_apart(loss)
    try:
        if own is loss:
            together = loss(apart, targets) * len(targets)
        else:
            together = record_losses(loss, apart, targets).sum()
        alone = _losses_alone(own, whole, apart, targets).sum()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, Warning) as error:
        raise _no_mean(f"fails for {len(targets)} records: {one_line(error)[:300]}") from None
    if together.ndim:
        raise _no_mean(f"is no scalar but {tuple(together.shape)}")
    if not bool(torch.isfinite(together.detach())):
        return  # the loss cannot be judged by these records
    if not bool(torch.isfinite(alone.detach())):
        raise _no_mean("is NaN for a record alone, as the mean of no values is")
    for one, other in zip(_gradients(together, inputs), _gradients(alone, inputs), strict=True):
        room = torch.finfo(one.dtype).eps ** 0.5
        if not bool(((one - other).abs() <= room * (other.abs() + other.abs().amax())).all()):
            raise _no_mean("of a batch is not the mean of its records' losses")


def _gradients(loss: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    if not loss.requires_grad:
        return [torch.zeros_like(each) for each in inputs]
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [
        torch.zeros_like(own) if each is None else each
        for own, each in zip(inputs, found, strict=True)
    ]


def refuse_other_rows(outputs: Any, count: int) -> None:
    """Refuses outputs that have a tensor without `count` records first (PlanRefused)."""
    for each in tensors_in(of_tensors(outputs, lambda each: each)):
        if each.ndim == 0 or len(each) != count:
            raise PlanRefused(
                f"record privacy: the model gives {tuple(each.shape)} for {count} records; it must "
                "give a row for each, and work for one record alone: squeeze(1), not squeeze()"
            )


def tensors_in(outputs: Any) -> Iterator[Tensor]:
    """The tensors of a tensor, or of tuples, lists and dicts of tensors, in order."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        yield from tensors_in(list(outputs.values()))
    elif isinstance(outputs, tuple | list):
        for each in outputs:
            yield from tensors_in(each)


def of_tensors(outputs: Any, made: Callable[[Tensor], Tensor]) -> Any:
    """Applies a function to each tensor in tuples, lists and dicts of tensors."""
    if isinstance(outputs, Tensor):
        return made(outputs)
    if type(outputs) in (tuple, list):
        return type(outputs)(of_tensors(each, made) for each in outputs)
    if type(outputs) is dict:
        return {name: of_tensors(each, made) for name, each in outputs.items()}
    raise PlanRefused(
        f"record privacy: the model gives a {type(outputs).__name__}; it must give a tensor (of "
        "a model of transformers, its logits), or a tuple, list or dict of tensors"
    )


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor has integers or booleans."""
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
"""Layers that cannot be trained under DP-SGD: why, and what to do; a user's own of them too."""


def refuse_model(module: nn.Module) -> None:
    """Refuses weights too narrow for noise, and layers without gradients by record (PlanRefused).

    Noise that is added in bfloat16 is rounded away beside a long sum, and the sum leaves as it is.
    A layer that mixes records has no statistics of the one record that it would see.
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
    """Refuses checkpoints that hide a forward pass from autograd (PlanRefused)."""
    for node in graph_nodes(each.grad_fn for each in tensors_in(outputs)):
        if type(node).__name__ == "CheckpointFunctionBackward":
            raise PlanRefused(
                "record privacy: the model calls torch.utils.checkpoint with use_reentrant=True, "
                "under which no layer in it has gradients by record; take use_reentrant=False"
            )


class Kept:
    """The values of a model's tensors, which nothing but the optimizer may change.

    What a forward pass writes would leave without noise. Values are compared, because autograd
    does not count writes to `.data`.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._values = {name: each.detach().clone() for name, each in self._now()}

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._module.named_buffers()
        yield from self._module.named_parameters()

    def accept_step(self) -> None:
        """Keeps what the optimizer made of the trained parameters."""
        for name, each in self._module.named_parameters():
            if each.requires_grad:
                self._values[name] = each.detach().clone()

    def refuse_changes(self) -> None:
        """Refuses a new or changed tensor: it could be a statistic, without clip and noise."""
        sent = self._module.state_dict()
        for name, each in self._now():
            before = self._values.get(name)
            if before is None and name not in sent:  # a table that the first use makes
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
