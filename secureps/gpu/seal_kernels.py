"""Sealing ring elements on the device: `crypto.rlwe_kernels` once more, a program for each word.

    c = a s + e + Delta m, every word of it modulo its word modulus, packed

**Timing.** As there: + - * & >> min alone on what is secret; no division, no branch on a value,
no address that depends on one, loops of public lengths; tests read that off the device's code (PTX
and, of branches, SASS). Neither Triton nor the makers of devices promise more: nobody says how
long an instruction takes, what a later compiler makes of a minimum, or what shares the device.

What must not live here: opening (`gpu.open_kernels`), and memory of the device (`gpu.backend`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from secureps.crypto.ring import ETA
from secureps.crypto.ring import WORD_BITS as _WORD_BITS
from secureps.gpu.transform_kernels import forward, once, plain_place, reduced, shoup

WORD_BITS = tl.constexpr(_WORD_BITS)
_REST = tl.constexpr(ETA - 32)
"""Bits of the second word that are heads, of ETA; the other 32 are the first."""
_REST_MASK = tl.constexpr((1 << (ETA - 32)) - 1)
_LAST_MASK = tl.constexpr((1 << (2 * ETA - 64)) - 1)


@triton.jit
def ones(x):
    """How many of 32 bits are set: no table and no branch."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    return (((x + (x >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24


@triton.jit
def binomial(low, middle, high):
    """A centred binomial value, eta = 41, of three uniform words; modulo 2^32."""
    heads = ones(low) + ones(middle & _REST_MASK)
    return heads - ones(middle >> _REST) - ones(high & _LAST_MASK)


@triton.jit
def _residue(work, public, key, whole, p, N: tl.constexpr):
    """a s + x mod p in transformed order, of a transformed x; entries below p."""
    at = tl.arange(0, N)
    x = tl.load(work + plain_place(at, N))
    s, s2 = tl.load(key + at), tl.load(key + N + at)
    return reduced(x + shoup(tl.load(public + at), s, s2, p), whole, p)


@triton.jit
def seal_words(
    values, noise, public, key, digits, primes, garner, twiddles, work, words, most,
    N: tl.constexpr, LOG: tl.constexpr, PARTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Seals one word of an element.

    Args:
        values: uint32 (count, d, N), the digits of every coefficient.
        noise: uint32 (count, 3, N), uniform and secret.
        public: uint32 (count, primes, N), in transformed order.
        key: uint32 (primes, 2, N); digits: uint32 (primes, 2, d); primes: uint32 (primes, 2);
            garner: uint32 (words, 2); twiddles: uint32 (primes, 2, N).
        work: uint32 (count, primes, N), spoilt.
        words: uint64 (count, words, N).
        most: uint32 (count, words): the greatest of the element's values.
    """
    program = tl.program_id(0)
    element, word = program // WORDS, program % WORDS
    k = tl.arange(0, N)
    own_noise = noise + element * 3 * N + k
    error = binomial(tl.load(own_noise), tl.load(own_noise + N), tl.load(own_noise + 2 * N))
    own_values = values + element * PARTS * N + k
    greatest = tl.zeros((N,), tl.uint32)
    for half in tl.static_range(2):
        index = 2 * word + half
        p = tl.load(primes + 2 * index)
        own, coefficients = work + (element * 2 * WORDS + index) * N, error + p
        for part in range(PARTS):
            w = digits + 2 * index * PARTS + part
            value = tl.load(own_values + part * N)
            greatest = tl.maximum(greatest, value)
            scaled = shoup(value, tl.load(w), tl.load(w + PARTS), p)
            coefficients = once(coefficients + scaled, p + p)
        tl.store(own + k, coefficients)
        tl.debug_barrier()
        forward(own, twiddles + index * 2 * N, p, N, LOG)
    tl.store(most + program, tl.max(greatest, 0))
    first = 2 * word
    low, low_whole = tl.load(primes + 2 * first), tl.load(primes + 2 * first + 1)
    high, high_whole = tl.load(primes + 2 * first + 2), tl.load(primes + 2 * first + 3)
    place = (element * 2 * WORDS + first) * N
    lower = _residue(work + place, public + place, key + first * 2 * N, low_whole, low, N)
    place += N
    upper = _residue(work + place, public + place, key + (first + 1) * 2 * N, high_whole, high, N)
    apart = once(upper + high - lower, high)
    inverse, inverse2 = tl.load(garner + 2 * word), tl.load(garner + 2 * word + 1)
    quotient = once(shoup(apart, inverse, inverse2, high), high)
    whole = lower.to(tl.uint64) + low.to(tl.uint64) * quotient.to(tl.uint64)
    tl.store(words + program * N + k, whole)


@triton.jit
def pack_words(words, out, count, LANES: tl.constexpr):
    """Packs words below 2^53, as `crypto.words.pack_words`: one lane makes one 64-bit integer.

    Args:
        words: uint64 (64 n,); out: uint64 (count,), 53 n.
    """
    to = tl.program_id(0) * LANES + tl.arange(0, LANES)
    here = to < count
    bit = (to % WORD_BITS) * 64
    at, skipped = bit // WORD_BITS, bit % WORD_BITS
    left = skipped * -1 + WORD_BITS  # bits of the first word, and where the second one's go
    own = words + (to // WORD_BITS) * 64 + at
    first = tl.load(own, mask=here, other=0)
    second = tl.load(own + 1, mask=here & (at < 63), other=0)
    third = tl.load(own + 2, mask=here & (at < 62), other=0)
    packed = (first >> skipped.to(tl.uint64)) | (second << left.to(tl.uint64))
    last = left + WORD_BITS
    third = tl.where(last < 64, third << tl.minimum(last, 63).to(tl.uint64), 0)
    tl.store(out + to, packed | third, mask=here)
