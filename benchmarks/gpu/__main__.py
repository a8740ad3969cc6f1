"""Measures section by section, the most important first, for as long as it may take.

What a section finds is written before the next begins; one that fails is told, and the others go
on. A machine without a CUDA device says so, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import record_level
from benchmarks.gpu import neighbours, training, transfers
from benchmarks.gpu.timing import FULL, TINY, Sizes, one_thread
from benchmarks.report import RESULTS, Row, machine, show
from secureps.wording import one_line

SECONDS = 400.0
"""Within which a section may begin."""


@dataclass(frozen=True)
class Bench:
    """What is measured, and with what."""

    device: torch.device
    sizes: Sizes

    @property
    def name(self) -> str:
        """Of the device, for people."""
        if self.device.type == "cuda":
            return str(torch.cuda.get_device_name(self.device))
        return "a CPU in a device's place, in a tiny form"


def _tensors(
    of: Callable[[torch.device, Sizes], Iterator[Row]],
) -> Callable[[Bench], Iterator[Row]]:
    return lambda bench: of(bench.device, bench.sizes)


def _private(narrow: bool) -> Callable[[Bench], Iterator[Row]]:
    def rows(bench: Bench) -> Iterator[Row]:
        tiny = bench.sizes.tiny
        turns, steps, share = (1, 1, 16) if tiny else (3, record_level.STEPS, 1)
        return iter(record_level.measure(bench.device, turns, steps, narrow, share))

    return rows


SECTIONS: Mapping[str, Callable[[Bench], Iterator[Row]]] = {
    "transfers": _tensors(transfers.transfers),
    "training": _tensors(training.training),
    "memory of models": _tensors(training.memory),
    "private steps": _private(narrow=False),
    "clients on one device": lambda bench: neighbours.neighbours(bench.device, bench.sizes.tiny),
    "private steps, bfloat16": _private(narrow=True),
}
"""In the order in which they are measured."""


def measure(bench: Bench, out: Path, seconds: float) -> dict[str, Any]:
    """All sections, and why others are left out; written to a file after each."""
    found: dict[str, Any] = {
        "title": f"{bench.name}, beside one core of the same machine",
        "device": bench.name,
        "tiny": bench.sizes.tiny,
        "torch": torch.__version__,
        "machine": machine(),
        "seconds": {},
        "sections": {},
        "left out": {},
    }
    began = time.monotonic()
    for name, of in SECTIONS.items():
        start, rows = time.monotonic(), list[Row]()
        if start - began > seconds:
            found["left out"][name] = f"{seconds:g} seconds were over"
        else:
            try:
                for row in of(bench):
                    rows.append(row)
            except Exception as error:  # the others are measured
                traceback.print_exc()
                said = one_line(error, lines=1) or type(error).__name__
                found["left out"][name] = f"{type(error).__name__}: {said}"
            if rows:
                found["sections"][name] = rows
                show(f"{name} ({bench.name})", rows)
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
        found["seconds"][name] = round(time.monotonic() - start, 1)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n")
    for name, why in found["left out"].items():
        print(f"{name}: left out, or not whole: {why}")
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cpu: all of it in a tiny form")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no section begins after")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    asked = parser.parse_args(arguments)
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("nothing is measured: torch finds no CUDA device here")
        return
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else bits do not repeat
    sizes = TINY if device.type == "cpu" else FULL
    with one_thread() if device.type == "cpu" else nullcontext():
        measure(Bench(device, sizes), asked.out, asked.seconds)
    print(f"written: {asked.out}")


if __name__ == "__main__":
    main()
