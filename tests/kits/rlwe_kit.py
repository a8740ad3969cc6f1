"""`rlwe` once more, slowly, from its definition: Python's integers, no butterflies, no tricks."""

import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from secureps.crypto.cipher import CipherParameters, Place
from secureps.crypto.ring import Encoding, Ring
from secureps.crypto.rlwe import RlweAdder, RlweSealing

Ints = NDArray[np.int64]


def place(slots: int, run: int = 0, group: str = "all", layout: int = 0) -> Place:
    return Place(bytes([run]) * 32, group, bytes([layout]) * 32, slots)


def key_stream(key: bytes, first_block: int, words: int, nonce: int = 0) -> NDArray[np.uint32]:
    """Words of ChaCha20 (RFC 8439) under a nonce, from 64-byte block `first_block` on."""
    start = first_block.to_bytes(4, "little") + nonce.to_bytes(12, "little")
    stream = Cipher(algorithms.ChaCha20(key, start), None)
    return np.frombuffer(stream.encryptor().update(bytes(4 * words)), "<u4")


def public_key(ring: Ring, at: Place) -> bytes:
    hasher = hashlib.blake2b(digest_size=32)
    for part in (b"secureps-a", at.run, ring.name.encode(), at.group.encode(), at.layout):
        hasher.update(len(part).to_bytes(8, "little") + part)
    return hasher.digest()


