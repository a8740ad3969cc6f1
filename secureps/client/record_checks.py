"""What DP-SGD refuses of a model: what would let a record past its clip, or past the noise.

What must not live here: steps, noise, and how gradients are clipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from secureps.client.record_loss import (
    Measure,
    of_tensors,
    refuse_other_rows,
    tensors_in,
    total_loss,
)
from secureps.errors import PlanRefused
from secureps.wording import one_line

_INSTEAD = (
    "; what mixes records stays refused where the plan keeps it local; GroupNorm or LayerNorm do "
    "not mix them, and opacus.validators.ModuleValidator.fix(model) puts GroupNorm in"
)


def refuse_model(module: nn.Module) -> None:
    """Refuses weights in which noise is lost, and layers without per-record gradients (BatchNorm).

    Noise that is added in bfloat16 is rounded away beside a long sum, and the sum leaves as it is.
    A layer that mixes records, trainable or not, would let a record change the gradients of others,
    past its own clip.

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
    from opacus import layers
    from opacus.validators import ModuleValidator

    known = ModuleValidator.VALIDATORS
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
        kinds = type(layer).__mro__  # a BatchNorm of the user's own is a BatchNorm too
        checks = (known[kind] for kind in kinds if kind in known)
        errors = [each for check in checks for each in check(layer)]
        if isinstance(layer, _BatchNorm):
            errors.append("BatchNorm mixes the records of a batch")
        if errors:
            own = f"DP{type(layer).__name__}"  # DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
            text = f"; take opacus.layers.{own} in its place, which has the same arguments"
            raise PlanRefused(
                f"record privacy: layer {name or 'the model'!r} ({type(layer).__name__}) cannot "
                f"be trained under DP-SGD: {one_line(errors[0])}"
                f"{text if hasattr(layers, own) else _INSTEAD}"
            )


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward pass: what went in, what came out of each call of a module, and at the end."""

    x: Tensor
    calls: Sequence[tuple[str, Tensor, Tensor]]
    """By call and tensor: words for the module, the tensor, and its values when it came out."""
    outputs: Any


def _passed(module: nn.Module, x: Tensor) -> Pass:
    """Passes records through, and changes no random generator; gradients by floats are kept."""
    calls: list[tuple[str, Tensor, Tensor]] = []

    def note(name: str, layer: nn.Module, _: Any, output: Any) -> None:
        words = f"layer {name or 'the model'!r} ({type(layer).__name__})"
        calls.extend((words, each, each.detach().clone()) for each in tensors_in(output))

    x = x.clone().requires_grad_(x.is_floating_point())
    with ExitStack() as hooks, torch.random.fork_rng([x.device] if x.is_cuda else []):
        for name, layer in module.named_modules():
            hooks.callback(layer.register_forward_hook(partial(note, name)).remove)
        outputs = module(x.clone())
    return Pass(x, calls, outputs)


def refuse_mixing(module: nn.Module, loss: Measure, x: Tensor, y: Tensor) -> None:
    """Refuses a model that mixes records, by what it does with two of three, in both orders.

    The loss of one record may have no gradient by another, at the model's input and after every
    call of a module; and no call may give one record something else because the other is another.
    All passes draw the same random numbers. What mixes none of these three is not seen.

    Args:
        x, y: of three records, the more different the better; on the model's device.
    Raises:
        PlanRefused: it mixes them; names the module. Or it fails for one record alone.
    """
    try:
        alone = _passed(module, x[:1])
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        _passed(module, x[:2])  # what fails for every batch is the model's own error
        raise PlanRefused(
            f"record privacy: the model fails for one record alone ({one_line(error)[:300]}); it "
            "must work for one: squeeze(1), not squeeze()"
        ) from None
    refuse_other_rows(alone.outputs, 1)
    _refuse_reentrant(alone.outputs)
    for order in ((0, 1), (1, 0)):
        seen = _passed(module, x[list(order)])
        refuse_other_rows(seen.outputs, 2)
        pairs = enumerate(zip(alone.calls, seen.calls, strict=False))
        # What counts two here and one of one record counts records; weights and places do not.
        rows = [k for k, (one, two) in pairs if (_count(one[1]), _count(two[1])) == (1, 2)]
        _refuse_gradients(seen, rows, loss, y[list(order)])
        row = order.index(0)
        other = _passed(module, x[[2 if each else 0 for each in order]])
        for at in rows:
            if at < len(other.calls):
                (words, _, one), (_, _, changed) = seen.calls[at], other.calls[at]
                if one.shape == changed.shape and not _alike(one[row], changed[row]):
                    raise _mixes(words)


def _refuse_reentrant(outputs: Any) -> None:
    """Refuses checkpoints that keep a forward pass from autograd: nothing in them would train."""
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


def _refuse_gradients(seen: Pass, rows: Sequence[int], loss: Measure, y: Tensor) -> None:
    """Refuses gradients of one record's loss by the other's rows, of these calls."""
    asked = [("the model's input", seen.x), *(seen.calls[at][:2] for at in rows)]
    asked = [(words, each) for words, each in asked if each.requires_grad]
    for row in (0, 1):
        one = slice(row, row + 1)
        own = total_loss(loss, of_tensors(seen.outputs, itemgetter(one)), y[one])
        if not own.requires_grad:
            continue
        found = torch.autograd.grad(
            own, [each for _, each in asked], allow_unused=True, retain_graph=True
        )
        for (words, _), grad in reversed(list(zip(asked, found, strict=True))):
            if grad is not None and bool(grad[1 - row].nan_to_num().any()):
                raise _mixes(f"what comes after {words}")


def _count(tensor: Tensor) -> int:
    return len(tensor) if tensor.ndim else 0


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two results are the same but for rounding."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    room = torch.finfo(one.dtype).eps ** 0.5
    one, other = one.nan_to_num(), other.nan_to_num()
    largest = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=room, atol=room * largest)


def _mixes(what: str) -> PlanRefused:
    return PlanRefused(
        f"record privacy: {what} mixes records: one record changes what the model makes of "
        f"another, past its own clip{_INSTEAD}"
    )


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
