"""A support is one value of each run, the same for whoever has the words, each place as likely."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.codec.support import places, runs, sent
from secureps.errors import PlanRefused


@given(values=st.integers(1, 5000), one_in=st.integers(1, 300), seed=st.integers(0, 99))
def test_one_value_of_each_run_is_sent(values: int, one_in: int, seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, 2**32, sent(values, one_in), dtype=np.uint32)
    chosen, lengths = places(values, one_in, words), runs(values, one_in)
    assert (chosen // one_in).tolist() == list(range(sent(values, one_in)))
    assert chosen[0] >= 0
    assert chosen[-1] < values
    assert lengths.sum() == values
    assert lengths.size == chosen.size


@pytest.mark.parametrize("one_in", [2, 3, 4, 100, 256])
def test_the_extreme_words_are_the_ends_of_a_run(one_in: int) -> None:
    for word, place in ((0, 0), (2**32 - 1, one_in - 1)):
        assert places(one_in, one_in, np.array([word], np.uint32)).tolist() == [place]


@pytest.mark.parametrize("one_in", [2, 3, 4, 7, 256])
def test_every_place_has_as_many_words_as_any_other(one_in: int) -> None:
    """Within one: counted by where the words of each place begin, not by sampling."""
    firsts = [-(-(place << 32) // one_in) for place in range(one_in + 1)]
    counts = {last - first for first, last in itertools.pairwise(firsts)}
    assert max(counts) - min(counts) <= 1
    for place, first in enumerate(firsts[:-1]):
        drawn = [places(one_in, one_in, np.array([w], np.uint32))[0] for w in (first, first + 1)]
        assert drawn == [place, place]


def test_no_run_is_shorter_than_one() -> None:
    with pytest.raises(PlanRefused, match="one in 0 values"):
        places(4, 0, np.zeros(4, np.uint32))
