"""Pseudo-random secret sharing once more, slowly: Python's integers, `hashlib`, nothing of ours.

Cramer, Damgard and Ishai (2005) read off the paper; the key stream is `cryptography`'s.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from fractions import Fraction

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

P = 2**31 - 1


def tagged(domain: str, *parts: bytes) -> bytes:
    """BLAKE2b-256 of the domain and the parts, each after its length."""
    whole = b"".join(len(x).to_bytes(8, "little") + x for x in (domain.encode(), *parts))
    return hashlib.blake2b(whole, digest_size=32).digest()


def pseudorandom(id: bytes, subset: tuple[int, ...], seed: bytes, length: int) -> list[int]:
    """Words of ChaCha20's key stream without their top bit, those equal to P left out."""
    key = tagged("secureps-key-share", id, bytes(subset), seed)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    found: list[int] = []
    while len(found) < length:
        word = int.from_bytes(stream.update(bytes(4)), "little") & P
        if word != P:
            found.append(word)
    return found


def subsets(n: int, size: int) -> list[tuple[int, ...]]:
    return [a for a in itertools.product(*[range(n)] * size) if list(a) == sorted(set(a))]


def over(fraction: Fraction) -> int:
    """A fraction as an element of the field."""
    return fraction.numerator * pow(fraction.denominator, P - 2, P) % P


def f(subset: tuple[int, ...], x: int) -> Fraction:
    """prod (x_i - x) / x_i, where holder i has the point i + 1."""
    value = Fraction(1)
    for i in subset:
        value *= Fraction(i + 1 - x, i + 1)
    return value


def shares(n: int, t: int, pieces: dict[tuple[int, ...], list[int]]) -> list[list[int]]:
    """Every holder's share of the sum of the pieces, a piece for each set of t - 1 holders."""
    made = []
    for k in range(n):
        held = [(over(f(a, k + 1)), piece) for a, piece in pieces.items() if k not in a]
        made.append(
            [
                sum(c * v for c, v in zip([c for c, _ in held], vs)) % P
                for vs in zip(*[piece for _, piece in held])
            ]
        )
    return made


def through(points: dict[int, int], at: int) -> int:
    """The value at `at` of the polynomial through (x, y), by Newton's divided differences."""
    xs = list(points)
    column = [points[x] for x in xs]
    coefficients = [column[0]]
    for width in range(1, len(xs)):
        column = [
            (b - a) * pow(xs[i + width] - xs[i], P - 2, P) % P
            for i, (a, b) in enumerate(itertools.pairwise(column))
        ]
        coefficients.append(column[0])
    value = 0
    for x, coefficient in zip(reversed(xs), reversed(coefficients)):
        value = (value * (at - x) + coefficient) % P
    return value


def echelon(rows: Iterable[Sequence[int]]) -> list[list[int]]:
    """Reduces rows to independent ones, each with a pivot of 1 where all below have 0."""
    found: list[tuple[int, list[int]]] = []
    for given in rows:
        row = [value % P for value in given]
        for pivot, known in found:
            if factor := row[pivot]:
                row = [(a - factor * b) % P for a, b in zip(row, known)]
        pivot = next((at for at, value in enumerate(row) if value), -1)
        if pivot >= 0:
            inverse = pow(row[pivot], -1, P)
            found.append((pivot, [value * inverse % P for value in row]))
    return [row for _, row in found]


def rank(rows: Iterable[Sequence[int]]) -> int:
    return len(echelon(rows))


def fixed_urandom(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Seeds that are asked of the operating system are so many bytes of `first` and on."""
    numbers = itertools.count(first)
    monkeypatch.setattr(os, "urandom", lambda size: bytes([next(numbers)] * size))
