"""Makes a group's update of a trained model: what changed, what was kept, and the clip of both.

It is made on the device where the model was trained, if it is left there, else on the host: the
same bits. What must not live here: rounding and noise (`client.integers`), and training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.clipping import clip_update
from secureps.client.feedback import add_kept
from secureps.client.held_tensor import HeldTensor
from secureps.client.update import Update
from secureps.model.difference import difference
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan
from secureps.policy.tensor_kinds import Kind


def trained_update(
    party: str,
    plan: Plan,
    layout: GroupLayout,
    model: tuple[Sequence[NDArray[np.float32]], Mapping[str, Any]],
    kept: NDArray[np.float32] | None,
    scale: float | None,
    kinds: Mapping[str, Kind],
) -> Update:
    """The clipped update of a group; in memory, and to be changed, where the plan has feedback.

    Args:
        party: the client, which is told.
        model: the group's published blocks, in order; the trained tensors by name.
        kept: what the last update did not carry, float32 (size,), or None.
        scale, kinds: as `clip_update` takes them.
    Raises:
        NotFinite: a value is not finite.
    """
    published, trained = model
    if any(isinstance(trained.get(spec.name), HeldTensor) for spec in layout.tensors):
        # torch, which who holds a tensor has loaded
        from secureps.client.device_update import device_update

        there = device_update(party, plan, layout, model, kept, scale, kinds)
        if there is not None:
            return there
    delta = add_kept(difference(layout, published, trained), kept)
    made = clip_update(party, plan, layout, delta, scale, kinds)
    return made.held() if plan.group(layout.name).feedback else made
