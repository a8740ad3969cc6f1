"""What is encoded and rounded on a device has the bits of `codec`, for every chain and grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.codec.chain import BlockCode, Chain
from secureps.codec.grid import Grid
from secureps.device.encoding import decode, encode, round_to_grid
from secureps.errors import NotFinite
from tests.kits.torch_device import DEVICE, back, there

chains = st.builds(Chain, one_in=st.integers(1, 9), rotates=st.booleans(), unbiased=st.booleans())
sizes = st.one_of(st.integers(1, 200), st.sampled_from([1023, 1025, 4099, 70_000]))
exponents = st.integers(-45, 30)


def code(chain: Chain, values: int, seed: int, apart: int) -> BlockCode:
    rng = np.random.default_rng(seed)

    def draw(_: str, count: int) -> NDArray[np.uint32]:
        return rng.integers(0, 2**32, count, dtype=np.uint32)

    return chain.block(values, draw, apart if values > 1 else 0)


@given(chain=chains, values=sizes, seed=st.integers(0, 99), at=exponents, apart=st.integers(0, 1))
def test_a_chain_has_the_hosts_bits(
    chain: Chain, values: int, seed: int, at: int, apart: int
) -> None:
    own, rng = code(chain, values, seed, apart), np.random.default_rng(seed)
    x = (rng.standard_normal(values) * 10.0**at).astype(np.float32)
    update, here = there(x), own.encode(x)
    found = back(encode(own, update))
    assert found.dtype == here.dtype
    assert np.array_equal(found, here)
    assert np.array_equal(back(update), x), "an update is not changed by being encoded"
    mean = here.astype(np.float64) * 3
    assert np.array_equal(back(decode(own, there(mean))), own.decode(mean))


@given(
    bits=st.integers(2, 24),
    reach=st.floats(1e-6, 1e6),
    share=st.floats(2**-16, 1),
    double=st.booleans(),
    seed=st.integers(0, 99),
)
def test_integers_are_the_grids(
    bits: int, reach: float, share: float, double: bool, seed: int
) -> None:
    """Within the range, at its ends, beyond it, and on the steps of the grid."""
    rng, grid = np.random.default_rng(seed), Grid(bits, reach)
    near = rng.integers(-grid.most, grid.most + 1, 40) * grid.step
    ends = np.array([0.0, -0.0, reach, -reach, 1e30, -1e30, 1e-45]) / share
    whole = np.concatenate([rng.standard_normal(200) * reach, near, ends])
    x = whole if double else whole.astype(np.float32)
    words = rng.integers(0, 2**32, x.size, dtype=np.uint32)
    words[:4] = 0, 2**32 - 1, 2**31, 2**31 - 1
    made = round_to_grid(there(x), there(words.view(np.int32)), grid, share)
    assert np.array_equal(back(made), grid.encode(x, words, share))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_rounded(wrong: float) -> None:
    x = torch.zeros(9, device=DEVICE)
    x[4] = wrong
    with pytest.raises(NotFinite):
        round_to_grid(x, torch.zeros(9, dtype=torch.int32, device=DEVICE), Grid(8, 1.0), 0.5)
