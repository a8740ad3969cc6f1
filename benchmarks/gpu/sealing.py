"""Transfers; batches sealed and opened in every kind of ring; a whole update sealed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from benchmarks.gpu.timing import Sizes, Timed, fastest, one_core, row
from benchmarks.report import Row
from secureps.crypto.backend import Backend, Noise
from secureps.crypto.cipher import CipherParameters, Place
from secureps.crypto.ring import Encoding, choose
from secureps.crypto.rlwe import CPU, one_time_key, transformed_key
from secureps.model.layout import MOST_SLOTS
from secureps.service.parallel import in_order

PARAMETERS = {
    "N = 2,048, 16 bits": CipherParameters("rlwe", 32, 65_534),
    "N = 4,096, 16 bits": CipherParameters("rlwe", 100, 65_534),
    "N = 8,192, 4 bits": CipherParameters("rlwe", 32, 14, slots=1 << 22),
}
WHOLE = "seal a whole update"
"""How the rows of `whole` begin."""


def transfers(here: Timed, sizes: Sizes) -> Iterator[Row]:
    """Copies of float32 values to the device and back, from pinned memory."""
    values, tries = sizes.values, sizes.tries
    stream, own, there = here.stream(), here.staging(values, 32), here.empty(values, 32)
    own.numpy()[:] = 1
    other = np.empty_like(own.numpy())
    with one_core():
        core = fastest(lambda: np.copyto(other, own.numpy()), tries)
    for step, to, source in (("copy there", there, own), ("copy back", own, there)):

        def copied(to: Tensor = to, source: Tensor = source) -> None:
            with here.on(stream):
                to.copy_(source, non_blocking=True)

        clock = fastest(copied, tries)
        yield row(step, values, min(here.busy[-tries:]), clock, core)


def batches(here: Timed, sizes: Sizes) -> Iterator[Row]:
    """A batch sealed and opened, in every kind of ring."""
    from secureps.gpu.backend import GpuBackend

    gpu, tries = GpuBackend(here), sizes.tries
    for name, parameters in PARAMETERS.items():
        enc = choose(parameters)
        count = min(gpu.batch(enc, sizes.values), enc.elements(sizes.values))
        for step, size, made in _steps(parameters, enc, count):
            with one_core():
                core = fastest(made(CPU), tries)
            clock = fastest(made(gpu), tries)
            yield row(f"{step}, {name}", size, min(here.busy[-tries:]), clock, core)


def _steps(
    parameters: CipherParameters, enc: Encoding, count: int
) -> Iterator[tuple[str, int, Callable[[Backend], Callable[[], object]]]]:
    """What seals, and what opens, a batch of so many elements with a backend."""
    size, place = count * enc.values, Place(bytes(32), "all", bytes(32), count * enc.values)
    noise, rng = Noise(), np.random.default_rng(1)
    key = transformed_key(enc.ring, one_time_key(enc.ring, noise))
    integers = rng.integers(0, parameters.levels, size, np.int32, endpoint=True)
    words = [rng.integers(0, q, (count, enc.ring.degree), np.uint64) for q in enc.ring.moduli]
    total = np.stack(words, axis=1)
    total.flags.writeable = False
    out = np.empty((count, enc.digits, enc.ring.degree), np.int64)

    def seals(backend: Backend) -> Callable[[], object]:
        sealer = backend.sealer(enc, place, parameters.levels, noise, key)
        return lambda: sealer.seal(0, 0, count, integers)

    def opens(backend: Backend) -> Callable[[], object]:
        opener = backend.opener(enc, place, key)
        return lambda: opener.open(0, 0, total, out)

    yield "seal", size, seals
    yield "open", size, opens


def whole(here: Timed, sizes: Sizes) -> Iterator[Row]:
    """All batches of an update, by one thread and by two, of which one copies while one seals.

    One core seals its first batches alone; the row's time is in proportion. "device" is what all
    batches together kept the device busy: of two threads more than what passed.
    """
    from secureps.gpu.backend import batch

    for name, parameters in PARAMETERS.items():
        enc = choose(parameters)
        pieces = _pieces(enc, sizes.sealed, batch(enc))
        core = _sealer(CPU, parameters, sizes.sealed)
        few = pieces[: max(1, len(pieces) // 16)]
        with one_core():
            alone = fastest(lambda: core(few, 1), 1) * len(pieces) / len(few)  # noqa: B023
        for threads, said in ((1, "1 thread"), (2, "2 threads")):
            busy, clock = sealed_whole(here, parameters, sizes.sealed, threads)
            yield row(f"{WHOLE}, {said}, {name}", sizes.sealed, busy, clock, alone)


def sealed_whole(
    here: Timed, parameters: CipherParameters, values: int, threads: int
) -> tuple[float, float]:
    """Seconds for which sealing so many values kept a device busy, and of the clock."""
    from secureps.gpu.backend import GpuBackend, batch

    enc = choose(parameters)
    pieces = _pieces(enc, values, batch(enc))
    seals = _sealer(GpuBackend(here), parameters, values)
    seals(pieces[: 2 * threads], threads)  # kernels are compiled, and there is memory for batches
    before = len(here.busy)
    began = time.perf_counter()
    seals(pieces, threads)
    return sum(here.busy[before:]), time.perf_counter() - began


_Piece = tuple[int, int, int, int]
"""A block, its first element, how many, and how many values they have."""


def _sealer(
    backend: Backend, parameters: CipherParameters, values: int
) -> Callable[[list[_Piece], int], int]:
    """What seals pieces under one key, by so many threads; returns bytes of ciphertext."""
    enc, noise, slots = choose(parameters), Noise(), min(values, MOST_SLOTS)
    place = Place(bytes(32), "all", bytes(32), slots)
    key = transformed_key(enc.ring, one_time_key(enc.ring, noise))
    drawn = np.random.default_rng(1).integers(0, parameters.levels, slots, np.int32)
    own = backend.sealer(enc, place, parameters.levels, noise, key)

    def one(piece: _Piece) -> int:
        block, first, count, size = piece
        return len(own.seal(block, first, count, drawn[:size]))

    return lambda pieces, threads: sum(in_order(threads, one, pieces))


def _pieces(enc: Encoding, values: int, most: int) -> list[_Piece]:
    """The batches of all blocks of an update, of so many elements each, or fewer."""
    slots, made = min(values, MOST_SLOTS), list[_Piece]()
    for block, start in enumerate(range(0, values, slots)):
        size = min(slots, values - start)
        elements = enc.elements(size)
        for first in range(0, elements, most):
            count = min(most, elements - first)
            taken = min(count * enc.values, size - first * enc.values)
            made.append((block, first, count, taken))
    return made
