"""Codecs: sums decode to the sum of what is meant, and ranges and differences are exact."""

import hashlib
import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from secureps.codec import delta
from secureps.codec.chain import (
    LARGEST,
    BlockCode,
    Chain,
    count_sent,
    draw_places,
    hadamard,
    run_lengths,
    sign_words,
    unpack_signs,
)
from secureps.codec.grid import LEAST, Grid, MovingRange
from secureps.errors import Malformed, NotFinite, PlanRefused
from secureps.messages.encoding import payload_digest

chains = st.builds(Chain, one_in=st.integers(1, 9), rotates=st.booleans(), unbiased=st.booleans())
sizes = st.one_of(st.integers(1, 200), st.sampled_from([1023, 1025, 4099]))
WHOLE = 2**20


def code(chain: Chain, values: int, seed: int = 0) -> BlockCode:
    rng = np.random.default_rng(seed)
    return chain.block(values, lambda _, count: rng.integers(0, 2**32, count, dtype=np.uint32))


def numbers(values: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).integers(-WHOLE, WHOLE, values).astype(np.float32)


@given(chain=chains, values=sizes)
def test_a_value_apart_goes_as_it_is_and_changes_no_other(chain: Chain, values: int) -> None:
    rng = [np.random.default_rng(1) for _ in range(2)]
    draws = [lambda _, n, r=r: r.integers(0, 2**32, n, dtype=np.uint32) for r in rng]
    whole, coded = chain.block(values + 1, draws[0], 1), chain.block(values, draws[1])
    x = numbers(values + 1, 3)
    assert whole.sent == coded.sent + 1
    sent = whole.encode(x)
    assert np.array_equal(sent[:-1], coded.encode(x[:-1]))
    assert sent[-1] == x[-1]
    made = whole.decode(sent)
    assert np.array_equal(made[:-1], coded.decode(sent[:-1]))
    assert made[-1] == x[-1]


@given(chain=chains, values=sizes, seed=st.integers(0, 20))
def test_sums_of_encodings_decode_to_sums_exactly(chain: Chain, values: int, seed: int) -> None:
    own = code(chain, values, seed)
    parts = [numbers(values, seed + k) for k in range(3)]
    each = [own.encode(part) for part in parts]
    total = own.decode(each[0] + 2 * each[1] + 4 * each[2])
    alone = [own.decode(one).astype(np.float64) for one in each]
    assert np.array_equal(total, (alone[0] + 2 * alone[1] + 4 * alone[2]).astype(np.float32))


