"""Sealing a large vector block by block with `rlwe`: seconds, and memory beyond the vector.

In a process of its own. What it held before it sealed, the vector, the kernels and all that was
imported, is taken off its peak as Linux counted it. `cold` compiles the kernels into an empty
folder first, and says how long the first block took because of that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Row, report

VALUES = 100_000_000
BLOCK = 1 << 18
MOST_BEYOND = 64 << 20
"""Bytes beyond the vector that sealing may take, however long the vector is."""

_CHILD = """
import json, sys, time
from pathlib import Path
import numpy as np
from secureps.crypto.cipher import CipherParameters
from secureps.compiled import compiled_here, keep_in
from secureps.crypto.public import Place
from secureps.crypto.rlwe import RlweSealing

values, block, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if folder:
    keep_in(Path(folder))
def memory(what):  # VmRSS now, VmHWM at most; in ru_maxrss would be that of the parent, too
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))

parameters = CipherParameters("rlwe", 32, 65534)
vector = np.random.default_rng(1).integers(0, 65535, values, np.int64)
began = time.process_time()
RlweSealing(parameters, Place(bytes(32), "first", bytes(32), 64)).seal(0, vector[:64])
first = time.process_time() - began
sealing = RlweSealing(parameters, Place(bytes(32), "all", bytes(32), block))
before, began, sent = memory("VmRSS"), time.process_time(), 0
for number, at in enumerate(range(0, values, block)):
    sent += len(sealing.seal(number, vector[at : at + block]))
seconds = time.process_time() - began
print(json.dumps(dict(
    values=values, first=first, seconds=seconds, beyond=memory("VmHWM") - before, sent=sent,
    compiled=compiled_here(),
)))
"""


@dataclass(frozen=True, slots=True)
class Streamed:
    """One run: CPU seconds of the first block and of all, bytes beyond the vector, bytes sealed."""

    values: int
    first: float
    seconds: float
    beyond: int
    sent: int
    compiled: int


def stream(values: int, kernels: Path | None = None, block: int = BLOCK) -> Streamed:
    """Seals so many values of 16 bits; with kernels of `kernels` if that is given."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(values), str(block), str(kernels or "")],
        capture_output=True,
        text=True,
        check=True,
    )
    return Streamed(**json.loads(done.stdout))


def measure(values: int = VALUES) -> Sequence[Row]:
    """The whole vector with kernels that are kept, then a block with none."""
    with tempfile.TemporaryDirectory() as empty:
        runs = {"cold": stream(BLOCK, Path(empty) / "kernels")}
        runs["warm"] = stream(values, Path(empty) / "kernels")
    return [
        {
            "kernels": name,
            "values": run.values,
            "first block, s": run.first,
            "ns/value": 1e9 * run.seconds / run.values,
            "beyond the vector, MiB": run.beyond / (1 << 20),
            "bytes/value": run.sent / run.values,
            "compiled": run.compiled,
        }
        for name, run in runs.items()
    ]


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    report("streaming", f"Sealing with rlwe in blocks of {BLOCK} values of 16 bits", measure())


if __name__ == "__main__":
    main()
