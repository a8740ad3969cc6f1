"""The transform: against its definition and Kronecker products; nothing exceeds 32 bits."""

from functools import cache
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps import compiled
from secureps.crypto import ntt as by_numba
from secureps.crypto import numpy_kernels as by_numpy
from secureps.crypto.ntt import WIDTH, companion, root_of_unity, tables
from secureps.crypto.ring import RINGS
from tests.kits.rlwe_kit import product, transformed

U32 = NDArray[np.uint32]

CASES = [(ring.degree, prime) for ring in RINGS for prime in ring.primes]
every_prime = pytest.mark.parametrize(("degree", "prime"), CASES)


KIND: ModuleType = by_numba


@pytest.fixture(params=[by_numba, by_numpy], ids=["numba", "numpy"], scope="module", autouse=True)
def _kind(request: pytest.FixtureRequest) -> None:
    global KIND
    KIND = request.param
    if KIND is by_numba and compiled.missing:
        pytest.skip(compiled.missing)


def ntt(a: U32, prime: int) -> U32:
    (primes, head, tail, *_), out = tables(a.size, prime), np.empty_like(a)
    KIND.forward(a.copy(), out, head, tail, primes)
    return out


def inverse(a: U32, prime: int) -> U32:
    (primes, *_, head, tail, last), out = tables(a.size, prime), np.empty_like(a)
    KIND.backward(a.copy(), out, head, tail, last, primes)
    return out


def random(degree: int, bound: int, seed: int) -> U32:
    return np.random.default_rng(seed).integers(0, bound, degree).astype(np.uint32)


@every_prime
def test_it_evaluates_at_odd_powers_of_a_root(degree: int, prime: int) -> None:
    a = random(degree, prime, 1)
    assert (ntt(a, prime) % prime).tolist() == transformed(a.tolist(), prime)


@cache  # both kinds of kernels are held against the same ones
def factors_and_product(degree: int, prime: int) -> tuple[U32, U32, list[int]]:
    a, b = random(degree, prime, 2), random(degree, prime, 3)
    return a, b, product(a.tolist(), b.tolist(), prime)


@every_prime
def test_products_are_negacyclic(degree: int, prime: int) -> None:
    a, b, expected = factors_and_product(degree, prime)
    by_value = ntt(a, prime).astype(np.uint64) % prime * (ntt(b, prime) % prime) % prime
    found = inverse(by_value.astype(np.uint32), prime)
    assert found.tolist() == expected


def lazy_bound(a: list[int], degree: int, prime: int) -> list[int]:
    """Computes `forward` in Python's integers; fails where 32 bits would overflow."""
    bits, root = degree.bit_length() - 1, root_of_unity(degree, prime)
    twiddles = [pow(root, int(f"{i:0{bits}b}"[::-1], 2), prime) for i in range(degree)]
    step, blocks = degree // 2, 1
    while step:
        for block in range(blocks):
            w = twiddles[blocks + block]
            w2 = companion(w, prime)
            for k in range(2 * block * step, 2 * block * step + step):
                x, y = a[k], a[k + step]
                z = w * y - (w2 * y >> 32) * prime
                assert 0 <= z < 2 * prime
                a[k], a[k + step] = x + z, x + 2 * prime - z
                assert max(a[k], a[k + step]) < 1 << 32
        step, blocks = step // 2, blocks * 2
    return a


@cache
def greatest(kind: str, degree: int, prime: int) -> tuple[list[int], list[int]]:
    """Returns inputs up to 10p, and their transform in unbounded integers."""
    most = 10 * prime - 1
    a = {
        "greatest": [most] * degree,
        "alternating": [most, 0] * (degree // 2),
        "edges": np.random.default_rng(6).choice([0, prime - 1, prime, most], degree).tolist(),
    }[kind]
    return a, lazy_bound(list(a), degree, prime)


@every_prime
@pytest.mark.parametrize("kind", ["greatest", "alternating", "edges"])
def test_the_greatest_inputs_stay_within_32_bits(degree: int, prime: int, kind: str) -> None:
    (a, expected), rows = greatest(kind, degree, prime), degree // WIDTH
    found = ntt(np.array(a, np.uint32), prime)
    assert found.reshape(WIDTH, rows).T.reshape(-1).tolist() == expected
    assert max(expected) < 34 * prime


def test_the_bound_on_primes_is_what_the_stages_need() -> None:
    for degree, prime in CASES:
        assert (10 + 2 * (degree.bit_length() - 1)) * prime < 1 << 32


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_there_and_back(data: st.DataObject) -> None:
    """For any mixture of extremes; the inverse takes entries below 2p."""
    degree, prime = data.draw(st.sampled_from(CASES))
    values = data.draw(st.lists(st.sampled_from([0, 1, prime - 1, prime // 2]), min_size=1))
    a = np.resize(np.array(values, np.uint32), degree)
    b = ntt(a, prime) % np.uint32(prime)
    assert np.array_equal(inverse(b, prime), a)
    lifts = np.random.default_rng(7).integers(0, 2, degree)
    lifted = b + np.uint32(prime) * lifts.astype(np.uint32)
    assert np.array_equal(inverse(lifted, prime), a)


@pytest.mark.slow
@given(y=st.integers(0, 2**32 - 1), w=st.integers(0, 2**26), prime=st.sampled_from(RINGS[1].primes))
def test_shoups_product_is_the_product(y: int, w: int, prime: int) -> None:
    w2 = companion(w, prime)
    wide = np.array([y], np.uint32) if KIND is by_numpy else np.uint32(y)
    made = KIND.shoup(wide, np.uint32(w), np.uint32(w2), np.uint32(prime))
    found = int(np.ravel(made)[0])
    assert found < 2 * prime
    assert found % prime == w * y % prime
    assert int(np.ravel(KIND.once(made, np.uint32(prime)))[0]) == w * y % prime


def test_a_prime_without_roots_is_none() -> None:
    with pytest.raises(ValueError, match="no root of unity"):
        root_of_unity(2048, 97)
