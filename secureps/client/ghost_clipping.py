"""Ghost clipping: the clipped sum of records' gradients, mostly without the gradients.

DP-SGD steps by sum_i min(1, C / |g_i|) g_i over the records i of a sample. A record's gradient g_i
of a layer follows from what went into the layer and from the loss's gradient by what came out
(Goodfellow 2015); its norm follows from two matrices of places by places (Li et al. 2021, section
4). So one backward pass, which stops at what came out of the layers, gives first all norms and
then the sums ("book-keeping", Bu et al. 2023, algorithm 1). Where a record's gradient costs less
than those matrices, it is made as it is (Bu et al. 2022, section 4).

What is clipped is what is summed: norms and sums come from the same tensors. Both are in float32,
or float64 where the model is, whatever the model computes in. What must not live here: samples,
noise, steps, and what a plan says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from secureps.errors import PlanRefused

WHOLE = 32
"""Multiplications for a norm alone that are worth a value of a gradient: measured on a CPU."""


@dataclass(frozen=True, eq=False)
class Products:
    """A matrix's gradients by record: sums over places of left row (outer) right row.

    Args:
        left: floats [records, places, rows], or int64 [records, places]: the one row that is 1.
        right: floats [records, places, columns].
        rows: of the matrix.
    """

    left: Tensor
    right: Tensor
    rows: int

    def lengths(self) -> Tensor:
        """The sum over places of |left| |right|: no gradient's norm is larger; [records]."""
        right = torch.linalg.vector_norm(self.right, dim=2)
        if self.left.is_floating_point():
            right = right * torch.linalg.vector_norm(self.left, dim=2)
        found: Tensor = right.sum(dim=1)
        return found

    def inner(self, other: Products) -> Tensor:
        """Inner products of records' gradients with their others; [records]."""
        return (_overlap(self.left, other.left) * (self.right @ other.right.mT)).sum(dim=(1, 2))

    def whole(self) -> Tensor:
        """The gradients themselves; [records, rows * columns]."""
        records, _, columns = self.right.shape
        if self.left.is_floating_point():
            return (self.left.mT @ self.right).flatten(1)
        first = self.rows * torch.arange(records, device=self.left.device)[:, None]
        made = self.right.new_zeros(records * self.rows, columns)
        made.index_add_(0, (self.left + first).flatten(), self.right.flatten(0, 1))
        return made.reshape(records, -1)

    def weighted(self, weights: Tensor) -> Tensor:
        """The sum of the gradients, each times its record's weight; [rows, columns]."""
        right = (self.right * weights[:, None, None]).flatten(0, 1)
        if self.left.is_floating_point():
            return self.left.flatten(0, 1).T @ right
        made = right.new_zeros(self.rows, right.shape[1])
        return made.index_add_(0, self.left.flatten(), right)


def _overlap(left: Tensor, other: Tensor) -> Tensor:
    """Inner products of the rows of two left factors; [records, places, other places]."""
    if not left.is_floating_point():
        if not other.is_floating_point():
            return left[:, :, None] == other[:, None, :]
        return _overlap(other, left).mT
    if not other.is_floating_point():
        return left.gather(2, other[:, None, :].expand(-1, left.shape[1], -1))
    return left @ other.mT


Part = Products | Tensor
"""What one use of a parameter adds to its gradients; a tensor is [records, ...]."""

Formula = Callable[[Any, Tensor, Tensor], Mapping[nn.Parameter, Part]]
"""(layer, what went in, the gradient by what came out) -> parts; records come first in all."""

Sum = Callable[[Tensor], Tensor]
"""Weights [records] -> the sum of a parameter's gradients, each times its record's weight."""


def _norms_and_sum(parts: Sequence[Part]) -> tuple[Tensor, Sum]:
    """The squared norms of one parameter's gradients [records], and how to add them up."""
    products = [each for each in parts if isinstance(each, Products)]
    if len(products) == len(parts) and (squared := _ghost_norms(products)) is not None:
        return squared, lambda weights: _total([each.weighted(weights) for each in products])
    whole = _total([p.whole() if isinstance(p, Products) else p.flatten(1) for p in parts])
    return torch.linalg.vector_norm(whole, dim=1) ** 2, lambda weights: weights @ whole


