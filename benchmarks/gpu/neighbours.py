"""Clients as processes that share one device, beside one that has it alone.

Each has a context and streams of its own, and may take a share of the device's memory. All train
and rotate the same model: `bits` tells whether it is the same.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TextIO

import numpy as np
import torch

from benchmarks.gpu.models import FEW, MODELS
from benchmarks.gpu.timing import Memory
from benchmarks.gpu.training import trained_of
from benchmarks.report import Row
from secureps.client.device_rotation import rotation_on

SHARE = 0.45
"""Of the device's memory, of each."""
TURNS = 3


def work(device: torch.device, tiny: bool) -> str:
    """Trains a few steps, and rotates the model; returns a digest of it."""
    trained = trained_of(device, (FEW if tiny else MODELS)["transformer"])
    values = np.concatenate([each.ravel() for each in trained.values()]).astype(np.float64)
    rotation_on(str(device), print)(values)
    return hashlib.sha256(values.tobytes()).hexdigest()


def play(given: Sequence[str], lines: TextIO) -> None:
    """One client: it says when it is ready, waits for a line, works, and says what that took."""
    device, tiny = torch.device(given[0]), given[1] == "tiny"
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(SHARE, device)
    work(device, tiny)
    memory = Memory(device)
    print("ready", flush=True)
    lines.readline()
    began = time.perf_counter()
    made = {work(device, tiny) for _ in range(TURNS)}
    seconds = (time.perf_counter() - began) / TURNS
    bits = hashlib.sha256("".join(sorted(made)).encode()).hexdigest()
    print(json.dumps({"seconds": seconds, "peak": memory.peak, "bits": bits}), flush=True)


def beside(count: int, command: Sequence[str]) -> list[dict[str, Any]]:
    """What so many processes say that begin their work together.

    Raises:
        RuntimeError: one ended before; what it printed as an error is seen on this terminal.
    """
    with ExitStack() as stack:
        started = list[subprocess.Popen[str]]()
        for _ in range(count):
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            each = stack.enter_context(subprocess.Popen(command, text=True, **pipes))
            stack.callback(each.kill)
            started.append(each)
        answers = [_line(each) for each in started]
        if answers != ["ready\n"] * count:
            raise RuntimeError("a client of several on a device ended before its work")
        for each in started:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        return [json.loads(_line(each) or "null") for each in started]


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def rows(ask: Callable[[int], list[dict[str, Any]]]) -> Iterator[Row]:
    """Of one client, and of two; `ask` plays so many together."""
    (alone,) = ask(1)
    for found in ([alone], ask(2)):
        slowest = max(each["seconds"] for each in found)
        yield {
            "clients": len(found),
            "a turn, ms": 1e3 * slowest,
            "turns a second, all": len(found) / slowest,
            "to one": len(found) * alone["seconds"] / slowest,
            "most MB of one": max(each["peak"] for each in found) / 1e6,
            "bits": "same" if all(e["bits"] == alone["bits"] for e in found) else "others",
        }


def neighbours(device: torch.device, tiny: bool) -> Iterator[Row]:
    """Rows, of processes."""
    size = "tiny" if tiny else "full"
    command = [sys.executable, "-m", "benchmarks.gpu.neighbours", str(device), size]
    return rows(lambda count: beside(count, command))


if __name__ == "__main__":
    play(sys.argv[1:], sys.stdin)
