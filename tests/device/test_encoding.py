"""A device has the bits of the host for words, clips, codes and integers."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.client import device_update
from secureps.client.device_update import (
    clip_factor,
    decode,
    encode,
    largest_magnitude,
    pieces,
    round_to_grid,
    shrink,
    to_unsigned,
    words,
)
from secureps.codec.chain import BlockCode, Chain
from secureps.codec.grid import Grid
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import InternalError, NotFinite
from secureps.privacy import mechanism
from secureps.privacy.mechanism import PIECE
from tests.kits.torch_device import DEVICE, back, there

# --- words ----------------------------------------------------------------------


@given(first=st.integers(0, 1 << 35), count=st.integers(0, 100), number=st.integers(0, 5))
def test_words_are_the_streams(first: int, count: int, number: int) -> None:
    stream = UnsafeSeed(number).derive("words")
    made = words(stream, first, count, DEVICE)
    assert made.dtype == torch.int32
    expected = stream.at(first).words(count)
    assert np.array_equal(back(made).view(np.uint32), expected)
    assert np.array_equal(back(to_unsigned(made)), expected)


def test_a_stream_ends_where_it_ends_on_the_host() -> None:
    stream = UnsafeSeed(1).derive("end")
    assert words(stream, (1 << 36) - 8, 8, DEVICE).numel() == 8
    with pytest.raises(InternalError, match="68719476736 words"):
        words(stream, (1 << 36) - 8, 9, DEVICE)


# --- norms and clips ------------------------------------------------------------


many = st.one_of(st.integers(0, 300), st.integers(0, 3 * PIECE))


def values(size: int, seed: int) -> NDArray[np.float32]:
    """Of every magnitude, denormals and zeros among them."""
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(size) * 10.0 ** rng.integers(-44, 18, size)
    return np.where(rng.random(size) < 0.1, 0, made).astype(np.float32)


def cut(x: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [x[start : start + PIECE] for start in range(0, x.size, PIECE)]


@settings(max_examples=60)
@given(size=many, seed=st.integers(0, 999), part=st.floats(0.01, 2))
def test_a_clip_is_the_hosts(size: int, seed: int, part: float) -> None:
    """Sums are in NumPy's order, which is no promise of NumPy: a release may have another."""
    x = values(size, seed)
    bound = max(float(np.linalg.norm(x.astype(np.float64))) * part, 1e-3)
    held = there(x)
    halves = list(pieces(held, 2 * PIECE))
    found = clip_factor(lambda: halves, bound)
    assert found == mechanism.clip_factor(lambda: cut(x), bound)
    assert largest_magnitude(held) == float(np.abs(x).max(initial=0))
    shrink(held, found[0])
    mechanism.shrink(x, found[0])
    assert np.array_equal(back(held).view(np.int32), x.view(np.int32))


def test_what_is_too_close_to_call_is_summed_exactly() -> None:
    x = values(PIECE + 7, 3)
    _, norm = mechanism.clip_factor(lambda: cut(x), 1.0)
    for bound in (norm, float(np.nextafter(norm, 0)), float(np.nextafter(norm, 2 * norm))):
        expected = mechanism.clip_factor(lambda: cut(x), bound)
        assert clip_factor(lambda: [there(x)], bound) == expected


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(wrong: float) -> None:
    x = values(400, 1)
    x[33] = wrong
    with pytest.raises(NotFinite):
        clip_factor(lambda: [there(x)], 1.0)


# --- encoding and rounding ------------------------------------------------------


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
    drawn = rng.integers(0, 2**32, x.size, dtype=np.uint32)
    drawn[:4] = 0, 2**32 - 1, 2**31, 2**31 - 1
    made = round_to_grid(there(x), there(drawn.view(np.int32)), grid, share)
    assert np.array_equal(back(made), grid.encode(x, drawn, share))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_rounded(wrong: float) -> None:
    x = torch.zeros(9, device=DEVICE)
    x[4] = wrong
    with pytest.raises(NotFinite):
        round_to_grid(x, torch.zeros(9, dtype=torch.int32, device=DEVICE), Grid(8, 1.0), 0.5)


# --- whether a device makes the same bits ---------------------------------------


@pytest.fixture
def forgotten() -> Iterator[None]:
    device_update.first_difference.cache_clear()
    yield
    device_update.first_difference.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_the_device_has_the_hosts_bits() -> None:
    assert device_update.first_difference(DEVICE) == ""


@pytest.mark.usefixtures("forgotten")
def test_what_divides_by_an_inverse_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does on CUDA where it divides by a number of the host's."""

    class Inverse:
        def __init__(self, value: float) -> None:
            self._by = torch.tensor(1 / value, dtype=torch.float32)

        def __rtruediv__(self, other: torch.Tensor) -> torch.Tensor:
            return other * self._by

    monkeypatch.setattr(device_update, "divisor", lambda value, like, dtype: Inverse(value))
    monkeypatch.setattr(torch.Tensor, "__truediv__", lambda self, other: NotImplemented)
    assert device_update.first_difference(DEVICE) == "quotients"


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("text", "told"), [("no float64 here\nand more", "no float64 here"), ("", "TypeError")]
)
def test_a_device_without_float64_says_so(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails without a word does not make the same bits."""

    def refuse(*given: object) -> None:
        raise TypeError(text)

    monkeypatch.setattr(device_update, "clip_factor", refuse)
    assert device_update.first_difference(DEVICE) == told


@pytest.mark.usefixtures("forgotten")
def test_memory_that_does_not_suffice_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(device_update, "clip_factor", full)
    with pytest.raises(torch.OutOfMemoryError):
        device_update.first_difference(DEVICE)
    monkeypatch.undo()
    assert device_update.first_difference(DEVICE) == ""
