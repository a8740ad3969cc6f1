"""Times what a device does by its own events, and what one core does by the clock.

"device" is the time between the first and the last thing of an action in its stream, copies with
it; "clock" is what the caller waits. On a CPU, which stands in for a device in tests, both are the
clock's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.report import Row


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Args:
        core: values that are copied.
        tries: of which the fastest counts.
        steps: of a training, by which one is told from another.
        tiny: models of some thousand weights, in the place of 25 million.
    """

    core: int
    tries: int
    steps: int
    tiny: bool


FULL = Sizes(10_000_000, 3, 10, False)
TINY = Sizes(5000, 1, 1, True)


def row(step: str, values: int, on_device: float, clock: float, core: float) -> Row:
    """A row, of seconds; 0 where nothing is to be compared with."""
    return {
        "step": step,
        "values": values,
        "device, ms": 1e3 * on_device,
        "clock, ms": 1e3 * clock,
        "one core, ms": 1e3 * core,
        "times as fast": core / clock if core else 0.0,
        "10^9 values/s": values / clock / 1e9,
    }


def fastest(action: Callable[[], object], tries: int) -> float:
    """Seconds of the clock of the fastest try, after one that is not counted."""
    action()
    least = float("inf")
    for _ in range(tries):
        began = time.perf_counter()
        action()
        least = min(least, time.perf_counter() - began)
    return least


def timed(device: torch.device, action: Callable[[], object]) -> tuple[float, float]:
    """Seconds between events around what an action starts in its stream, and of the clock."""
    if device.type != "cuda":
        began = time.perf_counter()
        action()
        return (took := time.perf_counter() - began), took
    event: Any = torch.cuda.Event
    first, last = (event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    first.record()
    action()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3, time.perf_counter() - began


@contextmanager
def one_thread() -> Iterator[None]:
    """What torch computes inside on a processor, one thread computes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def one_core() -> Iterator[None]:
    """What is inside is computed by one core, as far as the system can be told."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with one_thread():
            yield
    finally:
        os.sched_setaffinity(0, cores)


class Memory:
    """The most bytes that tensors took on a device since it was made, or `again`; 0 on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.again()

    def again(self) -> int:
        """Begins again; returns how much is taken now."""
        if self._device.type != "cuda":
            return 0
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return int(torch.cuda.memory_allocated(self._device))

    @property
    def peak(self) -> int:
        """In bytes."""
        if self._device.type != "cuda":
            return 0
        return int(torch.cuda.max_memory_allocated(self._device))
