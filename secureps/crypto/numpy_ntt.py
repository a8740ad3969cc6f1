"""The transform of `crypto.ntt` in plain NumPy: the same integers, many polynomials at once.

Every stage is a few operations on whole arrays, which wrap around at 2^32 as the kernels do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from secureps.crypto.ntt import U32, WIDTH

_u32 = np.uint32
_u64 = np.uint64
_HALF = _u64(32)


def shoup(y: U32, w: Any, w2: Any, p: np.uint32) -> U32:
    """w y mod p, in [0, 2p), for any 32-bit y; w and w2 are of one shape with y, or one number."""
    high = np.multiply(w2, y, dtype=_u64)
    high >>= _HALF
    wrong = high.astype(_u32)
    wrong *= p
    made: U32 = w * y
    made -= wrong
    return made


def once(y: U32, p: np.uint32) -> U32:
    """y mod p for y < 2p: the smaller of y and y - p modulo 2^32."""
    made: U32 = np.minimum(y, y - p)
    return made


def forward(a: U32, out: U32, head: U32, tail: U32, prime: U32) -> None:
    """As `crypto.ntt.forward`, of (..., N); `a` is spoilt."""
    size, p = a.shape[-1], prime[0]
    rows, twice = size // WIDTH, _u32(2 * p)
    step, blocks = size >> 1, 1
    while step >= WIDTH:
        pairs, here = a.reshape(-1, blocks, 2, step), slice(blocks, 2 * blocks)
        _cross(pairs[:, :, 0], pairs[:, :, 1], head[:, here, None], twice, p)
        step, blocks = step >> 1, blocks << 1
    turned = np.ascontiguousarray(a.reshape(-1, rows, WIDTH).transpose(0, 2, 1))
    step, groups, line = WIDTH >> 1, 1, 0
    while step >= 1:
        pairs, here = turned.reshape(-1, groups, 2, step, rows), slice(line, line + groups)
        _cross(pairs[:, :, 0], pairs[:, :, 1], tail[:, here, None], twice, p)
        step, groups, line = step >> 1, groups << 1, line + groups
    out[...] = turned.reshape(out.shape)


def _cross(x: U32, y: U32, w: U32, twice: np.uint32, p: np.uint32) -> None:
    """x + w y and x - w y, in their places."""
    z = shoup(y, w[0], w[1], p)
    np.add(x, twice, out=y)
    y -= z
    x += z


def backward(a: U32, out: U32, head: U32, tail: U32, last: U32, prime: U32) -> None:
    """As `crypto.ntt.backward`, of (..., N); `a` is spoilt."""
    size, p = a.shape[-1], prime[0]
    rows, twice = size // WIDTH, _u32(2 * p)
    step, groups, end = 1, WIDTH >> 1, WIDTH - 1
    while step < WIDTH:
        end -= groups
        pairs, here = a.reshape(-1, groups, 2, step, rows), slice(end, end + groups)
        _uncross(pairs[:, :, 0], pairs[:, :, 1], tail[:, here, None], twice, p)
        step, groups = step << 1, groups >> 1
    turned = np.ascontiguousarray(a.reshape(-1, WIDTH, rows).transpose(0, 2, 1))
    blocks = rows >> 1
    while blocks >= 1:
        pairs, here = turned.reshape(-1, blocks, 2, step), slice(blocks, 2 * blocks)
        _uncross(pairs[:, :, 0], pairs[:, :, 1], head[:, here, None], twice, p)
        step, blocks = step << 1, blocks >> 1
    out[...] = once(shoup(turned, last[0], last[1], p), p).reshape(out.shape)


def _uncross(x: U32, y: U32, w: U32, twice: np.uint32, p: np.uint32) -> None:
    """x + y and w (x - y), in their places."""
    apart = x + twice
    apart -= y
    x += y
    x[...] = once(x, twice)
    y[...] = shoup(apart, w[0], w[1], p)
