"""The stated security of rings, against published figures and the threat model's table."""

import math
import re

import pytest

from secureps.crypto.ring import ML_KEM_768, RINGS, SIGMA, Ring, core_svp
from tests.kits.nursery import ROOT
from tests.vectors.lattice import script


@pytest.mark.parametrize(
    ("degree", "modulus", "sigma", "classical"),
    [
        (512, 12289, 2.0, 112),  # NewHope512, NIST round 2
        (1024, 12289, 2.0, 257),  # NewHope1024
        (512, 3329, math.sqrt(1.5), 118),  # Kyber512, round 3: eta = 3
        (*ML_KEM_768, 182),  # Kyber768, rounds 2 and 3
        (1024, 3329, 1.0, 256),  # Kyber1024
    ],
)
def test_the_estimate_is_that_of_submissions_to_nist(
    degree: int, modulus: int, sigma: float, classical: int
) -> None:
    found, quantum = core_svp(degree, modulus, sigma)
    assert found == pytest.approx(classical, abs=2.5)
    assert quantum == pytest.approx(0.257 / 0.292 * found)


def condition(b: int, m: int, n: int, q: int, sigma: float) -> bool:
    """The formula as the paper prints it, in plain numbers."""
    d = m + n + 1
    delta = ((math.pi * b) ** (1 / b) * b / (2 * math.pi * math.e)) ** (1 / (2 * (b - 1)))
    return sigma * math.sqrt(b) <= math.exp((2 * b - d - 1) * math.log(delta) + m / d * math.log(q))


def test_the_inputs_of_the_lattice_estimator_are_the_rings() -> None:
    told = re.findall(r"n=(\d+), q=([\d *]+), Xs=(.+), Xe=(.+)\)", script())
    laws = "ND.CenteredBinomial(41)", f"ND.DiscreteGaussian({math.sqrt(41 / 2) / 2!r})"
    assert [(int(n), math.prod(map(int, q.split(" * "))), *own) for n, q, *own in told] == [
        (ring.degree, ring.modulus, law, law) for ring in RINGS for law in laws
    ]
    compile(script(), "estimates.sage", "exec")


@pytest.mark.parametrize("ring", RINGS, ids=lambda r: r.name)
def test_no_smaller_block_breaks_a_ring(ring: Ring) -> None:
    b = round(core_svp(ring.degree, ring.modulus, SIGMA)[0] / 0.292)
    samples = range(ring.degree // 4, 3 * ring.degree)
    assert any(condition(b + 1, m, ring.degree, ring.modulus, SIGMA) for m in samples)
    assert not any(condition(b - 1, m, ring.degree, ring.modulus, SIGMA) for m in samples)


def test_the_threat_models_table_is_computed() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text()
    deviations = (SIGMA, SIGMA / math.sqrt(2), SIGMA / 2)
    for ring in RINGS:
        start = f"| N = {ring.degree}, q of {ring.modulus.bit_length()} bits"
        (line,) = (line for line in page.splitlines() if line.startswith(start))
        told = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) / (\d+)", line)]
        costs = (core_svp(ring.degree, ring.modulus, sigma) for sigma in deviations)
        assert told == [(round(classical), round(quantum)) for classical, quantum in costs]


def test_a_conservative_ring_withstands_128_bits_also_with_hints() -> None:
    conservative = [ring for ring in RINGS if ring.security == "conservative"]
    assert conservative
    for ring in conservative:
        assert core_svp(ring.degree, ring.modulus, SIGMA / 2)[1] >= 128
