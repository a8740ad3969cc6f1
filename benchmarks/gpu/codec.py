"""The rotation of a codec on a device and on one core beside it, and copies to the device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import itemgetter

import numpy as np
import torch

from benchmarks.gpu.timing import Sizes, fastest, one_core, row, timed
from benchmarks.report import Row
from secureps.client.device_rotation import rotation_on
from secureps.codec.chain import hadamard


def rotations(device: torch.device, sizes: Sizes) -> Iterator[Row]:
    """Rows of every size; one core's where it is no larger than `sizes.core`."""
    notes = list[str]()
    for values in sizes.updates:
        x, core = np.random.default_rng(1).standard_normal(values), 0.0
        if values <= sizes.core:
            with one_core():
                core = fastest(partial(hadamard, x.copy()), 1)
        transform = rotation_on(str(device), notes.append)
        _, *tries = (timed(device, partial(transform, x)) for _ in range(1 + sizes.tries))
        where = "; made on the host" if notes else ""
        yield row(f"rotation{where}", values, *min(tries, key=itemgetter(1)), core)


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
