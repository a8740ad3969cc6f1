"""The least that a version could cost: float32 updates added up and sent back, and nothing else.

A server and five clients on loopback, each a process, by torch.distributed's gloo: the sum is
reduced to the server and broadcast. No encryption, no rounding, no disk, no receipts, no one
who comes late. What others are compared with, in the same run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

SERVER = 0
PATIENCE = timedelta(seconds=120)


def measure(folder: Path, clients: int, values: int, versions: int) -> tuple[float, float]:
    """Seconds of the clock and of CPU, of all processes, for one version."""
    ranks = range(clients + 1)
    arguments = [str(clients + 1), str(values), str(versions), str(folder / "store")]
    command = [sys.executable, "-m", "benchmarks.floor"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*command, str(rank), *arguments], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in ranks
    ]
    told = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("a process of the fp32 floor failed")
    seconds = [tuple(map(float, text.split())) for text in told]
    return seconds[SERVER][0] / versions, sum(cpu for _, cpu in seconds) / versions


def _play(rank: int, world: int, values: int, versions: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=PATIENCE
    )
    model = torch.zeros(values)
    update = torch.full((values,), float(rank != SERVER))

    def version() -> None:
        total = update.clone()
        dist.reduce(total, SERVER)
        if rank == SERVER:
            model.add_(total, alpha=1 / (world - 1))
        dist.broadcast(model, SERVER)

    version()
    dist.barrier()
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(versions):
        version()
    dist.barrier()
    seconds = time.perf_counter() - began, time.process_time() - cpu
    assert torch.equal(model, torch.full((values,), float(versions + 1)))
    sys.stdout.write(f"{seconds[0]} {seconds[1]}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:5]]
    _play(numbers[0], numbers[1], numbers[2], numbers[3], sys.argv[5])
