"""A shared random part of a block's values: one of each run of `one_in`, the same for all members.

Whoever knows the words knows the places, so that sums of what was sent at them are sums of the
members' values there. The last run may be shorter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.errors import PlanRefused


def sent(values: int, one_in: int) -> int:
    """How many of so many values are sent: ceil(values / one_in)."""
    return -(-values // one_in)


def runs(values: int, one_in: int) -> NDArray[np.int64]:
    """The lengths of the runs, int64 (sent,): `one_in`, but for the last. 1 / length is the
    chance of each value of a run to be sent."""
    lengths = np.full(sent(values, one_in), one_in, np.int64)
    if values % one_in:
        lengths[-1] = values % one_in
    return lengths


def places(values: int, one_in: int, words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Draws the place of one value in each run: floor(word * length / 2^32) after its start.

    Every place of a run is as likely as any other, within one_in / 2^32.

    Args:
        values: of the block.
        one_in: the length of a run, at least 1.
        words: uint32 (sent,), uniform.
    Returns:
        int64 (sent,), ascending.
    Raises:
        PlanRefused: there is no such run.
    """
    if one_in < 1:
        raise PlanRefused(f"one in {one_in} values cannot be sent: 1 or more")
    lengths = runs(values, one_in)
    drawn = words.astype(np.uint64) * lengths.astype(np.uint64) >> np.uint64(32)
    drawn += np.arange(0, values, one_in, dtype=np.uint64)
    return drawn.view(np.int64)
