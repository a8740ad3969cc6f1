"""Norms and weighted sums of one parameter's gradients by record, whole only where that is less.

A matrix's gradient by a record is a product of two factors with a row for each place; its norm
follows from two matrices of places by places (Li et al. 2021, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor

WHOLE = 32
"""Multiplications for a norm alone that are worth a value of a gradient: measured on a CPU."""

VALUES = 1 << 26
"""Values of records' gradients, or of places by places, that are there at a time: 256 MiB."""


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

    def __len__(self) -> int:
        return len(self.right)

    def __getitem__(self, of: slice) -> Products:
        return Products(self.left[of], self.right[of], self.rows)

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

Sum = Callable[[Tensor], Tensor]
"""Weights [records] -> the sum of a parameter's gradients, each times its record's weight."""


def norms_and_sum(parts: Sequence[Part], room: int) -> tuple[Tensor, Sum, int]:
    """The squared norms of one parameter's gradients [records], how to add them up, what is kept.

    Args:
        room: values of whole gradients that may be kept for that; more are made again.
    """
    tensors = [each for each in parts if isinstance(each, Tensor)]
    products = _joined([each for each in parts if isinstance(each, Products)])
    parts = [*products, *tensors]
    if not tensors and (squared := _ghost_norms(products)) is not None:
        return squared, lambda weights: total([each.weighted(weights) for each in products]), 0
    records, values = len(parts[0]), _values(parts[0])
    if records * values <= room:
        whole = _whole(parts, slice(records))
        squared = torch.linalg.vector_norm(whole, dim=1) ** 2
        return squared, lambda weights: weights @ whole, records * values
    norms = [torch.linalg.vector_norm(_whole(parts, s), dim=1) for s in _slices(records, values)]
    squared = torch.cat(norms) ** 2
    return squared, lambda weights: total([_weighted(each, weights) for each in parts]), 0


def _joined(products: Sequence[Products]) -> list[Products]:
    """The same gradients by fewer uses of more places: a recurrent layer is used once a place."""
    found = []
    for floats in (True, False):
        of = [each for each in products if each.left.is_floating_point() == floats]
        if len(of) > 1:
            left, right = (torch.cat([get(p) for p in of], dim=1) for get in _FACTORS)
            of = [Products(left, right, of[0].rows)]
        found += of
    return found


_FACTORS = attrgetter("left"), attrgetter("right")


def _whole(parts: Sequence[Part], of: slice) -> Tensor:
    """The gradients of these records by one parameter; [records, values]."""
    cut = [each[of] for each in parts]
    return total([p.whole() if isinstance(p, Products) else p.reshape(len(p), -1) for p in cut])


def _weighted(part: Part, weights: Tensor) -> Tensor:
    if isinstance(part, Products):
        return part.weighted(weights).flatten()
    return weights @ part.reshape(len(part), -1)


def _values(part: Part) -> int:
    if isinstance(part, Products):
        return part.rows * part.right.shape[2]
    return part[0].numel()


def _slices(records: int, values: int) -> Iterator[slice]:
    """Slices of so many records that there are at most `VALUES` values of a record in each."""
    step = max(1, VALUES // max(1, values))
    for start in range(0, records, step):
        yield slice(start, start + step)


def _ghost_norms(products: Sequence[Products]) -> Tensor | None:
    """The squared norms of the sums of these gradients; None where making them costs less."""
    places = sum(each.right.shape[1] for each in products)
    rows, columns = products[0].rows, products[0].right.shape[2]
    words = not any(each.left.is_floating_point() for each in products)
    if not few(places, rows, columns, words):
        return None
    squared = total([each.lengths() for each in products]) ** 2
    if places == 1:
        return squared
    inner = torch.cat(
        [
            total([one[s].inner(other[s]) for one in products for other in products])
            for s in _slices(len(squared), places**2)
        ]
    )
    # Where places cancel, rounding may leave less than the norm, and a record would get past its
    # clip. So as much is added as rounding may have taken (Higham and Mary 2019, theorem 2.4).
    taken = torch.finfo(squared.dtype).eps * math.sqrt(rows + columns + places)
    return inner.clamp(min=0) + taken * squared


def few(places: int, rows: int, columns: int, words: bool = False) -> bool:
    """Whether norms cost less than gradients, of a matrix by so many places.

    Args:
        words: whether left rows are single ones, which cost a comparison and no product.
    """
    return places == 1 or places**2 * ((1 if words else rows) + columns) <= WHOLE * rows * columns


def total(found: Sequence[Tensor]) -> Tensor:
    """Adds up one tensor or more, in order."""
    return sum(found[1:], found[0])
