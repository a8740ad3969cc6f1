"""Clients as processes that share one device, beside one that has it alone.

Each has a context and streams of its own, and may take a share of the device's memory. All train
the same model: `bits` tells whether it is the same.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.models import FEW, MODELS
from benchmarks.gpu.timing import Memory
from benchmarks.gpu.training import trained_of
from benchmarks.report import Row

SHARE = 0.45
"""Of the device's memory, of each."""
TURNS = 3
PATIENCE = 300.0
"""Seconds for which a client waits for the others."""


def work(device: torch.device, tiny: bool) -> str:
    """Trains a few steps; returns a digest of the model."""
    trained = trained_of(device, (FEW if tiny else MODELS)["transformer"])
    values = np.concatenate([each.ravel() for each in trained.values()])
    return hashlib.sha256(values.tobytes()).hexdigest()


def play(device: torch.device, tiny: bool, ready: Any) -> dict[str, Any]:
    """One client: it works when all are `ready`, a barrier, and says what that took."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(SHARE, device)
    work(device, tiny)
    memory = Memory(device)
    ready.wait(PATIENCE)
    began = time.perf_counter()
    made = {work(device, tiny) for _ in range(TURNS)}
    seconds = (time.perf_counter() - began) / TURNS
    bits = hashlib.sha256("".join(sorted(made)).encode()).hexdigest()
    return {"seconds": seconds, "peak": memory.peak, "bits": bits}


def beside(count: int, device: torch.device, tiny: bool) -> list[dict[str, Any]]:
    """What so many processes say that begin their work together."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as shared, ProcessPoolExecutor(count, spawn) as pool:
        ready = shared.Barrier(count)
        played = [pool.submit(play, device, tiny, ready) for _ in range(count)]
        return [each.result() for each in played]


def neighbours(device: torch.device, tiny: bool) -> Iterator[Row]:
    """Rows of one client, and of two."""
    (alone,) = beside(1, device, tiny)
    for found in ([alone], beside(2, device, tiny)):
        slowest = max(each["seconds"] for each in found)
        yield {
            "clients": len(found),
            "a turn, ms": 1e3 * slowest,
            "turns a second, all": len(found) / slowest,
            "to one": len(found) * alone["seconds"] / slowest,
            "most MB of one": max(each["peak"] for each in found) / 1e6,
            "bits": "same" if all(e["bits"] == alone["bits"] for e in found) else "others",
        }
