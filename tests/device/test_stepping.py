"""A step of every optimizer on a device has the bits of the host's, whatever the values."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.codec.chain import Chain
from secureps.codec.grid import Grid
from secureps.config.optimizer import OptimizerSection, ScheduleSection
from secureps.device.stepping import LIBRARY, DeviceStep, weighted_mean
from secureps.errors import Malformed, NotFinite, WrongShape
from secureps.model.optimizer import (
    EXACT,
    OPTIMIZERS,
    NoNumber,
    Values,
    build_optimizer,
    keeping_exact,
)
from tests.device.test_encoding import code
from tests.kits.torch_device import DEVICE, back, there

STEP = DeviceStep(DEVICE)

numbers = st.floats(1e-4, 0.999)
sections = st.builds(
    OptimizerSection,
    name=st.sampled_from(sorted(OPTIMIZERS)),
    learning_rate=st.floats(1e-4, 10),
    momentum=numbers,
    betas=st.tuples(numbers, numbers),
    tau=st.floats(1e-8, 1),
    schedule=st.sampled_from(
        [ScheduleSection(name=name) for name in ("constant", "cosine", "exponential", "warmup")]
    ),
)
sizes = st.one_of(st.integers(1, 70), st.sampled_from([1023, 4099, 70_001]))


def drawn(size: int, seed: int, most: int = 8) -> Values:
    """Of every magnitude, numbers that are not normal and zeros of both signs among them."""
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(size) * 10.0 ** rng.integers(-44, most, size)
    made[rng.random(size) < 0.1] = 0
    signed: Values = (made * rng.choice([-1, 1], size)).astype(np.float32)
    return signed


@settings(max_examples=80, deadline=None)
@given(section=sections, size=sizes, seed=st.integers(0, 999), exact=st.booleans())
def test_an_optimizer_makes_the_hosts_bits(
    section: OptimizerSection, size: int, seed: int, exact: bool
) -> None:
    """Step after step, from what the one before made; and where what is published is coarser."""
    here, device = build_optimizer(section), build_optimizer(section, LIBRARY)
    if exact:
        here, device = keeping_exact(here), keeping_exact(device)
    values = drawn(size, seed)
    state = found = here.init(values)
    for step in range(3):
        mean = drawn(size, 1000 * step + seed)
        made, found = STEP.apply(device, there(mean), values, found)
        values, state = here.apply(mean, values, state)
        assert made.tobytes() == values.tobytes()
        assert found == state
        for name, slot in state.slots.items():
            assert found.slots[name].tobytes() == slot.tobytes(), name
        values = (values * np.float32(0.5)).astype(np.float32) if exact else values
    assert (EXACT in state.slots) is exact


@given(
    bits=st.integers(2, 24),
    reach=st.floats(1e-6, 1e6),
    shares=st.fractions(Fraction(1, 1 << 40), 1 << 14, max_denominator=1 << 40),
    terms=st.integers(1, 1 << 37),
    seed=st.integers(0, 999),
)
def test_a_mean_is_the_grids(
    bits: int, reach: float, shares: Fraction, terms: int, seed: int
) -> None:
    """Of sums beyond what a float64 holds exactly, too."""
    grid = Grid(bits, reach)
    top = terms * grid.levels
    sums = np.random.default_rng(seed).integers(0, top, 300, np.int64, endpoint=True)
    sums[:3] = [0, top, grid.zero(terms)]
    expected = grid.weighted_mean(sums, shares, terms)
    assert back(STEP.mean(grid, sums, shares, terms)).tobytes() == expected.tobytes()


def test_means_that_cannot_be_are_refused_as_on_the_host() -> None:
    grid, sums = Grid(16, 1e38), np.array([0, 1 << 61])
    few = Fraction(1, 1 << 16)
    for terms, error in ((0, Malformed), (1, NotFinite)):
        with pytest.raises(error) as found:
            weighted_mean(grid, there(sums), few, terms)
        with pytest.raises(error) as expected:
            grid.weighted_mean(sums, few, terms)
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("chain", [Chain(3, True), Chain(1, True), Chain(4, False, False)])
def test_what_a_codec_made_small_is_decoded_from_its_pieces(chain: Chain) -> None:
    own = code(chain, 5000, 2, 1)
    means = drawn(own.sent, 3)
    found = STEP.decoded(own, [there(means[:100]), there(means[100:])])
    assert back(found).tobytes() == own.decode(means).tobytes()


def test_a_difference_lies_on_the_host() -> None:
    exact, published = drawn(700, 1), drawn(700, 2)
    codes = STEP.codes(exact, published, 3)
    assert isinstance(codes, np.ndarray)
    assert codes.dtype == np.uint8


def test_what_is_no_number_is_left_to_the_host() -> None:
    """The sign of a NaN is not the same everywhere: two squares too large make one of yogi's v."""
    optimizer = build_optimizer(OptimizerSection(name="yogi"), LIBRARY)
    host = build_optimizer(OptimizerSection(name="yogi"))
    values = np.ones(3, np.float32)
    state = host.init(values)
    mean = np.array([1, 1e30, 1], np.float32)
    made, after = STEP.apply(optimizer, there(mean), values, state)
    assert np.isinf(after.slots["second"]).any()
    with pytest.raises(NoNumber):
        STEP.apply(optimizer, there(mean), made, after)


def test_nothing_that_is_given_is_changed() -> None:
    """A read-only array, as of a file, is taken too."""
    section = OptimizerSection(name="adam")
    values, mean = drawn(50, 1), there(drawn(50, 2))
    state, kept = build_optimizer(section).init(values), mean.clone()
    for array in (values, *state.slots.values()):
        array.flags.writeable = False
    STEP.apply(build_optimizer(section, LIBRARY), mean, values, state)
    assert torch.equal(mean, kept)


def test_vectors_that_do_not_fit_are_refused() -> None:
    optimizer = build_optimizer(OptimizerSection(), LIBRARY)
    values = np.zeros(3, np.float32)
    for mean in (np.zeros(4, np.float32), np.zeros(3)):
        with pytest.raises(WrongShape, match="update is"):
            STEP.apply(
                optimizer, there(mean), values, build_optimizer(OptimizerSection()).init(values)
            )
