"""Blocks side by side: what `rlwe` takes by the clock with 1 and with 2 threads.

Blocks of 2^18 values, 16 bits, capacity 32, through `service.parallel`, as clients seal and shards
add and open them. Tries of both take turns, and the fastest of each counts: what else the machine
does disturbs both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.ciphers import CAPACITY, VALUES
from benchmarks.report import Row, report
from benchmarks.vectors import BITS
from secureps.codec.grid import Grid
from secureps.crypto.cipher import CipherParameters, Place
from secureps.crypto.rlwe import RlweAdder, RlweOpener, RlweSealing
from secureps.service.parallel import in_order

THREADS = (1, 2)
BLOCKS = 16


def measure(values: int = VALUES, blocks: int = BLOCKS, tries: int = 7) -> Sequence[Row]:
    """A row for every step, of so many blocks."""
    parameters = CipherParameters("rlwe", CAPACITY, int(Grid(BITS, 0.1).levels))
    place = Place(bytes(32), "all", bytes(32), values)
    integers = np.random.default_rng(1).integers(0, parameters.levels, values, np.int64)
    adder, sealing = RlweAdder(parameters), RlweSealing(parameters, place)
    payloads = [sealing.seal(block, integers) for block in range(blocks)]

    def added(block: int) -> bytes:
        sums = adder.zero(values)
        adder.add(sums, payloads[block], 1)
        return bytes(adder.total(sums))

    totals = [added(block) for block in range(blocks)]
    key = (sealing.key.coefficients().astype(np.int64), 1)
    opener = RlweOpener(parameters, place, *key)

    def seal() -> Callable[[int], bytes]:
        fresh = RlweSealing(parameters, place)
        return lambda block: fresh.seal(block, integers)

    steps: dict[str, Callable[[], Callable[[int], Any]]] = {
        "seal": seal,
        "add": lambda: added,
        "open": lambda: lambda block: opener.open(block, totals[block], values),
    }
    return [_row(step, begin, values, blocks, tries) for step, begin in steps.items()]


def _row(
    step: str, begin: Callable[[], Callable[[int], Any]], values: int, blocks: int, tries: int
) -> Row:
    least = dict.fromkeys(THREADS, float("inf"))
    for _ in range(tries):
        for threads in THREADS:
            action, began = begin(), time.perf_counter()
            for _ in in_order(threads, action, range(blocks)):
                pass
            least[threads] = min(least[threads], time.perf_counter() - began)
    times = {f"{n} threads, ns/value": 1e9 * least[n] / values / blocks for n in THREADS}
    return {"step": step, **times, "times as fast": least[THREADS[0]] / least[THREADS[-1]]}


def main() -> None:
    report("threads", f"rlwe, {BLOCKS} blocks of {VALUES} values of {BITS} bits", measure())


if __name__ == "__main__":
    main()
