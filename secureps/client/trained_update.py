"""Makes a group's update of a trained model: what changed, what was kept, and the clip of both.

It is made on the device where the model was trained, if it is left there, else on the host: the
same bits.
"""

from __future__ import annotations

from secureps.client.clipping import clip_update
from secureps.client.feedback import add_kept
from secureps.client.held_tensor import HeldTensor
from secureps.client.trained import Trained
from secureps.client.update import Update
from secureps.model.difference import difference


def trained_update(made: Trained) -> Update:
    """The clipped update of a group; in memory, and to be changed, where the plan has feedback.

    Raises:
        NotFinite: a value is not finite.
    """
    plan, layout = made.plan, made.layout
    named = (made.model.get(spec.name) for spec in layout.tensors)
    held = next((each for each in named if isinstance(each, HeldTensor)), None)
    if held is not None:
        # torch, which who holds a tensor has loaded
        from secureps.client.device_update import device_update

        there = device_update(made, held.tensor.device)
        if there is not None:
            return there
    delta = add_kept(difference(layout, made.published, made.model), made.kept)
    update = clip_update(plan, layout, delta, made.scale, made.kinds)
    return update.held() if plan.group(layout.name).feedback else update
