"""TenSEAL without a federation: encrypt, add and decrypt, all parties in turn in one process.

What one vector of the library holds goes through all steps before the next, so that memory is next
to none, and nothing crosses a network: what is counted is what would. Writes `steps`: seconds of
CPU of clients and of the server, and bytes, of each round.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import tenseal as ts
from numpy.typing import NDArray

from benchmarks.peers.apps import vectors

SLOTS = 4096
BITS, ROOM = 16, 23
"""Of an integer in BFV, and of its field: two to a slot, each with room for the sum."""
PRIME = 70368743669761
"""= 1 mod 8192, just below 2^46: a slot."""
TOP = (1 << BITS) - 1


class Ckks:
    """NVIDIA FLARE's defaults; approximate."""

    def __init__(self) -> None:
        kind = ts.SCHEME_TYPE.CKKS
        self.context = ts.context(kind, 8192, coeff_mod_bit_sizes=[60, 40, 40], n_threads=1)
        self.context.global_scale = 2**40
        self.values = SLOTS
        self.make, self.load = ts.ckks_vector, ts.ckks_vector_from

    def encode(self, x: NDArray[Any]) -> list[float]:
        return list(x.tolist())

    def decode(self, total: list[float]) -> NDArray[Any]:
        return np.array(total)


class Bfv:
    """Integers of 16 bits, two to a slot; exact beyond their rounding."""

    def __init__(self) -> None:
        kind, sizes = ts.SCHEME_TYPE.BFV, [60, 49]
        self.context = ts.context(kind, SLOTS, PRIME, coeff_mod_bit_sizes=sizes, n_threads=1)
        self.values = 2 * SLOTS
        self.make, self.load = ts.bfv_vector, ts.bfv_vector_from

    def encode(self, x: NDArray[Any]) -> list[int]:
        grid = np.rint((x.astype(np.float64) + vectors.HALF) * TOP).astype(np.int64)
        grid = np.pad(grid, (0, -len(grid) % 2))
        return list((grid[::2] + (grid[1::2] << ROOM)).tolist())

    def decode(self, total: list[int]) -> NDArray[Any]:
        slots = np.array(total, dtype=np.int64) % PRIME
        grid = np.stack([slots & ((1 << ROOM) - 1), slots >> ROOM], axis=1).reshape(-1)
        return grid / TOP - vectors.clients() * vectors.HALF


def main() -> None:
    scheme: Any = {"ckks": Ckks, "bfv": Bfv}[sys.argv[1]]()
    updates = [vectors.update(client) for client in range(vectors.clients())]
    steps: list[dict[str, float]] = []
    mean = np.zeros(vectors.values())
    for _ in range(vectors.rounds()):
        steps.append(play(scheme, updates, mean))
        vectors.mark()
    vectors.tell(steps)
    vectors.conclude(mean)


def play(scheme: Any, updates: list[vectors.Vector], mean: NDArray[Any]) -> dict[str, float]:
    """One round: every client encrypts and decrypts, the server adds."""
    spent = {"clients": 0.0, "server": 0.0, "up": 0.0, "down": 0.0}
    for start in range(0, len(mean), scheme.values):
        part = slice(start, start + scheme.values)
        began = time.process_time()
        sent = [scheme.make(scheme.context, scheme.encode(u[part])).serialize() for u in updates]
        sealed = time.process_time()
        total = scheme.load(scheme.context, sent[0])
        for each in sent[1:]:
            total.add_(scheme.load(scheme.context, each))
        summed = total.serialize()
        added = time.process_time()
        for _ in updates:
            opened = scheme.decode(scheme.load(scheme.context, summed).decrypt())
        mean[part] = opened[: len(mean[part])] / len(updates)
        spent["clients"] += time.process_time() - added + sealed - began
        spent["server"] += added - sealed
        spent["up"] += sum(map(len, sent))
        spent["down"] += len(summed) * len(updates)
    return spent


if __name__ == "__main__":
    main()
