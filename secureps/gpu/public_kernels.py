"""Public polynomials on the device: `crypto.public` once more, a window of words a program.

What must not live here: anything secret; addresses depend on these words.
"""

from __future__ import annotations

import triton
import triton.language as tl

from secureps.gpu.transform_kernels import reduced


@triton.jit
def reduce_accepted(
    windows, primes, out, found, WINDOW: tl.constexpr, SPAN: tl.constexpr, N: tl.constexpr,
    PRIMES: tl.constexpr,
):  # fmt: skip
    """Fills `out` with the words below the limit modulo their primes, in order.

    Args:
        windows: uint32 (count, primes, WINDOW), of which SPAN is the next power of two.
        primes: uint32 (primes, 2): p and floor(2^32 / p).
        out: uint32 (count, primes, N).
        found: int32 (count, primes): how many words were below the limit; N are needed.
    """
    row = tl.program_id(0)
    index = row % PRIMES
    p, whole = tl.load(primes + 2 * index), tl.load(primes + 2 * index + 1)
    at = tl.arange(0, SPAN)
    words = tl.load(windows + row * WINDOW + at, mask=at < WINDOW, other=0)
    taken = (at < WINDOW) & (words < whole * p)
    number = tl.cumsum(taken.to(tl.int32), 0)
    tl.store(out + row * N + number - 1, reduced(words, whole, p), mask=taken & (number <= N))
    tl.store(found + row, tl.sum(taken.to(tl.int32), 0))
