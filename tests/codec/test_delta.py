"""Differences in few bits: against other implementations, and at the ends of float32."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from secureps.codec import delta
from secureps.errors import Malformed
from secureps.messages.encoding import payload_digest

Floats = NDArray[np.float32]
SIZES = (1, 7, 8, 9, 511, 512, 513, 1500)
FLOATS = st.floats(width=32)


def vectors(
    elements: st.SearchStrategy[float] = FLOATS,
) -> st.SearchStrategy[tuple[Floats, Floats]]:
    def pair(size: int) -> st.SearchStrategy[tuple[Floats, Floats]]:
        one = arrays.arrays(np.float32, size, elements=elements)
        return st.tuples(one, one)

    return st.sampled_from(SIZES).flatmap(pair)


BITS = st.integers(2, 8)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def added(published: Floats, codes: NDArray[np.uint8], bits: int) -> Floats:
    made = published.copy()
    delta.add(made, codes, bits)
    return made


def codes_of(codes: NDArray[np.uint8], values: int, bits: int) -> tuple[Floats, NDArray[np.int64]]:
    """What a difference says, bit by bit: 2^e of each value, and q."""
    pieces = -(-values // delta.PIECE)
    units = np.repeat(np.ldexp(1.0, codes[:pieces].astype(np.int64) - 128), delta.PIECE)[:values]
    spread = np.unpackbits(codes[pieces:], bitorder="little").astype(np.int64)
    groups = spread[: -(-values // 8) * 8 * bits].reshape(-1, bits)
    return units, (groups << np.arange(bits)).sum(1)[:values] - (1 << (bits - 1))


@given(vectors(), BITS)
def test_any_values_have_a_difference_of_the_stated_length(
    pair: tuple[Floats, Floats], bits: int
) -> None:
    exact, published = pair
    codes = delta.encode(exact, published, bits)
    assert codes.size == delta.length(exact.size, bits)
    made = added(published, codes, bits)
    stays = ~(np.isfinite(exact) & np.isfinite(published))
    assert np.isfinite(made[np.isfinite(published)]).all(), "nothing becomes infinite"
    assert np.array_equal(made[stays], published[stays], equal_nan=True), "and such stay"
    assert delta.encode(exact, published, bits).tobytes() == codes.tobytes()


@given(vectors(FINITE), BITS)
def test_numpy_and_torch_make_the_same_bytes_of_it(pair: tuple[Floats, Floats], bits: int) -> None:
    """With products and one addition of float32 alone: no kernel of ours."""
    torch = pytest.importorskip("torch")
    exact, published = pair
    codes = delta.encode(exact, published, bits)
    units, q = codes_of(codes, exact.size, bits)
    by_numpy = published + (q * units).astype(np.float32)
    by_torch = torch.from_numpy(published) + torch.from_numpy(q * units).to(torch.float32)
    digests = {
        payload_digest(each.tobytes())
        for each in (added(published, codes, bits), by_numpy, by_torch.numpy())
    }
    assert len(digests) == 1


@given(vectors(st.floats(-1e6, 1e6, width=32)), BITS)
def test_it_is_the_nearest_there_is(pair: tuple[Floats, Floats], bits: int) -> None:
    """Of the smallest power of two by which the largest difference of a piece fits."""
    exact, published = pair
    apart = exact.astype(np.float64) - published.astype(np.float64)
    units, q = codes_of(delta.encode(exact, published, bits), exact.size, bits)
    most = (1 << (bits - 1)) - 1
    for start in range(0, exact.size, delta.PIECE):
        here = slice(start, start + delta.PIECE)
        largest, unit = np.abs(apart[here]).max(), units[start]
        if largest >= 2.0**-100:
            assert most * unit / 2 < largest <= most * unit
            assert np.array_equal(q[here], np.rint(apart[here] / unit))


@given(vectors(st.floats(-1, 1, width=32)), st.integers(3, 8))
def test_what_is_left_over_comes_with_the_next_ones(pair: tuple[Floats, Floats], bits: int) -> None:
    """Where nothing changes any more, what is published ends at what is exact."""
    exact, published = pair
    for _ in range(60):
        published = added(published, delta.encode(exact, published, bits), bits)
    assert np.abs(exact - published).max() <= 2.0**-24


EXTREMES = {
    "zeros": ([0.0, 0.0, -0.0], [0.0, -0.0, 0.0]),
    "denormals": ([1e-45, -3e-39, 1e-38], [0.0, 0.0, -1e-38]),
    "the largest there are": ([3.4e38, -3.4e38, 3.4e38], [-3.4e38, 3.4e38, 0.0]),
    "the largest and the smallest": ([3.4e38, 1e-45, 1.0], [1.0, 0.0, 1.0]),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("bits", [2, 8])
def test_at_the_ends_of_float32(name: str, bits: int) -> None:
    exact, before = (np.array(each, np.float32) for each in EXTREMES[name])
    published = before
    with np.errstate(all="raise", under="ignore"):
        for _ in range(300):
            published = added(published, delta.encode(exact, published, bits), bits)
    assert np.isfinite(published).all()
    large = np.abs(exact) > 1e30
    assert np.allclose(published[large], exact[large], rtol=0.5)


def test_a_difference_of_another_length_is_refused() -> None:
    values = np.zeros(1000, np.float32)
    codes = delta.encode(values, values, 4)
    for wrong in (codes[:-1], np.append(codes, codes[:1]), codes[:0]):
        with pytest.raises(Malformed, match="no difference of 1000 values"):
            delta.add(values, wrong, 4)


def test_any_bytes_of_the_right_length_add_something() -> None:
    """A liar's: what comes of them has another digest, and nothing worse."""
    words = np.random.default_rng(1).integers(0, 256, delta.length(1000, 5), np.uint8)
    with np.errstate(over="ignore"):
        assert added(np.ones(1000, np.float32), words, 5).shape == (1000,)


GOLDEN = {
    2: "f5dfed29269c2c9f",
    4: "3ddcb7d0d59382fd",
    7: "6944f980bddd472e",
}


@pytest.mark.parametrize("bits", GOLDEN)
def test_the_same_bytes_for_ever(bits: int) -> None:
    """On every machine: clients compare the digests of what they make."""
    k = np.arange(1500)
    exact = ((k * 7919 % 4093 - 2046) / 4096).astype(np.float32)
    published = ((k * k * 31 % 3989 - 1990) / 8192).astype(np.float32)
    codes = delta.encode(exact, published, bits)
    made = added(published, codes, bits)
    found = payload_digest(codes.tobytes() + made.astype("<f4").tobytes())
    assert found.hex()[:16] == GOLDEN[bits]
