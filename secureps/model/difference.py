"""What training changed of a group, in float32, part by part: nobody holds all of it.

difference = trained - published, both as the group's layout has them in float32
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.messages.schema import TensorSpec
from secureps.model.layout import SCALE, GroupLayout, cast

Part = Callable[[int, int], NDArray[np.float32]]
"""Makes the values [first, last) of a vector: float32, an array of its own, from any thread."""

EXACT = ("float32", "float64")
"""Types that every float32 passes through unchanged."""


def difference(
    layout: GroupLayout, published: Sequence[NDArray[np.float32]], trained: Mapping[str, Any]
) -> Part:
    """The difference of a trained group and what it began with; 0 for a scale.

    A published value counts as the trainer saw it: in its tensor's type.

    Args:
        published: the group's blocks, in order.
        trained: tensors by name, which nobody may change as long as parts are made. Values that
            are not finite make differences that are not.
    Raises:
        WrongShape: a tensor is missing, or has another shape or dtype.
    """
    tensors = list(layout.views(trained))
    starts = [0, *itertools.accumulate(view.size for _, view in tensors)]
    ends = [0, *itertools.accumulate(block.size for block in published)]

    def part(first: int, last: int) -> NDArray[np.float32]:
        out = np.empty(last - first, np.float32)
        for k, start, stop in runs(starts, first, last):
            spec, view = tensors[k]
            if spec == SCALE:
                out[start - first : stop - first] = 0
                continue
            for j, begin, end in runs(ends, start, stop):
                now = view[begin - starts[k] : end - starts[k]]
                before = published[j][begin - ends[j] : end - ends[j]]
                subtract(spec, now, before, out[begin - first : end - first])
        return out

    return part


def runs(starts: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """(k, begin, end) of what [first, last) has of every run [starts[k], starts[k + 1])."""
    k = bisect_right(starts, first) - 1
    while first < last:
        end = min(last, starts[k + 1])
        if first < end:
            yield k, first, end
        first, k = end, k + 1


def subtract(
    spec: TensorSpec, now: NDArray[Any], before: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """out = now - before of values of a tensor; float32 (n,) but for `now`."""
    with np.errstate(over="ignore", invalid="ignore"):
        if now.dtype == np.float32:
            np.subtract(now, before, out=out)
            return
        out[:] = now
        out -= before if spec.dtype in EXACT else cast(before, spec).astype(np.float32)
