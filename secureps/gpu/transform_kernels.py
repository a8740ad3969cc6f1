"""The number-theoretic transform of `crypto.ntt` on the device: the same butterflies.

One program transforms one polynomial in memory that is its own, with a barrier between stages; a
stage's butterflies touch two values each, so that none waits for another. The order is the plain
one of the stages; whoever reads or writes transformed values goes by `plain_place`. What must not
live here: what is transformed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from secureps.crypto.ntt import WIDTH as _WIDTH

WIDTH = tl.constexpr(_WIDTH)


@triton.jit
def shoup(y, w, w2, p):
    """w y mod p, in [0, 2p), for any 32-bit y; w2 is the companion of w."""
    return w * y - tl.umulhi(w2, y) * p


@triton.jit
def once(y, p):
    """y mod p for y < 2p: the smaller of y and y - p modulo 2^32."""
    return tl.minimum(y, y - p)


@triton.jit
def reduced(y, whole, p):
    """y mod p for any 32-bit y; `whole` is the companion of 1."""
    return once(y - tl.umulhi(whole, y) * p, p)


@triton.jit
def plain_place(at, N: tl.constexpr):
    """Where a value of the transformed order of `crypto.ntt` lies in the plain one."""
    rows: tl.constexpr = N // WIDTH
    return (at % rows) * WIDTH + at // rows


@triton.jit
def _forth(work, twiddles, p, N: tl.constexpr, STEP: tl.constexpr):
    """One of Cooley and Tukey's stages."""
    k = tl.arange(0, N // 2)
    block = k // STEP
    at, w = work + k + block * STEP, twiddles + N // (2 * STEP) + block
    x = tl.load(at)
    z = shoup(tl.load(at + STEP), tl.load(w), tl.load(w + N), p)
    tl.store(at, x + z)
    tl.store(at + STEP, x + p + p - z)
    tl.debug_barrier()


@triton.jit
def _back(work, twiddles, p, N: tl.constexpr, STEP: tl.constexpr):
    """One of Gentleman and Sande's stages."""
    k = tl.arange(0, N // 2)
    block = k // STEP
    at, w = work + k + block * STEP, twiddles + N // (2 * STEP) + block
    x, y, twice = tl.load(at), tl.load(at + STEP), p + p
    tl.store(at, once(x + y, twice))
    tl.store(at + STEP, shoup(x + twice - y, tl.load(w), tl.load(w + N), p))
    tl.debug_barrier()


@triton.jit
def forward(work, twiddles, p, N: tl.constexpr, LOG: tl.constexpr):
    """Transforms `work` (N,) in place: entries below 10p become entries below 36p.

    Args:
        twiddles: uint32 (2, N), as `crypto.ntt.twiddles` and their companions.
    """
    for stage in tl.static_range(LOG):
        _forth(work, twiddles, p, N, N >> (stage + 1))


@triton.jit
def backward(work, twiddles, p, N: tl.constexpr, LOG: tl.constexpr):
    """The inverse, but for the factor N: entries below 2p stay below 2p.

    Args:
        twiddles: uint32 (2, N), the inverse ones.
    """
    for stage in tl.static_range(LOG):
        _back(work, twiddles, p, N, 1 << stage)
