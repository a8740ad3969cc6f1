"""What a GPU takes for its steps, by the device's own events, beside one core of the same machine.

"device" is the time between the first and the last thing of a batch in its stream, copies with
it; "clock" is what the caller waits. A machine without a CUDA device says so, and measures nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.report import Row, report
from secureps.crypto.backend import Backend, Noise
from secureps.crypto.cipher import CipherParameters, Place
from secureps.crypto.ring import Encoding, choose
from secureps.crypto.rlwe import CPU, one_time_key, transformed_key
from secureps.errors import ConfigError
from secureps.gpu.device import Device, device, has_device_file

PARAMETERS = {
    "N = 2,048, 16 bits": CipherParameters("rlwe", 32, 65_534),
    "N = 4,096, 16 bits": CipherParameters("rlwe", 100, 65_534),
    "N = 8,192, 4 bits": CipherParameters("rlwe", 32, 14, slots=1 << 22),
}
VALUES = 10_000_000
"""Of the model whose training step is timed, and of the transfers."""
EXAMPLES = 256
TRIES = 5


@dataclass(frozen=True)
class Timed(Device):
    """A device that notes how long its streams were busy, in seconds."""

    busy: list[float] = field(default_factory=list, compare=False)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """As of `Device`, between two events."""
        if stream is None:
            began = time.perf_counter()
            with super().on(stream):
                yield
            self.busy.append(time.perf_counter() - began)
            return
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with super().on(stream):
            first.record(stream)
            yield
            last.record(stream)
        self.busy.append(first.elapsed_time(last) / 1e3)


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


def transfers(here: Timed, values: int, tries: int) -> Iterator[Row]:
    """Copies of float32 values to the device and back, from pinned memory."""
    stream, own, there = here.stream(), here.staging(values, 32), here.empty(values, 32)
    own.numpy()[:] = 1
    other = np.empty_like(own.numpy())
    core = fastest(lambda: np.copyto(other, own.numpy()), tries)
    for step, to, source in (("copy there", there, own), ("copy back", own, there)):

        def copied(to: Any = to, source: Any = source) -> None:
            with here.on(stream):
                to.copy_(source, non_blocking=True)

        clock = fastest(copied, tries)
        yield row(step, values, min(here.busy[-tries:]), clock, core)


def sealing(here: Timed, values: int, tries: int) -> Iterator[Row]:
    """A batch sealed and opened, in every kind of ring."""
    from secureps.gpu.backend import GpuBackend

    gpu = GpuBackend(here)
    for name, parameters in PARAMETERS.items():
        enc = choose(parameters)
        count = min(gpu.batch(enc, values), enc.elements(values))
        for step, size, made in _batches(parameters, enc, count):
            core, clock = (fastest(made(backend), tries) for backend in (CPU, gpu))
            yield row(f"{step}, {name}", size, min(here.busy[-tries:]), clock, core)


def _batches(
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


def training(here: Timed, values: int, tries: int) -> Iterator[Row]:
    """A step of SGD of one layer of as many values: what sealing them is a part of."""
    torch, stream, width = here.torch, here.stream(), int(values**0.5)
    with here.on(stream):
        layer = torch.ones(width, width, device=here.where, requires_grad=True)
        examples = torch.ones(EXAMPLES, width, device=here.where)

    def step() -> None:
        with here.on(stream):
            (gradient,) = torch.autograd.grad((examples @ layer).square().mean(), layer)
            with torch.no_grad():
                layer.sub_(gradient, alpha=0.1)

    clock = fastest(step, tries)
    yield row(f"SGD, {EXAMPLES} examples", width * width, min(here.busy[-tries:]), clock, 0.0)


STEPS = (transfers, sealing, training)
"""What is measured, a function each."""


def measure(here: Timed, values: int = VALUES, tries: int = TRIES) -> list[Row]:
    """All rows."""
    return [made for step in STEPS for made in step(here, values, tries)]


def found() -> Timed | None:
    """The device, to be timed; None where there is none, and why is printed."""
    try:
        if not has_device_file():
            raise ConfigError("no driver's device file")
        here = device()
        if here.interpreted:
            raise ConfigError("kernels are interpreted")
    except ConfigError as error:
        print(f"no device, and nothing measured: {error}")
        return None
    return Timed(here.torch, here.where, here.name)


def main() -> None:
    if (here := found()) is None:
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    report("gpu", f"{here.name}, beside one core", measure(here))


if __name__ == "__main__":
    main()
