"""`python -m tests.vectors.lattice` prints what the lattice estimator needs, for Sage.

The estimator (https://github.com/malb/lattice-estimator) is on no registry: run the printed text in
its folder. Its rough estimate has the cost model of `core_svp`, its full one has others.
"""

from collections.abc import Iterator

from secureps.crypto.ring import ETA, HINTED_SIGMA, RINGS, SIGMA, core_svp


def script() -> str:
    return "\n".join(["from estimator import *", *_estimates(), ""])


def _estimates() -> Iterator[str]:
    hinted = f"ND.DiscreteGaussian({HINTED_SIGMA!r})"
    for ring in RINGS:
        for law, sigma in ((f"ND.CenteredBinomial({ETA})", SIGMA), (hinted, HINTED_SIGMA)):
            classical, quantum = core_svp(ring.degree, ring.modulus, sigma)
            q = " * ".join(map(str, ring.primes))
            yield f"\n# {ring.name}: core-SVP {classical:.1f} bits, {quantum:.1f} quantum"
            yield f"own = LWE.Parameters(n={ring.degree}, q={q}, Xs={law}, Xe={law})"
            yield "LWE.estimate.rough(own)\nLWE.estimate(own)"


if __name__ == "__main__":
    print(script(), end="")