def _ghost_norms(products: Sequence[Products]) -> Tensor | None:
    """The squared norms of the sums of these gradients; None where making them costs less."""
    places = sum(each.right.shape[1] for each in products)
    rows, columns = products[0].rows, products[0].right.shape[2]
    if not _few(places, rows, columns):
        return None
    squared = _total([each.lengths() for each in products]) ** 2
    if places == 1:
        return squared
    inner = _total([one.inner(other) for one in products for other in products])
    # Where places cancel, rounding may leave less than the norm, and a record would get past its
    # clip. So as much is added as rounding may have taken (Higham and Mary 2019, theorem 2.4).
    taken = torch.finfo(squared.dtype).eps * math.sqrt(rows + columns + places)
    return inner.clamp(min=0) + taken * squared


def _few(places: int, rows: int, columns: int) -> bool:
    """Whether norms cost less than gradients, of a matrix by so many places."""
    return places == 1 or places**2 * (rows + columns) <= WHOLE * rows * columns


def _total(found: Sequence[Tensor]) -> Tensor:
    return sum(found[1:], found[0])


def _linear(layer: nn.Linear, x: Tensor, grad: Tensor) -> dict[nn.Parameter, Part]:
    x, grad = (each.reshape(len(each), -1, each.shape[-1]) for each in (x, grad))
    return _affine(layer, Products(grad, x, layer.out_features), grad)


def _convolution(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, grad: Tensor
) -> dict[nn.Parameter, Part]:
    """A linear layer of patches, or one convolution whose groups are the records."""
    padding: Any = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = functional.pad(x, tuple(layer._reversed_padding_repeated_twice), mode=mode)
        padding = tuple(0 for _ in layer.kernel_size)
    # What a processor does quickly in groups, other devices need not: there products are made.
    products = not x.is_cpu or _few(grad[0, 0].numel(), *layer.weight.flatten(1).shape)
    if products and layer.groups == 1 and not isinstance(layer, nn.Conv3d):
        own: Any = (layer.kernel_size, layer.dilation, padding, layer.stride)
        if isinstance(layer, nn.Conv1d):
            x, own = (
                x.unsqueeze(2),
                [(one, *each) for one, each in zip((1, 1, 0, 1), own, strict=True)],
            )
        patches = functional.unfold(x, *own)
        weight: Part = Products(grad.flatten(2).mT, patches.mT, layer.out_channels)
    else:
        shape = (len(x) * layer.out_channels, *layer.weight.shape[1:])
        both = (each.reshape(1, -1, *each.shape[2:]) for each in (x, grad))
        inputs, outputs = both
        rest: Any = (layer.stride, padding, layer.dilation, len(x) * layer.groups)
        weight = BY_GROUP[type(layer)](inputs, shape, outputs, *rest).reshape(len(x), -1)
    return _affine(layer, weight, grad.flatten(2).mT)


BY_GROUP: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: conv1d_weight,
    nn.Conv2d: conv2d_weight,
    nn.Conv3d: conv3d_weight,
}


def _affine(layer: Any, weight: Part, grad: Tensor) -> dict[nn.Parameter, Part]:
    """A weight's part, and a bias's, by gradients [records, places, rows]."""
    found = {layer.weight: weight}
    if layer.bias is not None:
        found[layer.bias] = grad.sum(dim=1)
    return found


