"""Decoding in rings with several words, against Python's integers, where estimates are off."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps import compiled
from secureps.crypto.ntt import constants, scale
from secureps.crypto.numpy_kernels import decode_wide as by_numpy
from secureps.crypto.ring import RINGS, Encoding, Ring, error_bound, most_digits
from secureps.crypto.rlwe_kernels import decode_wide as by_numba

compiled_kind = True


@pytest.fixture(params=[True, False], ids=["numba", "numpy"], scope="module", autouse=True)
def _kind(request: pytest.FixtureRequest) -> None:
    global compiled_kind
    compiled_kind = request.param
    if compiled_kind and compiled.missing:
        pytest.skip(compiled.missing)


def widely(ring: Ring, capacity: int, levels: int) -> Encoding:
    base = capacity * levels + 1
    return Encoding(ring, base, most_digits(ring, base, error_bound(capacity, 1)))


SUMS = [(100, 65_534), (4096, (1 << 24) - 2), (1000, 3), (1, (1 << 32) - 1), (1 << 20, 254)]
WIDE = [widely(ring, *sums) for ring in RINGS if len(ring.words) > 1 for sums in SUMS]


def decoded(enc: Encoding, values: list[int]) -> tuple[list[list[int]], float, bool]:
    """Decodes values modulo q: digits of each, the sum of squared errors, and whether all fit."""
    n = enc.ring.degree
    padded = values + [0] * (n - len(values))
    residues = np.array([[v % p for v in padded] for p in (*enc.ring.primes, 1)], np.uint32)
    out, given = np.empty((enc.digits, n), np.int64), (residues, constants(enc.ring), scale(enc))
    if compiled_kind:
        total, whole = by_numba(*given, np.empty((2, n), np.uint64), out)
    else:
        total, whole = by_numpy(*given, out)
    return out.T[: len(values)].tolist(), total, whole


def expected(enc: Encoding, value: int) -> tuple[list[int], int]:
    message, rest = divmod((value + enc.delta // 2) % enc.ring.modulus, enc.delta)
    digits = [message // enc.base**k % enc.base for k in range(enc.digits)]
    return digits, rest - enc.delta // 2


def edges(enc: Encoding) -> list[int]:
    """Returns the values at the end of a digit, an error or q, and one to both sides."""
    tops = [enc.base**k * m for k in range(enc.digits) for m in (1, 2, enc.base - 1)]
    messages = [0, *tops, enc.space - 1, enc.space // 2, enc.space // 3]
    halves = (0, enc.delta // 2, -(enc.delta // 2), enc.delta // 3)
    ends = {enc.delta * m + h + o for m in messages for h in halves for o in (-1, 0, 1)}
    return sorted(
        v for v in ends if -(enc.delta // 2) <= v < enc.delta * enc.space - enc.delta // 2
    )


@pytest.mark.parametrize("enc", WIDE, ids=lambda e: f"{e.ring.name}, {e.digits} digits")
def test_every_edge_is_decoded_exactly(enc: Encoding) -> None:
    values = edges(enc)
    found, total, whole = decoded(enc, values)
    wanted = [expected(enc, value) for value in values]
    assert found == [digits for digits, _ in wanted]
    assert whole
    assert total == pytest.approx(sum(error**2 for _, error in wanted), rel=1e-9)


@pytest.mark.slow
@given(st.data())
def test_any_message_is_decoded_exactly(data: st.DataObject) -> None:
    enc = data.draw(st.sampled_from(WIDE))
    most = min(999, enc.delta // 2 - 1)
    message, error = data.draw(st.integers(0, enc.space - 1)), data.draw(st.integers(-most, most))
    value = enc.delta * message + error
    found, total, whole = decoded(enc, [value])
    assert (found, whole) == ([expected(enc, value)[0]], True)
    assert math.sqrt(total) == pytest.approx(abs(error), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("enc", WIDE, ids=lambda e: f"{e.ring.name}, {e.digits} digits")
def test_what_is_no_message_is_seen(enc: Encoding) -> None:
    half = enc.delta // 2
    for value in (enc.delta * enc.space - half, enc.ring.modulus - half - 1):
        assert not decoded(enc, [5, value])[2]
    assert decoded(enc, [5, enc.delta * enc.space - half - 1])[2]
    assert decoded(enc, [5, enc.ring.modulus - 1])[2]  # an error of -1