def public_element(ring: Ring, at: Place, element: int) -> list[list[int]]:
    """Transformed a_j, prime after prime: words of the stream that are not too large, mod p."""
    window, key, rows = ring.degree + max(128, ring.degree // 32), public_key(ring, at), []
    for index, prime in enumerate(ring.primes):
        first = (element * len(ring.primes) + index) * window // 16
        words = key_stream(key, first, window).tolist()
        limit = (1 << 32) // prime * prime
        rows.append([w % prime for w in words if w < limit][: ring.degree])
    return rows


@cache
def exponents(degree: int) -> list[int]:
    """Where the transform evaluates: place i holds the value at psi^exponents[i]."""
    bits, rows = degree.bit_length() - 1, degree // 32
    order = []
    for i in range(degree):
        column, row = divmod(i, rows)
        order.append(2 * int(f"{32 * row + column:0{bits}b}"[::-1], 2) + 1)
    return order


def psi(degree: int, prime: int) -> int:
    """g^((p - 1) / 2N) of the smallest g that makes it a primitive 2N-th root of unity."""
    roots = (pow(g, (prime - 1) // (2 * degree), prime) for g in range(2, 1000))
    return next(root for root in roots if pow(root, degree, prime) == prime - 1)


SIDE = 64
"""How many products are added before they are reduced: each below 2^54, their sum below 2^60."""


def transformed(polynomial: Sequence[int], prime: int) -> list[int]:
    """Values of a polynomial at the odd powers of psi: N^2 products, each below 2^54."""
    return list(_transformed(tuple(polynomial), prime))


@lru_cache(maxsize=64)  # both kinds of kernels are held against the same ones
def _transformed(polynomial: tuple[int, ...], prime: int) -> list[int]:
    """By Horner's rule, over pieces of so many coefficients at once."""
    degree = len(polynomial)
    root, powers = psi(degree, prime), [1]
    for _ in range(2 * degree - 1):
        powers.append(powers[-1] * root % prime)
    table, points = np.array(powers, np.uint64), np.array(exponents(degree))
    side, modulus = min(SIDE, degree), np.uint64(prime)
    coefficients = np.array([c % prime for c in polynomial], np.uint64).reshape(-1, side)
    within = table[np.outer(points, np.arange(side)) % (2 * degree)]
    pieces = np.ascontiguousarray((within @ coefficients.T % modulus).T)
    step, out = table[points * side % (2 * degree)], np.zeros(degree, np.uint64)
    for piece in pieces[::-1]:
        out = (out * step + piece) % modulus
    return [int(value) for value in out]


def product(a: Sequence[int], b: Sequence[int], modulus: int) -> list[int]:
    """a b mod (X^N + 1, modulus), by Kronecker's substitution: one product of Python integers."""
    degree, bits = len(a), 2 * modulus.bit_length() + len(a).bit_length()
    width = bits // 8 + 1  # bytes

    def whole(p: Sequence[int]) -> int:
        places = ((int(c) % modulus).to_bytes(width, "little") for c in p)
        return int.from_bytes(b"".join(places), "little")

    both = (whole(a) * whole(b)).to_bytes(2 * degree * width, "little")
    places = range(0, len(both), width)
    c = [int.from_bytes(both[start : start + width], "little") for start in places]
    return [(c[i] - c[i + degree]) % modulus for i in range(degree)]


def edge_words(count: int) -> NDArray[np.uint32]:
    """uint32 (3, count): random, but for columns whose ones all count one way, and at both seams.

    The values of the first five are 0, 0, ETA, -ETA and 0.
    """
    words = np.random.default_rng(1).integers(0, 1 << 32, (3, count)).astype(np.uint32)
    full = 0xFFFFFFFF
    words[:, :5] = np.array(
        [[0, 0, 0], [full] * 3, [full, 0x1FF, 0], [0, 0xFFFFFE00, 0x3FFFF], [0, 0, 0xFFFC0000]]
    ).T
    return words


def binomials(words: NDArray[np.uint32]) -> list[int]:
    """uint32 (3, n): of each column's 96 bits, ones among the first 41 less those of the next."""
    out = []
    for low, middle, high in words.T.tolist():
        bits = low | middle << 32 | high << 64
        mask = (1 << 41) - 1
        out.append((bits & mask).bit_count() - (bits >> 41 & mask).bit_count())
    return out


def sealed(enc: Encoding, at: Place, block: int, values: Ints, noise_key: bytes) -> bytes:
    """A block, of the noise stream of its number from 1; the one-time key is of stream 0."""
    ring, n = enc.ring, enc.ring.degree
    elements = enc.elements(values.size)
    small = key_stream(noise_key, 0, 3 * n).reshape(3, n)
    keys = [transformed(binomials(small), p) for p in ring.primes]
    noise = key_stream(noise_key, 0, 3 * n * elements, nonce=1 + block).reshape(-1, 3, n)
    padded = np.zeros(elements * enc.values, np.int64)
    padded[: values.size] = values
    out = b""
    for j, digits in enumerate(padded.reshape(elements, enc.digits, n).tolist()):
        message = [sum(d[i] * enc.base**k for k, d in enumerate(digits)) for i in range(n)]
        plain = [e + enc.delta * m for e, m in zip(binomials(noise[j]), message)]
        public = public_element(ring, at, block * enc.elements(at.slots) + j)
        residues = [
            [(a * s + x) % p for a, s, x in zip(row, key, transformed(plain, p))]
            for p, row, key in zip(ring.primes, public, keys)
        ]
        for w, (low, high) in enumerate(ring.words):
            inverse = pow(low, -1, high)
            pairs = zip(residues[2 * w], residues[2 * w + 1])
            words = [x + low * ((y - x) * inverse % high) for x, y in pairs]
            bits = sum(word << (53 * i) for i, word in enumerate(words))
            out += bits.to_bytes(53 * n // 8, "little")
    return out


def cohort(
    parameters: CipherParameters, at: Place, members: Sequence[tuple[Ints, int]], block: int = 0
) -> tuple[bytes, tuple[Ints, int], Ints]:
    """A total of so many (values, weight), the key sum that opens it, and the sum itself."""
    adder = RlweAdder(parameters)
    slots = members[0][0].size
    sums, clear = adder.zero(slots), np.zeros(slots, np.int64)
    keys, squares = np.zeros(0, np.int64), 0
    for values, weight in members:
        sealing = RlweSealing(parameters, at)
        payload = sealing.seal(block, values)
        adder.check(slots, payload)
        adder.add(sums, payload, weight)
        small = weight * sealing.key.coefficients().astype(np.int64)
        keys = keys + small if keys.size else small
        clear += weight * values
        squares += weight * weight
    return bytes(adder.total(sums)), (keys, squares), clear
