"""The private sum: clipped gradients of a sample's records or persons, each from its data alone.

DP-SGD steps by the sum of min(1, C / |g_i|) g_i over the records i of a sample (Abadi et al. 2016,
algorithm 1). `torch.func` computes g_i as the gradient of the loss of record i, so no record
changes what another one adds. Norm and sum come from the same tensors, so no record adds more than
C. Privacy needs nothing else from a model, whatever layers it has: a gradient that were wrong would
be clipped and hidden as any other. A model that `torch.func.vmap` cannot take is called for one
record after the other.

The gradient of a dense layer's weight is an outer product of two vectors (Goodfellow 2015). These
two stand in its place, because a model of dense layers would otherwise take ten times as long.

A record adds nothing if its loss or its gradient is not finite, or if the model or the loss fails
for it. If training ended instead, that would tell everybody about the record, without any noise.

Where a plan protects persons, the clip is on g_p, the sum of the gradients of all records of person
p, so no person adds more than C, however many records they have.

- g_p is made as a tensor, whose norm is taken. A norm from the factors (a Gram matrix) would save
  memory. But where records cancel, its rounding may exceed g_p, and a person would add more than C.
  Memory has one g_p at a time, as large as the model; a person's records may lie in several parts.
- The sum, not the mean: without clips the step is that of all records, so the model sought is that
  of a plan for records. A mean has the same direction, clip and privacy, but weighs a record less
  the more records its person has.
- A record that cannot be used adds nothing, and the others of its person still count. This
  is private, because it follows from that person alone, and the rest is clipped; otherwise one
  damaged record would silence a thousand good ones. A person whose sum is not finite adds nothing.

A loss whose divisor depends on the batch (weights of classes, the number of tokens that are not
padding) is called for each record alone, with `reduction="none"` if it has that. Models that would
let a record's data past the noise are refused.
"""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
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

from secureps.errors import PlanRefused
from secureps.wording import one_line

log = logging.getLogger("secureps")

MICROBATCH = 1024
"""The most records whose gradients are computed together, which bounds memory."""

VALUES = 1 << 23
"""The most values of gradients that are in memory at a time, unless one record has more: 32 MiB."""

PIECE = 1 << 12
"""Values whose squares are added up in float32. In a longer sum small ones would be lost, and a
record would add more than its clip: by up to a tenth for 64 million values."""

MADE = 16
"""Number of made-up records on which model and loss are tried before the first step."""

Batch = Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]]
"""indices -> the inputs and targets of these records, on the model's device."""


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
class OuterProducts:
    """Gradients by record of a dense layer's weight, as factors.

    Args:
        left: the loss's gradient by the layer's output; [records, outputs].
        right: the layer's input; [records, inputs].
    """

    left: Tensor
    right: Tensor

    def norms(self) -> Tensor:
        return _norms(self.left) * _norms(self.right)

    def __getitem__(self, records: slice) -> OuterProducts:
        return OuterProducts(self.left[records], self.right[records])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        weighted = self.left * weights[:, None].to(self.left.dtype)
        return (weighted.T @ self.right).flatten()


Gradients = Mapping[Tensor, OuterProducts | Tensor]
"""Gradients by parameter; a tensor is [records, values]."""

Sums = dict[Tensor, Tensor]
"""Sums of gradients by parameter; float32, or float64 if the model is."""


def _norms(gradients: OuterProducts | Tensor) -> Tensor:
    """Computes the L2 norm of each record's gradient; [records]."""
    if isinstance(gradients, OuterProducts):
        return gradients.norms()
    pieces = [
        torch.linalg.vector_norm(each, dim=1) for each in torch.split(gradients, PIECE, dim=1)
    ]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(pieces), dim=0, dtype=torch.float64)
    return norms.to(gradients.dtype)


def _weighted_sum(gradients: OuterProducts | Tensor, weights: Tensor) -> Tensor:
    """Adds up gradients, each times its record's weight; flat."""
    if isinstance(gradients, OuterProducts):
        return gradients.weighted_sum(weights)
    return weights.to(gradients.dtype) @ gradients


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and norms: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


