"""BLAKE3 of values that lie on a device, in operations of torch.

Chunks of 1024 bytes are hashed beside one another, then their digests in pairs, and so on up to
the root. All of it is additions, shifts and exclusive ors of int32, so that every device has the
digest of `messages.encoding.payload_digest`. What must not live here: what is hashed.
Source: https://github.com/BLAKE3-team/BLAKE3-specs, sections 2.2 to 2.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from secureps.device.words import half_round

_CHUNK = 256
"""Words of a chunk."""
_BLOCK = 16
"""Words of a block, which are compressed together."""
_TOGETHER = 1 << 24
"""Values hashed at a time: 2^16 chunks, whose digests are the leaves of a whole tree."""
_START, _END, _PARENT, _ROOT = 1, 2, 4, 8
_IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
_PERMUTED = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_ROUNDS = 7


def _orders() -> list[list[int]]:
    """Which words of a block each round takes."""
    orders = [list(range(_BLOCK))]
    while len(orders) < _ROUNDS:
        orders.append([orders[-1][k] for k in _PERMUTED])
    return orders


_ORDERS = _orders()


def payload_digest(values: Tensor) -> bytes:
    """BLAKE3 of the little-endian bytes of values: 32 bytes.

    Besides them, memory for a quarter of 2^24 values is used.

    Args:
        values: float32 (n,), contiguous.
    """
    words = values.view(torch.int32)
    whole = max(words.numel() - 1, 0) // _CHUNK  # chunks before the last, which may be the root
    trees, leaves = list[Tensor](), list[Tensor]()
    for start in range(0, whole * _CHUNK, _TOGETHER):
        piece = words[start : min(start + _TOGETHER, whole * _CHUNK)].view(-1, _CHUNK)
        digests = _chunks(piece, start // _CHUNK)
        if piece.numel() == _TOGETHER:
            trees.append(_merged(digests))
        else:
            leaves.append(digests)
    leaves.append(_last_chunk(words[whole * _CHUNK :], whole))
    rest = torch.cat(leaves, dim=1)  # of fewer chunks than a whole tree, or of as many
    if trees:
        rest = torch.cat([*trees, _merged(rest)], dim=1)
    root = _merged(rest, _ROOT) if whole else rest
    return root.reshape(8).cpu().numpy().astype("<i4").tobytes()


def _chunks(words: Tensor, number: int) -> Tensor:
    """The digests of whole chunks, int32 (8, n); the first one has that number.

    Args:
        words: int32 (n, 256).
    """
    count = words.shape[0]
    digest = _constant(_IV, words.device, count)
    numbers = number + torch.arange(count, device=words.device)
    for k in range(_CHUNK // _BLOCK):
        block = words[:, _BLOCK * k : _BLOCK * (k + 1)].t().contiguous()
        flags = (_START if k == 0 else 0) | (_END if k == _CHUNK // _BLOCK - 1 else 0)
        digest = _compress(digest, block, numbers, 4 * _BLOCK, flags)
    return digest


def _last_chunk(words: Tensor, number: int) -> Tensor:
    """The digest of up to 256 words, int32 (8, 1); the root's where there is no other chunk."""
    digest = _constant(_IV, words.device, 1)
    numbers = torch.full((1,), number, device=words.device)
    blocks = max(-(-words.numel() // _BLOCK), 1)
    for k in range(blocks):
        part = words[_BLOCK * k : _BLOCK * (k + 1)]
        block = torch.zeros(_BLOCK, 1, dtype=torch.int32, device=words.device)
        block[: part.numel(), 0] = part
        flags = _START if k == 0 else 0
        if k == blocks - 1:
            flags |= _END | (0 if number else _ROOT)
        digest = _compress(digest, block, numbers, 4 * part.numel(), flags)
    return digest


def _merged(digests: Tensor, last: int = 0) -> Tensor:
    """What is above digests, int32 (8, n), pair by pair: (8, 1).

    Args:
        last: flags of the last pair.
    """
    while digests.shape[1] > 1:
        pairs = digests.shape[1] // 2
        blocks = torch.cat((digests[:, 0 : 2 * pairs : 2], digests[:, 1 : 2 * pairs : 2]))
        flags = _PARENT | (last if digests.shape[1] == 2 else 0)
        start = _constant(_IV, digests.device, pairs)
        zeros = torch.zeros(pairs, dtype=torch.int64, device=digests.device)
        made = _compress(start, blocks, zeros, 4 * _BLOCK, flags)
        digests = torch.cat((made, digests[:, 2 * pairs :]), dim=1)
    return digests


def _compress(digest: Tensor, block: Tensor, numbers: Tensor, length: int, flags: int) -> Tensor:
    """The compression function of n blocks beside one another: int32 (8, n).

    Args:
        digest: int32 (8, n); block: int32 (16, n); numbers: of chunks, int64 (n,).
        length: bytes of a block; flags: of all of them.
    """
    count = numbers.numel()
    a, b = digest[:4], digest[4:]
    c = _constant(_IV[:4], block.device, count)
    d = torch.empty(4, count, dtype=torch.int32, device=block.device)
    d[0], d[1] = numbers.to(torch.int32), (numbers >> 32).to(torch.int32)
    d[2], d[3] = length, flags
    for order in _ORDERS:
        a, b, c, d = _round(a, b, c, d, block[order[0:8:2]], block[order[1:8:2]])
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        a, b, c, d = _round(a, b, c, d, block[order[8::2]], block[order[9::2]])
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat((a ^ c, b ^ d))


def _round(
    a: Tensor, b: Tensor, c: Tensor, d: Tensor, even: Tensor, odd: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds beside one another, with two words of the block each; all (4, n)."""
    a, b, c, d = half_round(a + even, b, c, d, 16, 20)
    return half_round(a + odd, b, c, d, 24, 25)


def _constant(words: tuple[int, ...], device: torch.device, count: int) -> Tensor:
    signed = [word - (1 << 32 if word >> 31 else 0) for word in words]
    made = torch.tensor(signed, dtype=torch.int32, device=device)
    return made[:, None].repeat(1, count)
