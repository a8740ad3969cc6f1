"""What each step of an update costs, on one core: ours beside TenSEAL's vectors.

Blocks of 2^18 values, 16 bits, capacity 32. "to a copy" is the ratio to a float32 copy of as
many values in the same run, which is what to compare between machines; "to fp32" is that of
bytes. Of the steps before the cipher, a client takes `clip` and then either `grid`, which rounds
too, or, protected as a whole, `round` and one of the two noises; `seal` packs by itself. "by NumPy"
is what a machine without numba takes for the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

from benchmarks.report import Row, report
from benchmarks.stopwatch import Stopwatch
from secureps.codec.grid import Grid
from secureps.crypto.bfv import pack, unpack
from secureps.crypto.bfv_seal import generate
from secureps.crypto.cipher import CipherParameters, Opening, Place, Sealer
from secureps.crypto.sampling import UnsafeSeed
from secureps.crypto.suite import CIPHERS, cipher
from secureps.policy.plan import load_plan
from secureps.privacy.client_level import round_to_norm
from secureps.privacy.mechanism import clip_l2
from secureps.privacy.skellam import Skellam

VALUES = 1 << 18
WEIGHT = 4
"""Of a member of a cohort: the largest there is."""
WIDE_CAPACITY = 100
"""At which 16 bits need the second ring."""
LARGE = 1 << 22
"""Values of a block for which the third ring takes the fewest bytes."""
CAPACITY = 32
PRIVATE = Path(__file__).parent.parent / "policies" / "digits_client.toml"
"""Whose clip and noise multiplier the private steps take, for as many values as are timed."""


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


def measure(values: int = VALUES, tries: int = 5) -> Sequence[Row]:
    """All rows; `values` in whole vectors of TenSEAL."""
    watch = Stopwatch(values, tries)
    integers = _before_the_cipher(watch)
    levels = int(Grid(BITS, 0.1).levels)
    for name in CIPHERS:
        _cipher(watch, name, CipherParameters(name, CAPACITY, levels), integers)
    _cipher(watch, "rlwe wide", CipherParameters("rlwe", WIDE_CAPACITY, levels), integers)
    _cipher(watch, "rlwe large", CipherParameters("rlwe", CAPACITY, levels, slots=LARGE), integers)
    with mock.patch("secureps.compiled.missing", "it is left out here"):
        _cipher(watch, "rlwe by NumPy", CipherParameters("rlwe", CAPACITY, levels), integers)
        grid, words = Grid(BITS, 0.1), UnsafeSeed(3).derive("grid").words(values)
        delta = np.random.default_rng(2).standard_normal(values).astype(np.float32)
        watch.time("all by NumPy", "grid", lambda: grid.encode(delta, words))
    time_vectors(watch)
    return watch.rows


def _before_the_cipher(watch: Stopwatch) -> NDArray[np.int64]:
    """Times what all ciphers have in common; returns integers to seal."""
    plan, stream = load_plan(PRIVATE), UnsafeSeed(3)
    clip = plan.group("all").clip
    delta = np.random.default_rng(2).standard_normal(watch.values).astype(np.float32)
    clipped, _ = watch.time("all", "clip", lambda: clip_l2(delta, clip))
    grid = Grid(BITS, 0.1)
    integers = watch.time(
        "all", "grid", lambda: grid.encode(clipped, stream.derive("grid").words(watch.values))
    )
    distributed = plan.mechanism("all", watch.values)
    assert distributed is not None
    made, words = distributed.calibration, stream.derive("round").words
    steps = clipped / np.float64(made.step)
    watch.time("client", "round", lambda: round_to_norm(steps, made.bound, made.limit, words))
    local = replace(distributed, placement="local", honest=1)
    for mechanism in (local, distributed):
        sampler, noise = Skellam(mechanism.calibration.variance), stream.derive("noise").words
        sampler.sample(1, noise)  # its table is made once in a run
        watch.time(
            "client",
            f"noise, {mechanism.placement}",
            partial(sampler.sample, watch.values, noise),
        )
    base = CAPACITY * grid.levels + 1
    packed = watch.time("all", "pack", lambda: pack(integers.astype(np.int64), base))
    unpacked = watch.time("all", "unpack", lambda: unpack(packed, base, watch.values))
    assert np.array_equal(unpacked, integers)
    return integers.astype(np.int64)


def _cipher(
    watch: Stopwatch, who: str, parameters: CipherParameters, integers: NDArray[np.int64]
) -> None:
    """A submission of its own at every try: where that takes a key, it is timed with it."""
    kind, weight = cipher(parameters), WEIGHT * watch.tries
    secret, public = generate() if kind.opening is Opening.HOLDER else (None, None)
    place = Place(bytes(32), "all", bytes(32), watch.values)
    sealers: list[Sealer] = []

    def seal() -> bytes:
        sealers.append(kind.sealer(place, None if public is None else public.to_bytes()))
        return sealers[-1].seal(0, integers)

    adder = kind.adder()
    sealed = watch.time(who, "seal", seal)
    watch.time(who, "check", lambda: adder.check(watch.values, sealed))
    sums = adder.zero(watch.values)
    watch.time(who, "add", lambda: adder.add(sums, sealed, WEIGHT))
    total = watch.time(who, "total", lambda: adder.total(sums))
    key: object = secret
    if (own := sealers[-1].key) is not None:  # the same block so often: its error, too
        key = (weight * own.coefficients()).astype("<i4").tobytes()
    opened = watch.time(
        who, "open", lambda: kind.opener(place, key, [weight]).open(0, total, watch.values)
    )
    assert np.array_equal(opened, weight * integers)


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    title = f"Steps of an update, {VALUES} values of {BITS} bits, capacity {CAPACITY}, one core"
    report("ciphers", title, measure())


if __name__ == "__main__":
    main()
