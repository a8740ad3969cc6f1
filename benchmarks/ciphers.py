"""What each step of an update costs, on one core: ours beside TenSEAL's vectors.

Blocks of 2^18 values, 16 bits, capacity 32. "/ copy" is the ratio to a float32 copy of
as many values in the same run, which is what to compare between machines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tenseal as ts

from benchmarks.report import Row, report
from secureps.codec.grid import Grid
from secureps.crypto.bfv_seal import generate
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.sampling import UnsafeSeed
from secureps.crypto.suite import cipher
from secureps.privacy.mechanism import clip_l2

VALUES = 1 << 18
BITS = 16
CAPACITY = 32
TRIES = 3
"""Of which the fastest counts: the machine does other things too."""


class Bench:
    """Times steps on VALUES values; the first row is the copy that all are compared with."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._copy = 0.0

    def time(self, who: str, step: str, action: Callable[[], Any], size: int = 0) -> Any:
        """Adds a row; returns what `action` did. `size` is bytes of what it made, if sent."""
        fastest, made = float("inf"), None
        for _ in range(TRIES):
            began = time.perf_counter()
            made = action()
            fastest = min(fastest, time.perf_counter() - began)
        nanoseconds = 1e9 * fastest / VALUES
        self._copy = self._copy or nanoseconds
        if isinstance(made, bytes):
            size = len(made)
        self.rows.append(
            {
                "who": who,
                "step": step,
                "ns/value": nanoseconds,
                "/ copy": nanoseconds / self._copy,
                "bytes/value": size / VALUES,
            }
        )
        return made


def _float32(bench: Bench) -> None:
    x = np.random.default_rng(1).standard_normal(VALUES).astype(np.float32)
    total = np.zeros_like(x)
    bench.time("float32", "copy", lambda: np.copyto(total, x), x.nbytes)
    bench.time("float32", "add", lambda: np.add(total, x, out=total))


def _ours(bench: Bench) -> None:
    grid = Grid(BITS, 0.1)
    delta = np.random.default_rng(2).standard_normal(VALUES).astype(np.float32)
    clipped, _ = bench.time("all", "clip", lambda: clip_l2(delta, 3.0))
    stream = UnsafeSeed(3)

    def to_grid() -> Any:
        return grid.encode(clipped, stream.derive("round").words(VALUES))

    values = bench.time("all", "round and grid", to_grid)
    secret, public = generate()
    for name, key in (("plain", None), ("bfv", public.to_bytes())):
        kind = cipher(CipherParameters(name, CAPACITY, grid.levels))
        sealer, adder = kind.sealer(key), kind.adder()
        opener = kind.opener(secret if name == "bfv" else None)
        sealed = bench.time(name, "seal", lambda s=sealer: s.seal(values))  # type: ignore[misc]
        bench.time(name, "check", lambda a=adder, b=sealed: a.check(VALUES, b))  # type: ignore[misc]
        sums = adder.zero(VALUES)
        bench.time(name, "add", lambda a=adder, s=sums, b=sealed: a.add(s, b, 1))  # type: ignore[misc]
        total = bench.time(name, "total", lambda a=adder, s=sums: a.total(s))  # type: ignore[misc]
        opened = bench.time(name, "open", lambda o=opener, t=total: o.open(t, VALUES))  # type: ignore[misc]
        assert np.array_equal(opened, TRIES * values)


def _tenseal(bench: Bench) -> None:
    ckks = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40], n_threads=1)
    ckks.global_scale = 2**40
    x = np.random.default_rng(4).standard_normal(VALUES)
    _vectors(bench, "tenseal ckks", ckks, ts.ckks_vector, ts.ckks_vector_from, x, 4096)
    bfv = ts.context(
        ts.SCHEME_TYPE.BFV,
        4096,
        plain_modulus=_BATCHING_PRIME,
        coeff_mod_bit_sizes=[60, 49],
        n_threads=1,
    )
    u = np.random.default_rng(5).integers(0, 1 << BITS, VALUES)
    _vectors(bench, "tenseal bfv", bfv, ts.bfv_vector, ts.bfv_vector_from, u, 4096)


_BATCHING_PRIME = 4294991873
"""= 1 mod 8192, above 2^32: the sums of 32 values of 16 bits, one to a slot."""


def _vectors(
    bench: Bench, who: str, context: Any, make: Any, load: Any, values: Any, slots: int
) -> None:
    parts = [part.tolist() for part in np.split(values, VALUES // slots)]

    def seal() -> list[bytes]:
        return [make(context, part).serialize() for part in parts]

    sealed = seal()
    size = sum(map(len, sealed))
    bench.time(who, "seal", seal, size)
    loaded = [load(context, data) for data in sealed]
    bench.time(who, "check", lambda: [load(context, data) for data in sealed])
    sums = [load(context, data) for data in sealed]

    def add() -> None:
        for total, part in zip(sums, loaded, strict=True):
            total.add_(part)

    bench.time(who, "add", add)
    bench.time(who, "total", lambda: [total.serialize() for total in sums], size)
    bench.time(who, "open", lambda: [total.decrypt() for total in sums])
    opened = np.concatenate([total.decrypt() for total in sums])
    assert np.abs(opened - (TRIES + 1) * values).max() < 1e-4


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    bench = Bench()
    _float32(bench)
    _ours(bench)
    _tenseal(bench)
    report("ciphers", f"Steps of an update, {VALUES} values of {BITS} bits, one core", bench.rows)


if __name__ == "__main__":
    main()
