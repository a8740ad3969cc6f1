"""Kernels of `secureps.gpu` on no device: Triton's interpreter plays them in NumPy.

Whoever imports this is skipped where Triton is not installed (`make gpu` installs it).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.gpu.device import INTERPRETER

if "triton" not in sys.modules:
    os.environ.setdefault(INTERPRETER, "1")
triton = pytest.importorskip("triton", reason="Triton is not installed: make gpu")
if os.environ.get(INTERPRETER) != "1":
    pytest.skip("Triton was imported before, and not to interpret", allow_module_level=True)

import triton.language as tl  # noqa: E402

from secureps.crypto.cipher import Place  # noqa: E402
from secureps.crypto.ntt import paired, twiddles  # noqa: E402
from secureps.crypto.ring import Encoding  # noqa: E402
from secureps.crypto.rlwe_tables import scale  # noqa: E402
from secureps.gpu.backend import GpuBackend, tables  # noqa: E402
from secureps.gpu.device import Device, device  # noqa: E402
from secureps.gpu.seal_kernels import binomial, seal_words  # noqa: E402
from secureps.gpu.transform_kernels import forward  # noqa: E402

U32 = NDArray[np.uint32]


@triton.jit
def _transform(work, twiddles, prime, N: tl.constexpr, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    forward(work, twiddles, tl.load(prime), N, LOG)


@triton.jit
def _draw(words, out, N: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, N)
    low, middle = tl.load(words + at), tl.load(words + N + at)
    tl.store(out + at, binomial(low, middle, tl.load(words + 2 * N + at)))


def interpreter() -> Device:
    """The device that is none."""
    return device()


def backend() -> GpuBackend:
    """A backend whose kernels are interpreted."""
    return GpuBackend(interpreter())


def transformed_plainly(a: U32, prime: int) -> U32:
    """A polynomial as `forward` leaves it."""
    here, size = interpreter(), a.size
    work = here.upload(a)
    made = here.upload(paired(twiddles(size, prime)[0], prime))
    where = here.upload(np.array([prime], np.uint32))
    _transform[(1,)](work, made, where, N=size, LOG=size.bit_length() - 1)
    return np.asarray(work.numpy())


def drawn(words: U32) -> NDArray[np.int32]:
    """Binomial values of words (3, n), n a power of two."""
    here = interpreter()
    out = here.empty(words.shape[1], 32)
    _draw[(1,)](here.upload(words.reshape(-1)), out, N=words.shape[1])
    return np.asarray(out.numpy()).view(np.int32)


def sealed_plainly(enc: Encoding, values: U32) -> tuple[NDArray[np.uint64], list[int]]:
    """Words (words, N) of an element under no key, and the greatest value that each saw."""
    here, ring, n = interpreter(), enc.ring, enc.ring.degree
    primes, count, made = len(ring.primes), len(ring.words), tables(here, ring)
    nothing = here.upload(np.zeros((primes, 3, n), np.uint32))
    work, words, most = here.empty(primes * n, 32), here.empty(count * n, 64), here.empty(count, 32)
    seal_words[(count,)](
        here.upload(values),
        nothing,
        nothing,
        nothing,
        here.upload(scale(enc).digits),
        made["primes"],
        made["garner"],
        made["forth"],
        work,
        words,
        most,
        N=n,
        LOG=n.bit_length() - 1,
        PARTS=enc.digits,
        WORDS=count,
    )
    return words.numpy().reshape(count, n), most.numpy().tolist()


def decoded(enc: Encoding, values: Sequence[int]) -> tuple[NDArray[np.int64], float, bool]:
    """Digits (d, N) of values below q, zeros behind them, the sum of E^2, and whether a message
    was too large."""
    opener = backend().opener(enc, Place(bytes(32), "decoded", bytes(32), 1), nothing_of(enc))
    primes, n = enc.ring.primes, enc.ring.degree
    residues = np.zeros((len(primes), n), np.uint32)
    for row, prime in zip(residues, primes):
        row[: len(values)] = [value % prime for value in values]
    with opener._room() as room:
        room["work"][: residues.size].copy_(interpreter().upload(residues.reshape(-1)))
        programs = n // interpreter().even_lanes
        narrow = len(enc.ring.words) == 1
        (opener._decode_narrow if narrow else opener._decode_wide)(room, programs)
        digits, squares, beyond = (each.numpy() for each in opener._results(room))
        made = digits[: enc.values].reshape(enc.digits, n).copy()
        return made, float(squares[:programs].sum()), bool(beyond[:programs].any())


def nothing_of(enc: Encoding) -> U32:
    """A key of zeros."""
    return np.zeros((len(enc.ring.primes), 2, enc.ring.degree), np.uint32)
