"""Refuses models that would let a record past its clip, or past the noise, under DP-SGD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from secureps.client.record_loss import tensors_in
from secureps.errors import PlanRefused

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
    """Refuses weights in which noise is lost, and layers without per-record gradients (BatchNorm).

    Noise that is added in bfloat16 is rounded away beside a long sum, and the sum leaves as it is.
    A layer that mixes records has no statistics of the one record that it would see.

    Raises:
        PlanRefused: there is one; names it.
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
    """Refuses checkpoints that keep a forward pass from autograd (PlanRefused).

    Nothing in them would train.
    """
    for node in graph_nodes(each.grad_fn for each in tensors_in(outputs)):
        if type(node).__name__ == "CheckpointFunctionBackward":
            raise PlanRefused(
                "record privacy: the model calls torch.utils.checkpoint with use_reentrant=True, "
                "under which no layer in it has gradients by record; take use_reentrant=False"
            )


def graph_nodes(roots: Iterable[Any], passed: Mapping[Any, Any] | None = None) -> Iterator[Any]:
    """The nodes of autograd's graph from these on, each once.

    Args:
        roots: nodes, or None for what has no gradient.
        passed: nodes that are left out, by the one with which it goes on behind each, or None.
    """
    waiting, known, passed = list(roots), set[Any](), passed or {}
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if node in passed:
            waiting.append(passed[node])
            continue
        yield node
        waiting.extend(each for each, _ in node.next_functions)


class Kept:
    """What a model holds now: buffers and parameters that nothing may change past the noise.

    Trained parameters are among them until steps may change these.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._trained = module, True
        self._values = {name: each.detach().clone() for name, each in self._now()}

    def leave_trained(self) -> None:
        """Lets trained parameters be changed from now on, and their copies go."""
        self._trained = False
        left = [name for name, _ in self._now() if name in self._values]
        self._values = {name: self._values[name] for name in left}

    def _now(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._module.named_buffers()
        for name, each in self._module.named_parameters():
            if self._trained or not each.requires_grad:
                yield name, each

    def refuse_changes(self) -> None:
        """Refuses what changed since, or came since and would leave with the model (PlanRefused).

        A statistic of the records would leave the client without clip and noise.
        """
        sent = self._module.state_dict()
        for name, each in self._now():
            before = self._values.get(name)
            if before is None and name not in sent:  # a table that is made when it is first used
                continue
            if before is None or not _equal(each, before):
                kind = "parameter" if isinstance(each, nn.Parameter) else "buffer"
                raise PlanRefused(
                    f"record privacy: training {'makes' if before is None else 'changes'} {kind} "
                    f"{name!r}, which would leave without noise; use a layer that keeps no "
                    "statistics (GroupNorm), and make what a model needs in its constructor"
                )


def _equal(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one, other) or torch.allclose(one, other, 0.0, 0.0, equal_nan=True)


@contextmanager
def nothing_written(module: nn.Module) -> Iterator[None]:
    """Refuses what writes trained parameters inside, where only gradients are made (PlanRefused).

    Values are compared: autograd does not count what a model writes to `.data`.
    """
    before = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
    yield
    for name, each in module.named_parameters():
        if name in before and not _equal(each, before[name]):
            raise PlanRefused(
                f"record privacy: the model's forward writes parameter {name!r}, which would leave "
                "without noise; only the optimizer may change it"
            )
