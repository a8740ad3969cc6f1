"""The ChaCha20 key stream (RFC 8439) on the device: words of noise and of public polynomials.

One lane makes one block of 16 words. There are + ^ and rotations alone, no branch, and no address
that depends on a word. What must not live here: what the words are for.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _quarter(a, b, c, d):
    """The quarter round of RFC 8439, section 2.1; words turn to the left."""
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit(do_not_specialize=["counter", "nonce", "blocks"])
def key_stream(
    key, out, counter: tl.uint32, nonce: tl.uint32, blocks: tl.int32, LANES: tl.constexpr
):
    """Writes `blocks` blocks of a stream from block `counter` on.

    Args:
        key: uint32 (8,); nonce: its lowest 32 bits, the others are 0.
        out: uint32 (16 blocks,).
    """
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    here = lane < blocks
    zeros = tl.zeros((LANES,), tl.uint32)
    k0, k1, k2, k3 = tl.load(key), tl.load(key + 1), tl.load(key + 2), tl.load(key + 3)
    k4, k5, k6, k7 = tl.load(key + 4), tl.load(key + 5), tl.load(key + 6), tl.load(key + 7)
    first = (counter + lane).to(tl.uint32)
    chosen = zeros + nonce.to(tl.uint32)
    x0, x1, x2, x3 = zeros + 0x61707865, zeros + 0x3320646E, zeros + 0x79622D32, zeros + 0x6B206574
    x4, x5, x6, x7 = zeros + k0, zeros + k1, zeros + k2, zeros + k3
    x8, x9, x10, x11 = zeros + k4, zeros + k5, zeros + k6, zeros + k7
    x12, x13, x14, x15 = first, chosen, zeros, zeros
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    to = out + 16 * lane
    tl.store(to, x0 + 0x61707865, mask=here)
    tl.store(to + 1, x1 + 0x3320646E, mask=here)
    tl.store(to + 2, x2 + 0x79622D32, mask=here)
    tl.store(to + 3, x3 + 0x6B206574, mask=here)
    tl.store(to + 4, x4 + k0, mask=here)
    tl.store(to + 5, x5 + k1, mask=here)
    tl.store(to + 6, x6 + k2, mask=here)
    tl.store(to + 7, x7 + k3, mask=here)
    tl.store(to + 8, x8 + k4, mask=here)
    tl.store(to + 9, x9 + k5, mask=here)
    tl.store(to + 10, x10 + k6, mask=here)
    tl.store(to + 11, x11 + k7, mask=here)
    tl.store(to + 12, x12 + first, mask=here)
    tl.store(to + 13, x13 + chosen, mask=here)
    tl.store(to + 14, x14, mask=here)
    tl.store(to + 15, x15, mask=here)
