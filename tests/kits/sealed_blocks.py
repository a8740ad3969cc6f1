"""The integers of a whole update, which clients make block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from secureps.client.sealing import BlockIntegers
from secureps.model.layout import GroupLayout


def whole(blocks: Iterable[BlockIntegers]) -> NDArray[np.int64]:
    return np.concatenate([integers() for integers in blocks])


def cut(layout: GroupLayout, values: NDArray[np.int64]) -> Iterator[BlockIntegers]:
    spans = (slice(*layout.span(block)) for block in range(layout.blocks))
    return (partial(values.__getitem__, span) for span in spans)
