"""`secureps warm`: every kernel of `rlwe` is compiled, and kept, before a party needs it.

What must not live here: how kernels are compiled and where they are kept (`crypto.compiled`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secureps.crypto.cipher import CipherParameters, Place
from secureps.crypto.compiled import compiled_here, load_kernels
from secureps.crypto.rlwe import KeySum, RlweAdder, RlweOpener, RlweSealing
from secureps.errors import InternalError

EVERY_RING = (CipherParameters("rlwe", 32, (1 << 16) - 2), CipherParameters("rlwe", 32, 1 << 18))
"""Plans that take one ring each, and together all."""


@dataclass(frozen=True, slots=True)
class Warmth:
    """What warming came to: `compiled` kernels were not in `folder` yet."""

    folder: Path
    compiled: int
    seconds: float


def warm() -> Warmth:
    """Seals, adds and opens one block in every ring, which compiles all that these steps take.

    Raises:
        ConfigError: the folder cannot be made, or others may write to it.
    """
    began, before = time.perf_counter(), compiled_here()
    folder = load_kernels()
    values = np.arange(64)
    for parameters in EVERY_RING:
        place = Place(bytes(32), "warm", bytes(32), values.size)
        sealing, adder = RlweSealing(parameters, place), RlweAdder(parameters)
        payload, sums = sealing.seal(0, values), adder.zero(values.size)
        adder.check(values.size, payload)
        adder.add(sums, payload, 1)
        key = KeySum(sealing.key.coefficients().astype(np.int64), 1)
        opened = RlweOpener(parameters, place, key).open(0, adder.total(sums), values.size)
        if not np.array_equal(opened, values):
            raise InternalError("kernels were compiled to something else than they say")
    return Warmth(folder, compiled_here() - before, time.perf_counter() - began)
