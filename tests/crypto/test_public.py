"""Public polynomials: known answers, any element by itself, uniform, bound to their place."""

import numpy as np
import pytest

from secureps.crypto import rlwe
from secureps.crypto.ntt import constants
from secureps.crypto.ring import RINGS, Ring
from secureps.crypto.rlwe import PublicPolynomials
from secureps.crypto.rlwe_kernels import reduce_accepted
from secureps.errors import InternalError, PlanRefused
from tests.kits.rlwe_kit import place, public_element

of_both = pytest.mark.usefixtures("kernel_kind")
every_ring = pytest.mark.parametrize("ring", RINGS, ids=lambda r: r.name)

KNOWN = {
    "n2048-q53": [[8126447, 39233243], [77388342, 30050250]],
    "n4096-q53": [[89355951, 57135031], [85277623, 52230373]],
    "n4096-q106": [
        [84126206, 41646613, 85785436, 22321798],
        [89541442, 51859466, 58896701, 86550625],
    ],
    "n8192-q106": [
        [75002920, 39763353, 21024858, 43324369],
        [16504916, 27630210, 8789914, 51833544],
    ],
    "n8192-q212": [
        [79686781, 72404910, 22053677, 91648579, 60776917, 50086848, 571408, 42489561],
        [64183496, 60798191, 13560273, 82454972, 198896, 67120460, 50769252, 84887318],
    ],
}


@of_both
@every_ring
def test_they_are_those_of_the_definition(ring: Ring) -> None:
    """Words of ChaCha20 (by another path) below the limit, modulo the prime, bound to a place."""
    places = place(100), place(100, run=1), place(100, group="embedding"), place(100, layout=1)
    for at in places:
        made = PublicPolynomials(ring, at).derive(0, 3)
        for element in (0, 2):
            assert made[element].tolist() == public_element(ring, at, element)
    far = 1_000_003
    found = PublicPolynomials(ring, places[0]).derive(far, 1)[0]
    assert found.tolist() == public_element(ring, places[0], far)


@of_both
@every_ring
def test_known_answers(ring: Ring) -> None:
    """Parties of other releases derive the same."""
    made = PublicPolynomials(ring, place(100)).derive(0, 2)
    assert made[:, :, 0].tolist() == KNOWN[ring.name]


@every_ring
def test_the_first_of_a_group_are_made_once_for_all_that_seal_and_open(ring: Ring) -> None:
    one, other = (PublicPolynomials(ring, place(100)) for _ in range(2))
    assert one.derive(0, 2) is other.derive(0, 2)
    size = 4 * len(ring.primes) * ring.degree
    last = rlwe.KEPT // size
    assert one.derive(last - 1, 1) is other.derive(last - 1, 1)
    assert one.derive(last, 1) is not other.derive(last, 1)
    found = PublicPolynomials(ring, place(100, run=1)).derive(0, 2)
    assert not np.array_equal(found, one.derive(0, 2))


def test_what_is_kept_is_bounded_in_bytes() -> None:
    """However large the requested pieces are."""
    ring = RINGS[-1]
    whole = rlwe.KEPT // (4 * len(ring.primes) * ring.degree)
    one = PublicPolynomials(ring, place(100, run=3))
    first, last = one.derive(0, 1), one.derive(0, whole)
    for run in range(4, 6):
        latest = PublicPolynomials(ring, place(100, run=run)).derive(0, whole)
        assert rlwe._polynomials.size <= 2 * rlwe.KEPT
    assert PublicPolynomials(ring, place(100, run=5)).derive(0, whole) is latest
    assert one.derive(0, whole) is not last
    assert np.array_equal(one.derive(0, 1), first)


@every_ring
def test_any_run_of_elements_is_cut_from_the_same(ring: Ring) -> None:
    polynomials = PublicPolynomials(ring, place(100))
    whole = polynomials.derive(0, 20)
    for first, count in ((0, 1), (5, 3), (19, 1), (0, 20), (7, 13)):
        assert np.array_equal(polynomials.derive(first, count), whole[first : first + count])


def test_beyond_one_key_stream_is_refused() -> None:
    polynomials = PublicPolynomials(RINGS[0], place(1))
    blocks = 2 * (2048 + 128) * 4 // 64
    last = (1 << 32) // blocks - 2
    assert polynomials.derive(last, 1).shape == (1, 2, 2048)
    with pytest.raises(PlanRefused, match="split it"):
        polynomials.derive(last + 2, 1)


@of_both
def test_the_reduction_takes_exactly_the_words_below_the_limit() -> None:
    """Words at both edges of the limit, and exactly as many as needed in mixed runs."""
    ring = RINGS[0]
    made, rng = constants(ring), np.random.default_rng(1)
    limits = [(1 << 32) // p * p for p in ring.primes]
    window = ring.degree + rlwe.spare_words(ring.degree)
    words = rng.integers(0, limits[0], (1, 2, window)).astype(np.uint32)
    for index, limit in enumerate(limits):
        words[0, index, :6] = [0, limit - 1, limit, limit + 1, 2**32 - 1, ring.primes[index]]
        words[0, index, 100:220:2] = 2**32 - 1
    out = np.empty((1, 2, ring.degree), np.uint32)
    assert reduce_accepted(words, made.primes, out)
    for index, (prime, limit) in enumerate(zip(ring.primes, limits)):
        expected = [w % prime for w in words[0, index].tolist() if w < limit]
        assert out[0, index].tolist() == expected[: ring.degree]


@of_both
def test_a_window_that_runs_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = RINGS[0]
    spare_words = rlwe.spare_words(ring.degree)
    window = ring.degree + spare_words
    for spoilt, enough in ((spare_words, True), (spare_words + 1, False)):
        words = np.zeros((1, 2, window), np.uint32)
        words[0, 1, :spoilt] = 2**32 - 1
        out = np.empty((1, 2, ring.degree), np.uint32)
        assert reduce_accepted(words, constants(ring).primes, out) is enough
    monkeypatch.setattr(rlwe, "reduce_accepted", lambda *_: False)
    with pytest.raises(InternalError, match="ran out"):
        PublicPolynomials(ring, place(1, run=2)).derive(0, 1)  # which nobody has asked for
