"""The integers of a whole update, which clients make block by block."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from secureps.client.sealing import BlockIntegers


def whole(blocks: Iterable[BlockIntegers]) -> NDArray[np.int64]:
    return np.concatenate([integers() for integers in blocks])
