"""Keeps a part of the newest opened mean of each group, and says how far it is from the one before.

The gradient noise scale of a run follows from that (`policy.scaling.gradient_noise`). The means are
opened already, and published as the model moves by them; no sum is asked for that is not. It is
kept in memory alone: after a restart one pair of versions is passed over. What must not live here:
the estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from secureps.messages.evaluation import EVALUATION
from secureps.messages.requests import Figure
from secureps.policy.plan import Plan
from secureps.policy.scaling.gradient_noise import MEAN_CHANGE, MEAN_SQUARE, MOST

SAMPLE = 64
"""Values that are kept of each piece that is stepped at a time (`service.shard.stepping.PIECE`)."""


Means: TypeAlias = Mapping[int, Sequence[float]]
"""By block, the values of a mean that are kept; none where they are not `wanted`."""


def wanted(plan: Plan, group: str) -> bool:
    """Whether parts of a group's mean are kept: where a plan follows the load."""
    return plan.section.scaling is not None and group != EVALUATION


class MeanSamples:
    """Of one shard."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, dict[int, NDArray[np.float64]]]] = {}

    def figures(self, group: str, version: int, blocks: Means) -> tuple[Figure, ...]:
        """What the shard reports of a version, in squares of a value's unit.

        Args:
            blocks: of the mean; the same values every time.
        """
        if not blocks:
            return ()
        own = {block: np.asarray(values, np.float64) for block, values in blocks.items()}
        known, before = self._newest.get(group, (-1, {}))
        self._newest[group] = version, own
        square = sum(float(values @ values) for values in own.values())
        alike = before.keys() == own.keys() and all(before[b].size == own[b].size for b in own)
        found = {MEAN_SQUARE: square}
        if known == version - 1 and alike:  # not made again, and no blocks have moved
            found[MEAN_CHANGE] = sum(float(np.sum((own[b] - before[b]) ** 2)) for b in own)
        if not all(value <= MOST for value in found.values()):
            return ()
        return tuple(Figure(name, value) for name, value in found.items())
