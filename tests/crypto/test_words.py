"""Words of 53 bits: packing, weighted sums and reductions against Python's integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.crypto.cipher import WEIGHTS
from secureps.crypto.ntt import RUN
from secureps.crypto.ring import RINGS
from secureps.crypto.rlwe_kernels import add_words, greatest_word, pack_words, reduce_words

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


MODULI = sorted({q for ring in RINGS for q in ring.moduli})


@of_both
@pytest.mark.parametrize("modulus", MODULI)
def test_reduction_at_all_edges(modulus: int) -> None:
    most = (2**64 - 1) // modulus
    numbers = [k * modulus + d for k in range(most) for d in (0, 1, modulus - 1)]
    numbers += [2**64 - 1, most * modulus, most * modulus - 1]
    reduced = np.array(numbers, np.uint64)
    reduce_words(reduced, np.uint64(modulus))
    assert reduced.tolist() == [n % modulus for n in numbers]
