"""TenSEAL's own encrypted vectors, as other federations use them: the same steps beside ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import tenseal as ts

from benchmarks.stopwatch import Stopwatch

BITS = 16
SLOTS = 4096
"""Values in one vector."""
BATCHING_PRIME = 4294991873
"""= 1 mod 8192, above 2^32: the sums of 32 values of 16 bits, one to a slot."""


def time_vectors(watch: Stopwatch) -> None:
    """CKKS as in common use, and BFV one value to a slot; `watch.values` in whole vectors."""
    ckks = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40], n_threads=1)
    ckks.global_scale = 2**40
    x = np.random.default_rng(4).standard_normal(watch.values)
    _time(watch, "tenseal ckks", ckks, ts.ckks_vector, ts.ckks_vector_from, x)
    bfv = ts.context(
        ts.SCHEME_TYPE.BFV,
        4096,
        plain_modulus=BATCHING_PRIME,
        coeff_mod_bit_sizes=[60, 49],
        n_threads=1,
    )
    u = np.random.default_rng(5).integers(0, 1 << BITS, watch.values)
    _time(watch, "tenseal bfv", bfv, ts.bfv_vector, ts.bfv_vector_from, u)


def _time(watch: Stopwatch, who: str, context: Any, make: Any, load: Any, values: Any) -> None:
    parts = [part.tolist() for part in np.split(values, watch.values // SLOTS)]

    def seal() -> list[bytes]:
        return [make(context, part).serialize() for part in parts]

    sealed = seal()
    size = sum(map(len, sealed))
    watch.time(who, "seal", seal, size)
    loaded = [load(context, data) for data in sealed]
    watch.time(who, "check", lambda: [load(context, data) for data in sealed])
    sums = [load(context, data) for data in sealed]

    def add() -> None:
        for total, part in zip(sums, loaded, strict=True):
            total.add_(part)

    watch.time(who, "add", add)
    watch.time(who, "total", lambda: [total.serialize() for total in sums], size)
    watch.time(who, "open", lambda: [total.decrypt() for total in sums])
    opened = np.concatenate([total.decrypt() for total in sums])
    assert np.abs(opened - (watch.tries + 1) * values).max() < 1e-4
