"""The words of a stream, ChaCha20 (RFC 8439), made on the device that uses them.

In operations of torch: additions of int32 wrap around, and a rotation is two shifts and a mask.
Nothing else is needed, so that every device makes the words that `crypto.sampling.Stream` makes on
the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from secureps.crypto.sampling import Stream

BLOCK = 16
"""Words of a block."""


def rotated_left(x: Tensor, bits: int) -> Tensor:
    """x, int32 of any shape, with its bits moved round to the left."""
    # `>>` of a signed number brings its sign along: the mask takes that away again
    return (x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))


def words(stream: Stream, first: int, count: int, device: torch.device) -> Tensor:
    """Words first to first + count of a stream, counted from its beginning.

    Returns:
        int32 (count,), the bits of the stream's uint32, on the device; it takes the memory of three
        such tensors meanwhile.
    Raises:
        InternalError: beyond the end of the stream.
    """
    skipped = first % BLOCK
    blocks = -(-(skipped + count) // BLOCK)
    given = torch.from_numpy(stream.state(first, count).astype("int64")).to(device)
    start = given.to(torch.int32).reshape(4, 4, 1).repeat(1, 1, blocks)
    # the counter is below 2^32, as `state` sees to
    start[3, 0] = (given[12] + torch.arange(blocks, device=device)).to(torch.int32)
    a, b, c, d = start.clone()
    for _ in range(10):
        a, b, c, d = _round(a, b, c, d)  # of columns, then of diagonals
        a, b, c, d = _round(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    made = torch.stack((a, b, c, d)) + start
    return made.reshape(BLOCK, blocks).t().reshape(-1)[skipped : skipped + count]


def _round(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds beside one another, of rows of a state, each (4, blocks)."""
    return _half_round(*_half_round(a, b, c, d, 16, 12), 8, 7)


def _half_round(
    a: Tensor, b: Tensor, c: Tensor, d: Tensor, left_d: int, left_b: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half of a quarter round, by how far it turns d and b to the left.

    Args:
        a, b, c, d: int32, of one shape.
    """
    a = a + b
    d = rotated_left(d ^ a, left_d)
    c = c + d
    b = rotated_left(b ^ c, left_b)
    return a, b, c, d


def unsigned(made: Tensor) -> Tensor:
    """The same words as they count, int64 in [0, 2^32)."""
    return made.to(torch.int64) & 0xFFFFFFFF
