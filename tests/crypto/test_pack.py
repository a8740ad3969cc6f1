"""Packed sums never carry, whatever the weights, up to the capacity and not beyond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto.pack import Packing, capacity_base
from secureps.errors import Malformed, PlanRefused, WrongShape


def slow_pack(u: list[int], base: int, digits: int) -> list[int]:
    width = -(-len(u) // digits)
    padded = u + [0] * (width * digits - len(u))
    return [sum(padded[i + j * width] * base**j for j in range(digits)) for i in range(width)]


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[int, int, list[int], list[list[int]]]:
    digits = draw(st.integers(1, 4))
    weights = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    room = int((2**63) ** (1 / digits) * 0.99)
    levels = draw(st.integers(1, min(2**24 - 2, (room - 1) // sum(weights))))
    n = draw(st.integers(1, 17))
    value = st.one_of(st.just(0), st.just(levels), st.integers(0, levels))
    row = st.lists(value, min_size=n, max_size=n)
    return levels, digits, weights, [draw(row) for _ in weights]


@pytest.mark.slow
@given(cohorts())
def test_weighted_sums_are_exact(cohort: tuple[int, int, list[int], list[list[int]]]) -> None:
    levels, digits, weights, vectors = cohort
    packing = Packing(capacity_base(sum(weights), levels), digits)
    packed = [packing.pack(np.array(u, dtype=np.int64)) for u in vectors]
    for u, m in zip(vectors, packed, strict=True):
        assert m.dtype == np.int64
        assert m.tolist() == slow_pack(u, packing.base, digits)
        assert packing.unpack(m, len(u)).tolist() == u
    total = sum((w * m for w, m in zip(weights, packed, strict=True)), 0 * packed[0])
    expected = [
        sum(w * u[i] for w, u in zip(weights, vectors, strict=True)) for i in range(len(vectors[0]))
    ]
    assert packing.unpack(total, len(expected)).tolist() == expected


@pytest.mark.parametrize(("weight", "levels", "digits"), [(50, 65534, 2), (1, 2, 20), (8, 254, 5)])
def test_the_base_is_just_enough(weight: int, levels: int, digits: int) -> None:
    base = capacity_base(weight, levels)
    assert base == weight * levels + 1
    packing = Packing(base, digits)
    top = np.full(digits, levels, dtype=np.int64)
    m = packing.pack(top) * weight
    assert m.tolist() == [base**digits - 1]
    assert packing.unpack(m, digits).tolist() == [weight * levels] * digits
    small = Packing(base - 1, digits)
    with pytest.raises(Malformed, match=r"out of range|not in \["):
        small.unpack(small.pack(top) * weight, digits)


def test_what_does_not_fit_is_refused() -> None:
    Packing(2**21, 3)
    Packing(7, 2, modulus=49)
    for base, digits, modulus in [
        (2**21 + 1, 3, 2**63),
        (2**21 + 1, 3, 2**106),
        (7, 2, 48),
        (1, 2, 2**63),
        (7, 0, 2**63),
    ]:
        with pytest.raises(PlanRefused):
            Packing(base, digits, modulus)


def test_bad_vectors_are_refused() -> None:
    packing = Packing(10, 2)
    for value in (-1, 10):
        with pytest.raises(Malformed, match=r"\[0, 10\)"):
            packing.pack(np.array([1, value], dtype=np.int64))
    for value in (-1, 100):
        with pytest.raises(Malformed, match="out of range"):
            packing.unpack(np.array([value], dtype=np.int64), 2)
    with pytest.raises(WrongShape, match="int32"):
        packing.pack(np.zeros(2, dtype=np.int32))
    with pytest.raises(WrongShape):
        packing.pack(np.zeros((2, 2), dtype=np.int64))
    for width in (0, 1, 3):
        with pytest.raises(WrongShape, match="3 values pack into"):
            packing.unpack(np.zeros(width, dtype=np.int64), 3)
