"""The integers of a whole update, which clients make block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.integers import BlockIntegers
from secureps.model.layout import GroupLayout


def whole(layout: GroupLayout, blocks: Iterable[BlockIntegers]) -> NDArray[np.integer[Any]]:
    """Those of the whole update, from every block in two pieces."""
    sizes = [last - first for first, last in map(layout.sent_span, range(layout.blocks))]
    spans = [(0, size // 2, size) for size in sizes]
    return np.concatenate(
        [
            part
            for (first, middle, last), made in zip(spans, blocks, strict=True)
            for part in (made(first, middle), made(middle, last))
        ]
    )


def cut(layout: GroupLayout, values: NDArray[np.integer[Any]]) -> Iterator[BlockIntegers]:
    """Those of every block, from those of the whole update."""
    spans = (slice(*layout.sent_span(block)) for block in range(layout.blocks))
    return (partial(_part, values[span]) for span in spans)


def _part(values: NDArray[np.integer[Any]], first: int, last: int) -> NDArray[np.integer[Any]]:
    return values[first:last]
