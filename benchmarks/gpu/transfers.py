"""Copies to a device and back, beside those of one core."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import itemgetter

import torch

from benchmarks.gpu.timing import Sizes, fastest, one_core, row, timed
from benchmarks.report import Row


def transfers(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Copies of float32 values to the device and back, from pinned memory."""
    values = sizes.core
    own = torch.ones(values, pin_memory=device.type == "cuda")
    there, other = torch.empty(values, device=device), torch.empty(values)
    with one_core():
        core = fastest(partial(other.copy_, own), sizes.tries)
    for step, to, source in (("copy there", there, own), ("copy back", own, there)):
        copies = partial(to.copy_, source, non_blocking=True)
        _, *tries = (timed(device, copies) for _ in range(1 + sizes.tries))
        yield row(step, values, *min(tries, key=itemgetter(1)), core)
