"""Differences that are coded on a device have the bytes of the host's, whatever the values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.codec import delta
from secureps.device import deltas
from tests.codec.test_delta import BITS, vectors
from tests.kits.torch_device import there

Floats = NDArray[np.float32]


def coded(exact: Floats, published: Floats, bits: int) -> list[int]:
    return deltas.encode(there(exact), there(published), bits).tolist()


@settings(max_examples=60)
@given(vectors(), BITS)
def test_any_values_have_the_hosts_codes(pair: tuple[Floats, Floats], bits: int) -> None:
    """NaNs and infinities among them, and what would become one."""
    assert coded(*pair, bits) == delta.encode(*pair, bits).tolist()


@settings(max_examples=30)
@given(st.integers(0, 3000), BITS, st.integers(-44, 37), st.integers(0, 999))
def test_differences_of_every_size_do(size: int, bits: int, at: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    published = rng.standard_normal(size).astype(np.float32)
    exact = (published + rng.standard_normal(size) * 10.0**at).astype(np.float32)
    assert coded(exact, published, bits) == delta.encode(exact, published, bits).tolist()


def test_parts_of_a_block_are_coded_as_the_whole_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "TOGETHER", 2 * delta.PIECE)
    rng = np.random.default_rng(1)
    exact, published = rng.standard_normal((2, 7 * delta.PIECE + 13)).astype(np.float32)
    assert coded(exact, published, 5) == delta.encode(exact, published, 5).tolist()
