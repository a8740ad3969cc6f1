"""Arithmetic modulo 2^31 - 1 and on words of 53 bits, against Python's integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.crypto.cipher import WEIGHTS
from secureps.crypto.ntt import RUN
from secureps.crypto.rlwe_kernels import add_words, greatest_word, pack_words
from secureps.crypto.sharing import P, combination, lagrange, parse_vector, reduce, vector_bytes
from secureps.errors import Malformed, Oversized
from tests.kits import sharing_kit as slow

# --- words of 53 bits -------------------------------------------------------------


of_both = pytest.mark.usefixtures("kernel_kind")
TOP = (1 << 53) - 1
U64 = NDArray[np.uint64]

words_of_runs = st.integers(1, 3).flatmap(
    lambda runs: st.lists(
        st.one_of(st.sampled_from([0, 1, TOP, TOP - 1, 1 << 52]), st.integers(0, TOP)),
        min_size=RUN * runs,
        max_size=RUN * runs,
    )
)


def packed(words: list[int]) -> U64:
    out = np.full(len(words) // RUN * 53, 0xDEAD, np.uint64)
    pack_words(np.array(words, np.uint64), out)
    return out


@pytest.mark.slow
@of_both
@settings(deadline=None, max_examples=30)
@given(words=words_of_runs)
def test_packing_is_one_long_integer(words: list[int]) -> None:
    whole = sum(word << (53 * i) for i, word in enumerate(words))
    assert packed(words).astype("<u8").tobytes() == whole.to_bytes(53 * len(words) // 8, "little")
    assert int(greatest_word(packed(words))) == max(words)


@pytest.mark.slow
@of_both
@settings(deadline=None, max_examples=30)
@given(words=words_of_runs, weight=st.sampled_from(WEIGHTS), before=st.integers(0, 2**60))
def test_adding_adds_each_word_times_the_weight(words: list[int], weight: int, before: int) -> None:
    sums = np.full(len(words), before, np.uint64)
    add_words(packed(words), np.uint64(weight), sums)
    assert sums.tolist() == [before + weight * word for word in words]


# --- modulo 2^31 - 1 --------------------------------------------------------------


ELEMENTS = st.integers(0, P - 1) | st.sampled_from([0, 1, P - 1, P - 2])


def test_p_is_a_mersenne_prime() -> None:
    assert P == 2**31 - 1
    assert all(P % d for d in range(2, 46341))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_any_word_is_reduced(words: list[int]) -> None:
    edges = [k * P + d for k in (0, 1, 2, 3, P, P + 1, 2**32, 2**33) for d in (-1, 0, 1)]
    words = words + [w for w in [*edges, 2**64 - 1, 2**62, 2**34, 2**63] if 0 <= w < 2**64]
    assert reduce(np.array(words, np.uint64)).tolist() == [w % P for w in words]


@given(st.lists(st.tuples(ELEMENTS, ELEMENTS, ELEMENTS), min_size=1, max_size=40))
def test_combinations_are_exact(terms: list[tuple[int, int, int]]) -> None:
    vectors = [np.array(pair, np.uint32) for _, *pair in terms]
    expected = [sum(c * v[i] for c, *v in terms) % P for i in range(2)]
    made = combination((c for c, _, _ in terms), vectors)
    assert made.dtype == np.uint32
    assert made.tolist() == expected


@given(st.lists(ELEMENTS, min_size=1, max_size=8), st.integers(0, 70))
def test_lagranges_formula_is_newtons(values: list[int], at: int) -> None:
    points = tuple(range(1, len(values) + 1))
    made = sum(c * v for c, v in zip(lagrange(points, at), values)) % P
    assert made == slow.through(dict(zip(points, values)), at)


@given(st.lists(ELEMENTS, min_size=1))
def test_vectors_keep_their_values_on_the_wire(values: list[int]) -> None:
    data = vector_bytes(np.array(values, np.uint32))
    assert data == b"".join(v.to_bytes(4, "little") for v in values)
    read = parse_vector(memoryview(data), len(values))
    assert read.dtype == np.uint32
    assert read.tolist() == values


def test_vectors_of_another_length_or_range_are_refused() -> None:
    data = vector_bytes(np.array([1, P - 1], np.uint32))
    for short in (b"", data[:-1], data[:4]):
        with pytest.raises(Malformed, match="exactly 8"):
            parse_vector(short, 2)
    with pytest.raises(Oversized, match="exactly 8"):
        parse_vector(data + b"\0", 2)
    for great in (P, P + 1, 2**32 - 1):
        with pytest.raises(Malformed, match="not below 2"):
            parse_vector(data[:4] + great.to_bytes(4, "little"), 2)