def _embedding(layer: Any, x: Tensor, grad: Tensor) -> dict[nn.Parameter, Part]:
    x, grad = x.long().reshape(len(x), -1), grad.reshape(len(x), -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        grad = grad.masked_fill((x == layer.padding_idx)[:, :, None], 0)
    return {layer.weight: Products(x, grad, layer.num_embeddings)}


def _layer_norm(layer: nn.LayerNorm, x: Tensor, grad: Tensor) -> Mapping[nn.Parameter, Part]:
    shape = layer.normalized_shape
    normal = functional.layer_norm(x, shape, eps=layer.eps)
    parts = (each.reshape(len(x), -1, math.prod(shape)) for each in (normal * grad, grad))
    weight, bias = (each.sum(dim=1) for each in parts)
    return {layer.weight: weight} | ({} if layer.bias is None else {layer.bias: bias})


def _whole_layer(layer: nn.Module, x: Tensor, grad: Tensor) -> dict[nn.Parameter, Part]:
    """A layer of which nothing else is known: it is run again for each record."""
    own = {name: each for name, each in layer.named_parameters() if each.requires_grad}
    first = {each: name for name, each in own.items()}
    # Each module once: functional_call would not put back what it finds under two names.
    slots = {
        f"{at}.{name}" if at else name: first[each]
        for at, module in layer.named_modules()
        for name, each in module.named_parameters(recurse=False, remove_duplicate=False)
        if each in first
    }

    def projected(values: Mapping[str, Tensor], x: Tensor, grad: Tensor) -> Tensor:
        placed = {slot: values[name] for slot, name in slots.items()}
        made: Tensor = torch.func.functional_call(layer, placed, (x[None],), tie_weights=False)
        if made.shape != (1, *grad.shape):  # it reads others' records, say
            raise PlanRefused(
                f"record privacy: a {type(layer).__name__} gives {tuple(made.shape)} where a "
                f"record alone has {(1, *grad.shape)}; it may read nothing but what it is "
                "called with"
            )
        return (made * grad[None]).sum()

    by_record = torch.func.vmap(torch.func.grad(projected), in_dims=(None, 0, 0))
    try:
        made = by_record({name: each.detach() for name, each in own.items()}, x, grad)
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        raise PlanRefused(
            f"record privacy: a {type(layer).__name__} has no gradients by record: "
            f"{' '.join(str(error).split())}"
        ) from None
    return {each: made[name] for name, each in own.items()}


FORMULAS: dict[type[nn.Module], Formula] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
}
"""Beside those of Opacus, of GroupNorm and others."""


