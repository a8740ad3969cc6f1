"""Codes differences of values where they lie, to the bytes of `codec.delta`.

All of it is single operations of float64 and shifts of int64. What must not live here: which values
are in a difference (`policy.block_deltas`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from secureps.codec.delta import PIECE
from secureps.codec.delta_kernels import BIAS
from secureps.device.norms import TOGETHER, pieces

_SHIFT, _ZERO = 52, 1023
"""Where the exponent of a float64 lies, and what is written there for 2^0."""


def encode(exact: Tensor, published: Tensor, bits: int) -> Tensor:
    """The codes that bring what is published to what is exact: `codec.delta.encode`.

    Args:
        exact, published: float32 (n,). bits: 2 to 8.
    Returns:
        uint8, of as many bytes as there.
    """
    parts = zip(pieces(exact, TOGETHER), pieces(published, TOGETHER), strict=True)
    coded = [_coded(*part, bits) for part in parts]
    exponents, codes = zip(*coded, strict=True) if coded else ((), ())
    empty = torch.empty(0, dtype=torch.uint8, device=exact.device)
    return torch.cat((empty, *exponents, *codes))


def _coded(exact: Tensor, published: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Exponents, uint8 (pieces,), and codes, uint8, of whole pieces and a rest."""
    count, most = exact.numel(), (1 << (bits - 1)) - 1
    now, before = _table(exact), _table(published)
    apart = now.double() - before.double()
    size = apart.abs()
    top = torch.where(size < math.inf, size, 0.0).amax(1)
    exponent = torch.frexp(top).exponent.to(torch.int64) - (bits - 1)
    exponent += (top > _power(exponent) * most).to(torch.int64)
    exponent.clamp_(1 - BIAS, 129 - bits)
    near = (apart * _power(-exponent)[:, None]).round_().clamp_(-most, most)
    moved = before + (near * _power(exponent)[:, None]).float()
    good = (now.abs() < math.inf) & (moved.abs() < math.inf)
    codes = torch.where(good, near, 0.0).to(torch.int64).view(-1) + (most + 1)
    codes[count:] = 0  # there is nothing
    eights = codes.view(-1, 8)[: -(-count // 8)]
    words = torch.zeros_like(eights[:, 0])
    for k in range(8):
        words |= eights[:, k] << (bits * k)
    made = torch.stack([(words >> (8 * j)) & 255 for j in range(bits)], dim=1)
    return (exponent + BIAS).to(torch.uint8), made.view(-1).to(torch.uint8)


def _table(values: Tensor) -> Tensor:
    """Values in rows of a piece each, float32 (pieces, PIECE); zeros follow."""
    rest = -values.numel() % PIECE
    return torch.nn.functional.pad(values, (0, rest)).view(-1, PIECE)


def _power(exponent: Tensor) -> Tensor:
    """2^e exactly, float64, of int64 from -1022 to 1023."""
    return ((exponent + _ZERO) << _SHIFT).view(torch.float64)
