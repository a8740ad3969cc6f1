"""The inputs of an update: a group's trained values, the published ones, and what was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.policy.tensor_kinds import Kind


@dataclass(frozen=True)
class Trained:
    """A trained model of a group, of which an update is made.

    Args:
        party: the client, which is told.
        published: the group's blocks that were pulled, in order; model: trained tensors by name.
        kept: what the last update did not carry, float32 (size,).
        scale, kinds: as `clip_update` takes them.
    """

    party: str
    plan: Plan
    layout: GroupLayout
    published: Sequence[NDArray[np.float32]]
    model: Mapping[str, Any]
    kept: NDArray[np.float32] | None = None
    scale: float | None = None
    kinds: Mapping[str, Kind] = field(default_factory=dict)