class BatchedGradients:
    """Computes gradients of many records in one pass, by `torch.func`.

    `dense` are layers whose weights get factors. A tap of zeros is added to the output of each, and
    the loss's gradient by the tap is one factor.
    """

    def __init__(self, module: nn.Module, loss: Measure, dense: Sequence[nn.Linear] = ()) -> None:
        self._module, self._loss, self._dense = module, loss, dense
        factored = {each.weight for each in dense}
        trained = [each for each in module.parameters() if each.requires_grad]
        self._own = [each for each in trained if each not in factored]
        order = {each: at for at, each in enumerate(self._own)}
        self._places = {
            name: order[each] for name, each in _named_parameters(module) if each in order
        }

    @property
    def values(self) -> int:
        """Counts the values that one record's gradients have in memory."""
        factors = sum(each.in_features + each.out_features for each in self._dense)
        return sum(each.numel() for each in self._own) + factors

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Gradients]:
        """Computes the losses of records [records], and their gradients."""
        own = [each.detach() for each in self._own]
        taps = [
            each.weight.new_zeros(each.out_features, dtype=wide_dtype(each.weight.dtype))
            for each in self._dense
        ]
        by_record = torch.func.vmap(
            torch.func.grad_and_value(self._loss_of_one, argnums=(0, 1), has_aux=True),
            in_dims=(None, None, 0, 0),
            randomness="different",
        )
        # Under vmap fused attention is slow on a CPU, and an error on CUDA.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            (whole, left), (losses, right) = by_record(own, taps, x, y)
        made: dict[Tensor, OuterProducts | Tensor] = {
            parameter: each.reshape(len(x), -1).to(wide_dtype(each.dtype))
            for parameter, each in zip(self._own, whole, strict=True)
        }
        for layer, *factors in zip(self._dense, left, right, strict=True):
            made[layer.weight] = OuterProducts(*factors)
        return losses, made

    def _loss_of_one(
        self, own: Sequence[Tensor], taps: Sequence[Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Returns the loss of one record, and the inputs of its dense layers."""
        placed = {name: own[at] for name, at in self._places.items()}
        with watch_rows(self._dense, taps) as rows:
            outputs = torch.func.functional_call(
                self._module, placed, (x[None],), tie_weights=False
            )
        if any(len(of) != 1 or len(of[0]) != 1 for of in rows):
            raise PlanRefused(
                "record privacy: the model is not what it was when it was tried before the first "
                "step: a layer is called another number of times; its forward must do the same in "
                "every call"
            )
        right = [of[0][0].to(tap.dtype) for of, tap in zip(rows, taps, strict=True)]
        return record_loss(self._loss, outputs, y[None]), right


def _named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields all names of parameters, but a module that has two names by one of them.

    `functional_call` would not put back what it replaced in a module under two names.
    """
    for at, each in module.named_modules():
        for name, parameter in each.named_parameters(recurse=False, remove_duplicate=False):
            yield (f"{at}.{name}" if at else name), parameter


@contextmanager
def watch_rows(
    layers: Sequence[nn.Linear], taps: Sequence[Tensor] = ()
) -> Iterator[list[list[Tensor]]]:
    """Lists the inputs [rows, inputs] of each call of each layer, and adds taps to the outputs."""
    rows: list[list[Tensor]] = [[] for _ in layers]

    def note(at: int, layer: nn.Linear, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        x: Tensor = next(iter((*args, *kwargs.values())))
        rows[at].append(x.reshape(-1, layer.in_features))
        return output + taps[at].to(output.dtype) if taps else output

    with ExitStack() as hooks:
        for at, layer in enumerate(layers):
            handle = layer.register_forward_hook(partial(note, at), with_kwargs=True)
            hooks.callback(handle.remove)
        yield rows


def dense_layers(module: nn.Module, loss: Measure, x: Tensor, y: Tensor) -> list[nn.Linear]:
    """Finds the layers whose weights' gradients are outer products, by a trial with one record.

    A weight that the model also uses elsewhere has another gradient. The trial shows that, unless
    the other use adds nothing to it in the trial, or less than what bfloat16 rounds.
    """
    names = Counter[Tensor](each for _, each in _named_parameters(module))
    layers = [
        each
        for each in module.modules()
        if type(each) is nn.Linear and names[each.weight] == 1 and each.weight.requires_grad
    ]
    rewind = _make_rewind(x.device)
    with torch.no_grad(), watch_rows(layers) as rows:
        module(x.clone())
    rewind()
    alone = [
        each for each, of in zip(layers, rows, strict=True) if len(of) == 1 and len(of[0]) == 1
    ]
    found = []
    for dense in ((), alone):
        losses, gradients = BatchedGradients(module, loss, dense)(x.clone(), y)
        ones = torch.ones_like(losses)
        found.append([_weighted_sum(gradients[each.weight], ones) for each in alone])
        rewind()
    # Below a last layer that begins at zero both gradients are zero, and prove nothing.
    agree = [(one - other).norm() < 0.02 * one.norm() for one, other in zip(*found, strict=True)]
    return [layer for layer, same in zip(alone, agree, strict=True) if same]


class SingleGradients:
    """Computes gradients of one record after the other, by plain autograd."""

    def __init__(self, module: nn.Module, loss: Measure) -> None:
        self._module, self._loss = module, loss

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Gradients]:
        """Computes the loss of one record [1], and its gradients."""
        own = [each for each in self._module.parameters() if each.requires_grad]
        try:
            loss = record_loss(self._loss, self._module(x), y)
        except PlanRefused as error:  # this may depend on the record: treat it as unusable
            raise ValueError(str(error)) from error
        grads = torch.autograd.grad(loss, own, allow_unused=True)
        made: dict[Tensor, OuterProducts | Tensor] = {
            parameter: grad.to_dense().reshape(1, -1).to(wide_dtype(grad.dtype))
            for parameter, grad in zip(own, grads, strict=True)
            if grad is not None
        }
        return loss.detach()[None], made


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
    functional.multi_margin_loss: partial(_are_classes, ignore_index=0),  # which is a class
    functional.multilabel_margin_loss: partial(_are_classes, ignore_index=-1),
    functional.embedding: _are_rows,
    functional.embedding_bag: _are_rows,
    functional.binary_cross_entropy: _are_probabilities,
}


def gradient_norms(gradients: Gradients, losses: Tensor) -> Tensor:
    """Computes the norms of records' gradients by all parameters together; [records]."""
    if not gradients:
        return torch.zeros_like(losses)
    norms: Tensor = torch.stack([_norms(each) for each in gradients.values()]).norm(dim=0)
    return norms


_Part = tuple[NDArray[np.int64], Gradients, Tensor]
"""Records, their gradients, and the norms of these."""


@dataclass(eq=False)
class PrivateSum:
    """Adds up a model's gradients, clipped to `bound` (L2) by record or by person.

    `most` records are computed together. `left_out` counts the drawn records, and persons whose sum
    is not finite, that have added nothing so far.
    """

    gradients: BatchedGradients | SingleGradients
    most: int
    bound: float
    device: torch.device
    left_out: int = field(default=0, init=False)

    def add(
        self,
        batch: Batch,
        index: NDArray[np.int64],
        sums: Sums,
        persons: NDArray[np.int64] | None = None,
    ) -> None:
        """Adds the gradients of the records in `index`, each clipped.

        `persons` has the person of every record that `batch` knows. With it the sum of each
        person's gradients is clipped, and `index` has one person's records after another's.
        """
        if persons is not None:  # a person's only record needs no sum, which takes longer
            owners = persons[index]
            several = np.bincount(owners)[owners] > 1
            self._add_persons(batch, index[several], sums, persons)
            index = index[~several]
        for _, gradients, norms in self._compute_parts(batch, index):
            self._add_clipped(gradients, norms, sums)

    def _add_persons(
        self, batch: Batch, index: NDArray[np.int64], sums: Sums, persons: NDArray[np.int64]
    ) -> None:
        person, one = -1, Sums()
        for part, gradients, _ in self._compute_parts(batch, index):
            owners = persons[part]
            borders = np.flatnonzero(np.diff(owners, prepend=-1, append=-1))
            for first, last in pairwise(borders.tolist()):
                if owners[first] != person:
                    self._add_person(one, sums)
                    person, one = int(owners[first]), {}
                ones = torch.ones(last - first, device=self.device)
                with torch.autocast(self.device.type, enabled=False):  # as in `_add_clipped`
                    for parameter, each in gradients.items():
                        more = _weighted_sum(each[first:last], ones)
                        one[parameter] = one[parameter] + more if parameter in one else more
        self._add_person(one, sums)

    def _add_person(self, one: Sums, sums: Sums) -> None:
        gradients = {parameter: each[None] for parameter, each in one.items()}
        norms = gradient_norms(gradients, torch.zeros(1, device=self.device))
        if bool(norms.isfinite().all()):
            self._add_clipped(gradients, norms, sums)
        else:
            self.left_out += 1

    def _compute_parts(self, batch: Batch, index: NDArray[np.int64]) -> Iterator[_Part]:
        for start in range(0, len(index), self.most):
            drawn = index[start : start + self.most]
            found = self._compute_usable(batch, drawn)
            self.left_out += len(drawn) - len(found[0])
            yield found

    def _compute_usable(self, batch: Batch, part: NDArray[np.int64]) -> _Part:
        """Returns the usable records of a part, their gradients and norms.

        They are computed again with the same random draws, so that the sum is the same, bit for
        bit, as if the unusable records had never been in the part.
        """
        rewind = _make_rewind(self.device)
        while len(part):
            try:
                losses, gradients = self._try(batch, part)
            except (torch.OutOfMemoryError, PlanRefused):
                raise
            except Exception:
                rewind()
                usable = part[:0] if len(part) == 1 else self._find_passing(batch, part)
                if len(usable) == len(part):  # none of these records fails alone
                    raise
            else:
                norms = gradient_norms(gradients, losses)
                finite = losses.isfinite() & norms.isfinite()
                if bool(finite.all()):
                    return part, gradients, norms
                usable = part[finite.cpu().numpy()]
            part = usable
            rewind()
        return part, {}, torch.zeros(0, device=self.device)

    def _add_clipped(self, gradients: Gradients, norms: Tensor, sums: Sums) -> None:
        weights = (self.bound / (norms + 1e-6)).clamp(max=1)
        # If forward leaves autocast on, in bfloat16 a record would add more than its clip.
        with torch.autocast(self.device.type, enabled=False):
            for parameter, each in gradients.items():
                sums[parameter] += _weighted_sum(each, weights).view_as(parameter)

    def _try(self, batch: Batch, part: NDArray[np.int64]) -> tuple[Tensor, Gradients]:
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
    _keep_records_apart(loss)  # refuses a loss that is no mean
    rewind = _make_rewind(x.device)
    try:
        with torch.no_grad():
            apart = [module(each[None].clone()) for each in x]
        for each in apart:
            refuse_other_rows(each, 1)
        rewind()
        gradients = choose_gradients(module, loss, x, y)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, Warning) as error:
        raise PlanRefused(
            f"record privacy: the model or its loss fails for one record alone that is made to try "
            f"it, of floats in [0, 1) and of whole numbers 0 and 1 ({one_line(error)[:300]}); it "
            "must work for one: squeeze(1), not squeeze()"
        ) from error
    refuse_mixing_loss(loss, apart, y)
    rewind()
    most = 1
    if isinstance(gradients, BatchedGradients):
        most = min(MICROBATCH, max(1, VALUES // max(1, gradients.values)))
    return PrivateSum(gradients, most, bound, x.device)


def zero_sums(parameters: Iterable[nn.Parameter]) -> Sums:
    return {each: torch.zeros_like(each, dtype=wide_dtype(each.dtype)) for each in parameters}


def choose_gradients(
    module: nn.Module, loss: Measure, x: Tensor, y: Tensor
) -> BatchedGradients | SingleGradients:
    """Computes records together if `torch.func.vmap` can take model and loss, else alone."""
    try:
        together = BatchedGradients(module, loss, dense_layers(module, loss, x[:1], y[:1]))
        together(x[:2].clone(), y[:2])
        return together
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        alone = SingleGradients(module, loss)
        alone(x[:1].clone(), y[:1])
        log.warning(
            "record privacy: the model takes one record after the other, which is slow, because "
            "torch.func.vmap cannot take it: %s",
            one_line(error)[:300],
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


# --- the losses of single records, and what DP-SGD refuses of losses and models ----


Measure = Callable[..., Tensor]
"""(outputs, targets) -> a scalar, float32 or float64; a loss is a mean over the records."""


def record_loss(loss: Measure, output: Any, target: Tensor) -> Tensor:
    """Computes one record's loss from its own output and target; the first dimension of both is 1.

    Raises PlanRefused if outputs have no row for the record, or the loss is no mean over records.
    """
    refuse_other_rows(output, 1)
    own, adds_up = _keep_records_apart(loss)
    found = own(output, target).reshape(-1)
    return found.sum() if adds_up else found.mean()


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


def _no_mean_error(what: str) -> PlanRefused:
    return PlanRefused(
        f"record privacy: the loss {what}; it must be a mean over the records, each record's loss "
        "of its own output and target alone (reduction='mean'; in place of weights or masks that "
        "change the divisor, multiply each record's loss)"
    )


def refuse_mixing_loss(loss: Measure, outputs: Sequence[Any], targets: Tensor) -> None:
    """Refuses a loss whose gradients for a batch are not those of each record alone.

    Such a loss is another one if it is called for each record. `outputs` has those of each record.
    """
    rows = [
        map_tensors(each, lambda own: own.detach().clone().requires_grad_(not is_whole(own)))
        for each in outputs
    ]
    inputs = [own for each in rows for own in tensors_in(each) if own.requires_grad]
    own, adds_up = _keep_records_apart(loss)
    try:
        pairs = zip(rows, torch.split(targets, 1), strict=True)
        alone = torch.stack([record_loss(loss, *each) for each in pairs]).sum()
        together = own(_join_records(rows), targets)
        if own is loss and together.ndim:
            raise _no_mean_error(f"is no scalar but {tuple(together.shape)}")
        by_record = together.expand(len(targets)) if own is loss else together
        by_record = by_record.reshape(len(targets), -1)
        together = (by_record.sum(dim=1) if adds_up else by_record.mean(dim=1)).sum()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, Warning) as error:
        raise _no_mean_error(f"fails for {len(targets)} records: {one_line(error)[:300]}") from None
    if not bool(torch.isfinite(together.detach())):
        return  # a loss that is not finite for these records proves nothing
    if not bool(torch.isfinite(alone.detach())):
        raise _no_mean_error("is NaN for a record alone, as the mean of no values is")
    one, other = (_gradient(each, inputs) for each in (together, alone))
    room = torch.finfo(one.dtype).eps ** 0.5
    if not bool(((one - other).abs() <= room * (other.abs() + other.abs().amax())).all()):
        raise _no_mean_error("of a batch is not the mean of its records' losses")


def _gradient(loss: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    found: Sequence[Tensor | None] = [None] * len(inputs)
    if loss.requires_grad:
        found = torch.autograd.grad(loss, inputs, allow_unused=True)
    pairs = zip(inputs, found, strict=True)
    return torch.cat(
        [(torch.zeros_like(own) if each is None else each).flatten() for own, each in pairs]
    )


def _join_records(outputs: Sequence[Any]) -> Any:
    columns = zip(*(tensors_in(each) for each in outputs), strict=True)
    return map_tensors(outputs[0], lambda _: torch.cat(next(columns)))


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
}
"""Layers, and their subclasses, that cannot be trained under DP-SGD: why, and what to do."""


def refuse_model(module: nn.Module) -> None:
    """Refuses weights unfit for noise, and layers without gradients by record (PlanRefused).

    In bfloat16 rounding removes the noise that is added to a long sum. Noise is real, so imaginary
    parts would have none.
    """
    for name, each in module.named_parameters():
        if each.requires_grad and each.is_complex():
            raise PlanRefused(
                f"record privacy: parameter {name!r} is complex, and noise is real; keep its parts "
                "as two float32 parameters, and join them in forward: torch.complex(real, imag)"
            )
        if each.requires_grad and torch.finfo(each.dtype).bits < 32:
            raise PlanRefused(
                f"record privacy: parameter {name!r} is {str(each.dtype).removeprefix('torch.')}, "
                "in which noise is lost by rounding; keep weights float32, and let the model's "
                "forward compute under torch.autocast"
            )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise PlanRefused(
                f"record privacy: layer {name or 'the model'!r} ({type(layer).__name__}) "
                "scales rows by which records look them up, without noise: leave out max_norm"
            )
        for kind, why in _REFUSED.items():
            harmless = isinstance(layer, _InstanceNorm) and not layer.track_running_stats
            if isinstance(layer, kind) and not harmless:
                raise PlanRefused(
                    f"record privacy: layer {name or 'the model'!r} ({type(layer).__name__}) "
                    f"cannot be trained: {why}"
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
        sent = self._module.state_dict(keep_vars=True)
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
    if torch._C._functorch.is_functorch_wrapped_tensor(one):  # assigned inside torch.func.vmap
        return False
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one, other) or torch.allclose(one, other, 0.0, 0.0, equal_nan=True)
