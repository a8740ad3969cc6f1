"""Ghost clipping: the clipped sum of records' gradients, mostly without the gradients.

DP-SGD steps by sum_i min(1, C / |g_i|) g_i over the records i of a sample. A record's gradient g_i
of a layer follows from the layer's input and the loss's gradient by its output (Goodfellow 2015),
and its norm from two matrices of places by places (Li et al. 2021, section 4). So one backward
pass, which stops at the layers' outputs, gives all norms and then the sums ("book-keeping", Bu et
al. 2023, algorithm 1). If a record's gradient costs less than those matrices, the gradient is
computed (Bu et al. 2022, section 4).

Norms and sums come from the same tensors, so what is clipped is what is summed. Both are in
float32, or float64 if the model is, whatever autocast computes in.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from secureps.errors import PlanRefused
from secureps.wording import one_line

# --- norms and sums of one parameter's gradients -------------------------------------


WHOLE = 32
"""A value of a gradient costs as much as this many multiplications, as measured on a CPU."""

VALUES = 1 << 26
"""The most values of gradients or products that are in memory at a time: 256 MiB."""


@dataclass(frozen=True, eq=False)
class Products:
    """A matrix's gradients by record, as factors: sums over places of outer products of rows.

    Args:
        left: floats [records, places, rows]; or int64 [records, places], the index of the one row
            that is 1.
        right: floats [records, places, columns].
        rows: the number of the matrix's rows.
    """

    left: Tensor
    right: Tensor
    rows: int

    def __len__(self) -> int:
        return len(self.right)

    def __getitem__(self, of: slice) -> Products:
        return Products(self.left[of], self.right[of], self.rows)

    def bound_norms(self) -> Tensor:
        """The sum over places of |left| |right|, which bounds the gradients' norms; [records]."""
        right = torch.linalg.vector_norm(self.right, dim=2)
        if self.left.is_floating_point():
            right = right * torch.linalg.vector_norm(self.left, dim=2)
        found: Tensor = right.sum(dim=1)
        return found

    def inner_products(self, other: Products) -> Tensor:
        """Inner products of each record's gradients in this and the other; [records]."""
        return (_overlap(self.left, other.left) * (self.right @ other.right.mT)).sum(dim=(1, 2))

    def to_gradients(self) -> Tensor:
        records, _, columns = self.right.shape
        if self.left.is_floating_point():
            return (self.left.mT @ self.right).flatten(1)
        first = self.rows * torch.arange(records, device=self.left.device)[:, None]
        made = self.right.new_zeros(records * self.rows, columns)
        made.index_add_(0, (self.left + first).flatten(), self.right.flatten(0, 1))
        return made.reshape(records, -1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
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
"""Per-record gradients that one use of a parameter adds; a tensor is [records, ...]."""

Sum = Callable[[Tensor], Tensor]
"""Weights [records] -> the sum of a parameter's gradients, each times its record's weight."""


def norms_and_sum(parts: Sequence[Part], room: int) -> tuple[Tensor, Sum, int]:
    """Computes a parameter's squared norms [records], its sum, and the values kept of `room`."""
    tensors = [each for each in parts if isinstance(each, Tensor)]
    products = _join([each for each in parts if isinstance(each, Products)])
    parts = [*products, *tensors]
    if not tensors and (squared := _ghost_norms(products)) is not None:
        return squared, lambda weights: total([each.weighted_sum(weights) for each in products]), 0
    records, values = len(parts[0]), _values(parts[0])
    if records * values <= room:
        whole = _stack_gradients(parts, slice(records))
        squared = torch.linalg.vector_norm(whole, dim=1) ** 2
        return squared, lambda weights: weights @ whole, records * values
    norms = [
        torch.linalg.vector_norm(_stack_gradients(parts, s), dim=1)
        for s in _slices(records, values)
    ]
    squared = torch.cat(norms) ** 2
    return squared, lambda weights: total([_weighted_sum(each, weights) for each in parts]), 0


def _join(products: Sequence[Products]) -> list[Products]:
    """Joins the uses of a recurrent layer, one for each place, into one use with all places."""
    found = []
    for floats in (True, False):
        of = [each for each in products if each.left.is_floating_point() == floats]
        if len(of) > 1:
            left, right = (torch.cat([get(p) for p in of], dim=1) for get in _FACTORS)
            of = [Products(left, right, of[0].rows)]
        found += of
    return found


_FACTORS = attrgetter("left"), attrgetter("right")


def _stack_gradients(parts: Sequence[Part], of: slice) -> Tensor:
    """Computes the gradients of these records by one parameter; [records, values]."""
    cut = [each[of] for each in parts]
    return total(
        [p.to_gradients() if isinstance(p, Products) else p.reshape(len(p), -1) for p in cut]
    )


def _weighted_sum(part: Part, weights: Tensor) -> Tensor:
    if isinstance(part, Products):
        return part.weighted_sum(weights).flatten()
    return weights @ part.reshape(len(part), -1)


def _values(part: Part) -> int:
    if isinstance(part, Products):
        return part.rows * part.right.shape[2]
    return part[0].numel()


def _slices(records: int, values: int) -> Iterator[slice]:
    step = max(1, VALUES // max(1, values))
    for start in range(0, records, step):
        yield slice(start, start + step)


def _ghost_norms(products: Sequence[Products]) -> Tensor | None:
    """Computes squared norms of the sums of gradients; None if whole gradients cost less."""
    places = sum(each.right.shape[1] for each in products)
    rows, columns = products[0].rows, products[0].right.shape[2]
    words = not any(each.left.is_floating_point() for each in products)
    if not is_cheap(places, rows, columns, words):
        return None
    squared = total([each.bound_norms() for each in products]) ** 2
    if places == 1:
        return squared
    inner = torch.cat(
        [
            total([one[s].inner_products(other[s]) for one in products for other in products])
            for s in _slices(len(squared), places**2)
        ]
    )
    # If terms of different places cancel, rounding can make the norm too small, and the record
    # would exceed its clip. So add a bound of rounding errors (Higham and Mary 2019, thm 2.4).
    taken = torch.finfo(squared.dtype).eps * math.sqrt(rows + columns + places)
    return inner.clamp(min=0) + taken * squared


def is_cheap(places: int, rows: int, columns: int, words: bool = False) -> bool:
    """Tells whether norms of a matrix that is used at `places` places cost less than gradients."""
    return places == 1 or places**2 * ((1 if words else rows) + columns) <= WHOLE * rows * columns


def total(found: Sequence[Tensor]) -> Tensor:
    return sum(found[1:], found[0])


# --- layers ------------------------------------------------------------------------


Formula = Callable[[Any, Tensor, Tensor], Mapping[nn.Parameter, Part]]
"""(layer, input, gradient by the output) -> parts; the first dimension counts records."""

Sums = dict[nn.Parameter, Tensor]
"""Sums of gradients by parameter; float32, or float64 if the model is."""


def _linear(layer: nn.Linear, x: Tensor, grad: Tensor) -> dict[nn.Parameter, Part]:
    x, grad = (each.reshape(len(each), -1, each.shape[-1]) for each in (x, grad))
    return _affine(layer, Products(grad, x, layer.out_features), grad)


def _convolution(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, grad: Tensor
) -> dict[nn.Parameter, Part]:
    """As a linear layer of patches, or as a convolution with a group for each record."""
    padding: Any = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = functional.pad(x, tuple(layer._reversed_padding_repeated_twice), mode=mode)
        padding = tuple(0 for _ in layer.kernel_size)
    # Convolutions in groups are fast only on a CPU.
    products = not x.is_cpu or is_cheap(grad[0, 0].numel(), *layer.weight.flatten(1).shape)
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
    """The parts of a weight and a bias; `grad` is [records, places, rows]."""
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
    """Runs a layer without a formula again, for each record."""
    own = {name: each for name, each in layer.named_parameters() if each.requires_grad}
    first = {each: name for name, each in own.items()}
    # Name each module once: functional_call would not restore a module with two names.
    slots = {
        f"{at}.{name}" if at else name: first[each]
        for at, module in layer.named_modules()
        for name, each in module.named_parameters(recurse=False, remove_duplicate=False)
        if each in first
    }

    def projected(values: Mapping[str, Tensor], x: Tensor, grad: Tensor) -> Tensor:
        placed = {slot: values[name] for slot, name in slots.items()}
        made: Tensor = torch.func.functional_call(layer, placed, (x[None],), tie_weights=False)
        if made.shape != (1, *grad.shape):  # for example because it reads other records
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
            f"{one_line(error)}"
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
"""These are used before those of Opacus, which has GroupNorm and others."""


def _formula(layer: nn.Module) -> Formula:
    from opacus.grad_sample import GradSampleModule
    from opacus.layers.dp_rnn import RNNLinear

    kind = type(layer)
    if kind is RNNLinear:
        return _linear
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
    """A layer with trained parameters, and the formula of their gradients."""

    name: str
    module: nn.Module
    formula: Formula


def ghost_layers(module: nn.Module) -> tuple[Layer, ...]:
    """Finds the layers of a model that have trained parameters of their own, each once.

    A parameter shared with an inner module is not the layer's own. A layer without a formula
    includes the layers inside it.
    """
    return tuple(_layers("", module, set()))


def _layers(name: str, module: nn.Module, known: set[nn.Module]) -> Iterator[Layer]:
    if module in known:
        return
    known.add(module)
    inside = {each for child in module.children() for each in child.parameters()}
    alone = (each for each in module.parameters(recurse=False) if each not in inside)
    if any(each.requires_grad for each in alone):
        yield Layer(name or "the model", module, _formula(module))
        return
    for own, child in module.named_children():
        yield from _layers(f"{name}.{own}" if name else own, child, known)


@dataclass(frozen=True, eq=False)
class LayerUse:
    """One call of a layer in a forward pass: its input, and its output's shape and dtype."""

    layer: Layer
    x: Tensor
    version: int
    shape: torch.Size
    dtype: torch.dtype
    edge: GradientEdge | None
    """None if the output has no gradient, as under no_grad."""


@contextmanager
def watch_uses(
    layers: Sequence[Layer], taps: Sequence[Tensor] | None = None
) -> Iterator[list[LayerUse]]:
    """Lists the uses of layers in the forward passes that run inside this context.

    Calls inside a layer without a formula are part of that layer's use. `taps` are added to the
    outputs, in order; without taps each use gets its edge in autograd's graph. Raises PlanRefused
    if a layer takes or returns more than one tensor.
    """
    uses: list[LayerUse] = []
    within: list[Layer] = []

    def enter(layer: Layer, *_: Any) -> None:
        within.append(layer)

    def note(layer: Layer, _: nn.Module, args: Any, kwargs: Any, output: Any) -> Tensor | None:
        if layer.formula is _whole_layer:
            within.pop()
        if within:
            return None
        given = (*args, *kwargs.values())
        first = next(iter(inspect.signature(layer.module.forward).parameters), None)
        alone = len(given) == 1 and (not kwargs or first in kwargs)
        if not alone or not all(isinstance(each, Tensor) for each in (*given, output)):
            raise PlanRefused(
                f"record privacy: layer {layer.name!r} ({type(layer.module).__name__}) must take "
                "one tensor and give one"
            )
        (x,) = given
        edge = get_gradient_edge(output) if taps is None and output.requires_grad else None
        uses.append(LayerUse(layer, x, x._version, output.shape, output.dtype, edge))
        tapped = taps is not None and len(uses) <= len(taps)
        return output + taps[len(uses) - 1] if taps is not None and tapped else None

    with ExitStack() as hooks:
        for each in layers:
            if each.formula is _whole_layer:
                begun = each.module.register_forward_pre_hook(partial(enter, each))
                hooks.callback(begun.remove)
            handle = each.module.register_forward_hook(partial(note, each), with_kwargs=True)
            hooks.callback(handle.remove)
        yield uses


def clipped_sum(
    parts: Mapping[nn.Parameter, Sequence[Part]], losses: Tensor, bound: float
) -> tuple[Tensor, Callable[[Sums], None]]:
    """Computes norms of records' gradients, and prepares their sum, each clipped to `bound` (L2).

    Returns the norms before the clip [records], and a function that adds the clipped gradients to
    sums. Call it only if all norms are finite.
    """
    with torch.no_grad():
        room, found = VALUES, dict[nn.Parameter, tuple[Tensor, Sum]]()
        for parameter, of in parts.items():
            squared, added, kept = norms_and_sum(of, room)
            found[parameter] = (squared, added)
            room -= kept
        norms = torch.zeros_like(losses, dtype=wide_dtype(losses.dtype))
        if found:
            norms = total([squared for squared, _ in found.values()]).sqrt()
        weights = (bound / (norms + 1e-6)).clamp(max=1)

    @torch.no_grad()
    def add(sums: Sums) -> None:
        for parameter, (_, added) in found.items():
            sums[parameter] += added(weights).reshape(parameter.shape)

    return norms, add


def count_values(loss: Tensor, uses: Sequence[LayerUse]) -> int:
    """Counts the values of gradients that one record needs in memory at a time.

    Raises PlanRefused if a layer's first dimension does not count records, if it has no gradients
    by record, or if its input was changed afterwards.
    """
    edges = [each.edge for each in uses if each.edge is not None]
    grads = iter(torch.autograd.grad(loss, edges, allow_unused=True) if edges else ())
    seen = [
        (use, grad) for use in uses if use.edge is not None and (grad := next(grads)) is not None
    ]
    for use, grad in seen:
        _refuse_other_records(use, grad)
    made = by_parameter([(use.layer, use.x.detach(), grad) for use, grad in seen])
    return sum(p.numel() for of in made.values() for p in of if isinstance(p, Tensor))


def _refuse_other_records(use: LayerUse, grad: Tensor) -> None:
    name = f"layer {use.layer.name!r} ({type(use.layer.module).__name__})"
    for each in (use.x, grad):
        if each.ndim == 0 or len(each) != 1:
            raise PlanRefused(
                f"record privacy: {name} has {tuple(each.shape)} where there is 1 record; the "
                "first dimension of what every layer takes and gives must count records "
                "(positions too: torch.arange(n).expand(len(x), n))"
            )
    if use.x._version != use.version:
        raise PlanRefused(
            f"record privacy: what went into {name} was changed in place after; make that a new "
            "tensor (ReLU without inplace, x = x + y instead of x += y)"
        )


@torch.no_grad()
def by_parameter(
    seen: Iterable[tuple[Layer, Tensor, Tensor]],
) -> dict[nn.Parameter, list[Part]]:
    """Computes the parts of records' gradients by parameter; PlanRefused if a layer has none.

    `seen` has each use's layer, its input, and the loss's gradient by its output.
    """
    parts: dict[nn.Parameter, list[Part]] = {}
    for layer, x, grad in seen:
        if x.is_floating_point():
            x = x.to(wide_dtype(x.dtype))
        for parameter, part in layer.formula(
            layer.module, x, grad.to(wide_dtype(grad.dtype))
        ).items():
            if parameter.requires_grad:
                parts.setdefault(parameter, []).append(part)
    return parts


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and norms: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def refuse_outside(loss: Tensor, uses: Sequence[LayerUse], module: nn.Module) -> None:
    """Refuses parameters that are used outside their layers, where gradients would be missed."""
    names = {id(each): name for name, each in module.named_parameters() if each.requires_grad}
    inputs = {use.edge.node: use.x.grad_fn for use in uses if use.edge is not None}
    for node in graph_nodes([loss.grad_fn], inputs):
        name = names.get(id(getattr(node, "variable", None)))
        if name is not None:
            raise PlanRefused(
                f"record privacy: parameter {name!r} is used outside of its layer's own forward, "
                "or what came out of its layer is changed in place; call the layer itself, and use "
                "ReLU without inplace"
            )


def graph_nodes(roots: Iterable[Any], passed: Mapping[Any, Any] | None = None) -> Iterator[Any]:
    """Yields autograd's nodes from the roots on, each once; skips a `passed` one to its value."""
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