def _formula(layer: nn.Module) -> Formula:
    from opacus.grad_sample import GradSampleModule

    kind = type(layer)
    names = {name for name, _ in layer.named_parameters(recurse=False)}
    if not names <= {"weight", "bias"}:  # as torch.nn.utils.weight_norm makes them
        return _whole_layer
    if kind in FORMULAS:
        return FORMULAS[kind]
    sampler = GradSampleModule.GRAD_SAMPLERS.get(kind)
    if sampler is None:
        return _whole_layer
    return lambda own, x, grad: sampler(own, [x], grad)


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer with trained parameters, and how their gradients follow from what it sees."""

    name: str
    module: nn.Module
    formula: Formula


def ghost_layers(module: nn.Module) -> tuple[Layer, ...]:
    """The layers of a model that have trained parameters of their own, each once.

    What is inside a layer without a formula belongs to that layer.
    """
    return tuple(_layers("", module, set()))


def _layers(name: str, module: nn.Module, known: set[nn.Module]) -> Iterator[Layer]:
    if module in known:
        return
    known.add(module)
    if any(each.requires_grad for each in module.parameters(recurse=False)):
        yield Layer(name or "the model", module, _formula(module))
        return
    for own, child in module.named_children():
        yield from _layers(f"{name}.{own}" if name else own, child, known)


@dataclass(frozen=True, eq=False)
class Use:
    """One call of a layer in a forward pass: what went in, and the edge of what came out."""

    layer: Layer
    x: Tensor
    version: int
    edge: GradientEdge


@contextmanager
def watched(layers: Sequence[Layer]) -> Iterator[list[Use]]:
    """Notes each use of the layers in the forward passes that are run inside.

    What a layer without a formula calls is that layer's: it is not noted as a use of its own.

    Raises:
        PlanRefused: a layer takes or gives more than one tensor.
    """
    uses: list[Use] = []
    within: list[Layer] = []

    def enter(layer: Layer, *_: Any) -> None:
        within.append(layer)

    def note(layer: Layer, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if layer.formula is _whole_layer:
            within.pop()
        if within:
            return
        if (
            not all(isinstance(each, Tensor) for each in (*args, output))
            or len(args) != 1
            or kwargs
        ):
            raise PlanRefused(
                f"record privacy: layer {layer.name!r} ({type(layer.module).__name__}) must take "
                "one tensor and give one"
            )
        if output.requires_grad:  # not so in a part of the model that runs under no_grad
            (x,) = args
            uses.append(Use(layer, x, x._version, get_gradient_edge(output)))

    with ExitStack() as hooks:
        for each in layers:
            if each.formula is _whole_layer:
                begun = each.module.register_forward_pre_hook(partial(enter, each))
                hooks.callback(begun.remove)
            handle = each.module.register_forward_hook(partial(note, each), with_kwargs=True)
            hooks.callback(handle.remove)
        yield uses


def add_clipped(
    loss: Tensor, uses: Sequence[Use], records: int, bound: float, sums: dict[nn.Parameter, Tensor]
) -> Tensor:
    """Adds these records' gradients, each clipped to `bound` (L2), to `sums`.

    Args:
        loss: the sum of the records' losses; a scalar, whose graph is used up.
        uses: of the layers in the forward pass of these records.
        sums: by parameter, of its shape; float32, or float64 where the model is.
    Returns:
        The norms of the records' gradients before they were clipped; [records].
    Raises:
        PlanRefused: a layer does not have the records first, has no gradients by record, or what
            went into it was changed after.
    """
    edges = [each.edge for each in uses]
    grads = torch.autograd.grad(loss, edges, allow_unused=True) if edges else ()
    parts: dict[nn.Parameter, list[Part]] = {}
    with torch.no_grad():
        for use, grad in zip(uses, grads, strict=True):
            if grad is None:  # nothing that came out of it reaches the loss
                continue
            for parameter, part in _parts(use, grad, records).items():
                if parameter.requires_grad:
                    parts.setdefault(parameter, []).append(part)
        found = {parameter: _norms_and_sum(of) for parameter, of in parts.items()}
        norms = loss.new_zeros(records, dtype=wide(loss.dtype))
        if found:
            norms = _total([squared for squared, _ in found.values()]).sqrt()
        weights = (bound / (norms + 1e-6)).clamp(max=1)
        for parameter, (_, added) in found.items():
            sums[parameter] += added(weights).reshape(parameter.shape)
    return norms


def _parts(use: Use, grad: Tensor, records: int) -> Mapping[nn.Parameter, Part]:
    name, module, x = f"layer {use.layer.name!r}", use.layer.module, use.x.detach()
    kind = type(module).__name__
    for each in (x, grad):
        if each.ndim == 0 or len(each) != records:
            raise PlanRefused(
                f"record privacy: {name} ({kind}) has {tuple(each.shape)} where there are "
                f"{records} records; the first dimension of what every layer takes and gives must "
                "count records (positions too: torch.arange(n).expand(len(x), n))"
            )
    if x._version != use.version:
        raise PlanRefused(
            f"record privacy: what went into {name} ({kind}) was changed in place after; make that "
            "a new tensor (ReLU without inplace, x = x + y instead of x += y)"
        )
    if x.is_floating_point():
        x = x.to(wide(x.dtype))
    return use.layer.formula(module, x, grad.to(wide(grad.dtype)))


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums and norms are in: float32, or float64."""
    return torch.promote_types(dtype, torch.float32)


def refuse_outside(loss: Tensor, uses: Sequence[Use], module: nn.Module) -> None:
    """Refuses parameters that are used past their layers: a part of the gradient would not be seen.

    Raises:
        PlanRefused: there is one.
    """
    names = {id(each): name for name, each in module.named_parameters() if each.requires_grad}
    inputs = {use.edge.node: use.x.grad_fn for use in uses}
    waiting, known = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if node in inputs:
            waiting.append(inputs[node])
            continue
        name = names.get(id(getattr(node, "variable", None)))
        if name is not None:
            raise PlanRefused(
                f"record privacy: parameter {name!r} is used outside of its layer's own forward, "
                "or what came out of its layer is changed in place; call the layer itself, and use "
                "ReLU without inplace"
            )
        waiting.extend(each for each, _ in node.next_functions)
