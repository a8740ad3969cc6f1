"""What DP-SGD refuses of a model: what would let a record past its clip, or past the noise.

What must not live here: steps, noise, and how gradients are clipped.
"""

from __future__ import annotations

import torch
from torch import nn

from secureps.errors import PlanRefused

_INSTEAD = (
    "; what mixes records stays refused where the plan keeps it local; GroupNorm or LayerNorm do "
    "not mix them, and opacus.validators.ModuleValidator.fix(model) puts GroupNorm in"
)


def refuse_model(module: nn.Module) -> None:
    """Refuses weights in which noise is lost, and layers without per-record gradients (BatchNorm).

    Noise that is added in bfloat16 is rounded away beside a long sum, and the sum leaves as it is.
    A layer that mixes records, trainable or not, would let a record change the gradients of others,
    past its own clip.

    Raises:
        PlanRefused: there is one; names it.
    """
    for name, each in module.named_parameters():
        if each.requires_grad and torch.finfo(each.dtype).bits < 32:
            raise PlanRefused(
                f"record privacy: parameter {name!r} is {str(each.dtype).removeprefix('torch.')}, "
                "in which noise is lost by rounding; keep weights float32, and let the model's "
                "forward compute under torch.autocast"
            )
    from opacus import layers
    from opacus.validators import ModuleValidator

    for name, layer in module.named_modules():
        for own in ("max_norm", "scale_grad_by_freq"):
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and getattr(layer, own):
                raise PlanRefused(
                    f"record privacy: layer {name or 'the model'!r} ({type(layer).__name__}) "
                    f"scales rows by which records look them up, without noise: leave out {own}"
                )
        check = ModuleValidator.VALIDATORS.get(type(layer))
        errors = [] if check is None else check(layer)
        if errors:
            own = f"DP{type(layer).__name__}"  # DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
            text = f"; take opacus.layers.{own} in its place, which has the same arguments"
            raise PlanRefused(
                f"record privacy: layer {name or 'the model'!r} ({type(layer).__name__}) cannot "
                f"be trained under DP-SGD: {' '.join(str(errors[0]).split())}"
                f"{text if hasattr(layers, own) else _INSTEAD}"
            )