@pytest.mark.parametrize(("values", "one_in"), [(8, 4), (11, 4), (7, 3), (5, 5), (6, 9)])
def test_without_feedback_the_mean_over_supports_is_the_update(values: int, one_in: int) -> None:
    """Exactly, over all words that choose each place once; the last run may be shorter."""
    x, chain = np.arange(1, values + 1, dtype=np.float32), Chain(one_in)
    mean = np.zeros(values)
    times = math.lcm(*range(1, one_in + 1))
    for place in range(times):
        word = np.uint32(place * 2**32 // times + 1)
        own = chain.block(values, partial(lambda w, _, count: np.full(count, w), word))
        mean += own.decode(own.encode(x))
    assert (mean / times).tolist() == x.tolist()


@given(chain=chains, values=sizes, seed=st.integers(0, 9))
def test_nothing_grows(chain: Chain, values: int, seed: int) -> None:
    """Of zeros, denormals and the largest of float32 alike; zeros stay zeros."""
    own = code(chain, values, seed)
    assert not own.encode(np.zeros(values, np.float32)).any()
    for scale in (1e-45, 1.0, 3.4e38):
        x = (np.random.default_rng(seed).uniform(-1, 1, values) * scale).astype(np.float32)
        norms = [
            math.sqrt(math.fsum((v.astype(np.float64) / scale) ** 2)) for v in (x, own.encode(x))
        ]
        assert norms[1] <= norms[0] * (1 + 1e-13)


def test_a_rotated_update_fits_the_range_of_its_clip() -> None:
    """3 deviations of C / sqrt(d): of an update with all its length in one layer, hardly more
    is beyond than of normal values, 0.0027."""
    values, clip = 1 << 16, 2.0
    x = np.zeros(values, np.float32)
    x[:4096] = np.random.default_rng(1).standard_normal(4096)
    x *= np.float32(clip / np.linalg.norm(x))
    spread = np.abs(code(Chain(1, True), values).encode(x)) / (clip / math.sqrt(values))
    assert (np.abs(x) > 3 * clip / math.sqrt(values)).mean() > 0.02
    assert (spread > 3).mean() < 0.006


@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_through_a_chain_is_unbiased(bits: int, rotates: bool) -> None:
    """Over words that are spread evenly, each value's own way: the mean is right within 1 / words
    of a step, and a rotation adds up at most 32 such errors with weights of 1 / 32."""
    values, tries, grid = 1025, 64, Grid(bits, 4.0)
    own = code(Chain(3, rotates, False), values, 2)
    x = (np.random.default_rng(4).standard_normal(values) / 4).astype(np.float32)
    exact = own.encode(x)
    order = np.random.default_rng(5).permuted(np.tile(np.arange(tries), (own.sent, 1)), axis=1)
    total = np.zeros(own.sent, np.int64)
    for each in order.T:
        words = (each.astype(np.uint64) * 2**32 // tries + 2**31 // tries).astype(np.uint32)
        total += grid.encode(exact, words)
    mean = grid.decode_sum(total, tries) / tries
    assert np.abs(mean - exact).max() <= grid.step / tries
    assert np.linalg.norm(own.decode(mean) - own.decode(exact)) <= (
        grid.step / tries * math.sqrt(own.sent)
    )


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_rounded(wrong: float) -> None:
    """A rotation spreads it over its piece, and hides it nowhere."""
    for chain in (Chain(1, True), Chain(1, False)):
        x = np.zeros(70, np.float32)
        x[33] = wrong
        with np.errstate(invalid="ignore"):
            encoded = code(chain, 70).encode(x)
        with pytest.raises(NotFinite):
            Grid(4, 1.0).encode(encoded, np.zeros(70, np.uint32))


def test_the_bits_are_those_of_every_machine() -> None:
    """Butterflies are additions in a fixed order: a digest that never changes."""
    own = code(Chain(3, True), 5000, 7)
    x = (np.random.default_rng(8).random(5000) - 0.5).astype(np.float32)
    encoded = own.encode(x).astype("<f8").tobytes()
    decoded = own.decode(own.encode(x).astype(np.float32)).astype("<f4").tobytes()
    found = hashlib.blake2b(encoded + decoded, digest_size=8).hexdigest()
    assert found == "52f9c3a1c6df5d50"


# --- supports ------------------------------------------------------------------------


@given(values=st.integers(1, 5000), one_in=st.integers(1, 300), seed=st.integers(0, 99))
def test_one_value_of_each_run_is_sent(values: int, one_in: int, seed: int) -> None:
    words = np.random.default_rng(seed).integers(
        0, 2**32, count_sent(values, one_in), dtype=np.uint32
    )
    chosen, lengths = draw_places(values, one_in, words), run_lengths(values, one_in)
    assert (chosen // one_in).tolist() == list(range(count_sent(values, one_in)))
    assert chosen[0] >= 0
    assert chosen[-1] < values
    assert lengths.sum() == values
    assert lengths.size == chosen.size


@pytest.mark.parametrize("one_in", [2, 3, 4, 7, 256])
def test_every_place_has_as_many_words_as_any_other(one_in: int) -> None:
    """Within one: counted by where the words of each place begin, not by sampling."""
    firsts = [-(-(place << 32) // one_in) for place in range(one_in + 1)]
    counts = {last - first for first, last in itertools.pairwise(firsts)}
    assert max(counts) - min(counts) <= 1
    for place, (first, end) in enumerate(itertools.pairwise(firsts)):
        for word in (first, end - 1):
            assert draw_places(one_in, one_in, np.array([word], np.uint32)).tolist() == [place]


# --- rotations -----------------------------------------------------------------------


lengths = st.one_of(st.integers(0, 300), st.sampled_from([1023, 1024, 1025, 4096, 5461, 70_001]))


def drawn(values: int, seed: int) -> NDArray[np.int8]:
    rng = np.random.default_rng(seed)
    return unpack_signs(values, rng.integers(0, 2**32, sign_words(values), dtype=np.uint32))


def transformed(x: NDArray[np.float64]) -> NDArray[np.float64]:
    made = x.copy()
    hadamard(made)
    return made


@given(size=lengths, seed=st.integers(0, 50))
def test_a_transform_undoes_itself_exactly_on_whole_numbers(size: int, seed: int) -> None:
    """As a decoder has them: sums of integers, below 2^53 with all that is added up."""
    x = np.random.default_rng(seed).integers(-(2**36), 2**36, size).astype(np.float64)
    assert np.array_equal(transformed(transformed(x)), x)


def test_a_rotation_is_the_matrix_of_sylvester() -> None:
    for k in range(1, 6):
        size = 4**k
        matrix = np.ones((1, 1))
        while matrix.shape[0] < size:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        by = drawn(size, k)
        x = np.random.default_rng(k).integers(-9, 10, size).astype(np.float64)
        made = BlockCode(size, None, None, by).encode(x.astype(np.float32))
        assert np.array_equal(made, matrix @ (by * x) / 2**k)


def test_pieces_take_values_from_all_over_a_block() -> None:
    """Piece 1 of 3 has the values 1, 4, 7, ...: one tensor's are not alone in a piece."""
    x = np.zeros(3 * LARGEST)
    x[1::3] = 1.0
    made = transformed(x)
    assert np.flatnonzero(made).tolist() == [1]
    assert made[1] == 32.0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_no_piece_takes_gets_its_sign_alone(size: int) -> None:
    by = -np.ones(size, np.int8)
    x = np.arange(1.0, size + 1, dtype=np.float32)
    assert BlockCode(size, None, None, by).encode(x).tolist() == (-x).tolist()


MOVING = MovingRange(clip=8.0, range=0.02)
scales = st.floats(LEAST, 1.0)


@given(norms=st.lists(st.floats(0.0, 8.0), min_size=1, max_size=9), scale=scales)
def test_the_next_scale_is_that_of_the_mean_norm(norms: list[float], scale: float) -> None:
    """Of norms up to four times the scale's, and at most four times as much or as little."""
    told = [MOVING.encode_length(norm, scale) for norm in norms]
    assert all(abs(one) <= np.float32(0.02) for one in told)
    times = float(np.mean([min(norm / (8.0 * scale), 4.0) for norm in norms]))
    expected = min(max(scale * min(max(times, 0.25), 4.0), LEAST), 1.0)
    assert MOVING.next_scale(scale, float(np.mean(told))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("bits", [2, 4])
def test_few_bits_are_right_on_average(bits: int) -> None:
    grid, told = Grid(bits, 0.02), MOVING.encode_length(2.0, 0.5)  # half as long as was expected
    words = np.random.default_rng(1).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    sums = int(grid.encode(np.full(words.size, told), words).sum())
    mean = (sums / words.size - grid.most) * grid.step
    assert MOVING.next_scale(0.5, mean) == pytest.approx(0.25, rel=0.05)


def test_a_scale_is_a_float32_within_its_bounds() -> None:
    for mean in (-1.0, 0.0, 1.0):
        for scale in (LEAST, 0.3, 1.0):
            after = MOVING.next_scale(scale, mean)
            assert MOVING.check(after) == float(np.float32(after))
    assert MOVING.next_scale(LEAST, -0.02) == LEAST
    assert MOVING.next_scale(1.0, 0.02) == 1.0


@pytest.mark.parametrize("scale", [None, float("nan"), 0.0, -1.0, 1.5])
def test_a_scale_out_of_bounds_is_refused(scale: float | None) -> None:
    with pytest.raises(Malformed, match="kept between"):
        MOVING.check(scale)


@pytest.mark.parametrize("clip", [0.0, 1e38])
def test_a_clip_that_no_float_would_bear_is_refused(clip: float) -> None:
    with pytest.raises(PlanRefused, match="under a range that moves"):
        MovingRange(clip, 1.0)


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
