"""Rotates updates on the device that trains a client's model, with the same bits as the host.

Of all that makes an update only the rotation of a plan's codec is faster on a GPU than on a core
(docs/gpu.md), so the host does the rest. A device may lack float64 (MPS), or not round as IEEE 754
says: it gets an update only after a test vector.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from secureps.codec.chain import LARGEST, Transform, hadamard, sections
from secureps.crypto.sampling import public_stream
from secureps.wording import one_line


def rotation_on(name: str, note: Callable[[str], None]) -> Transform:
    """Makes a `Transform` that runs on a device of torch, such as "cuda:0".

    Where the device's memory does not suffice, or its bits differ from the host's, the host
    transforms instead, and `note` is told why.
    """
    device = torch.device(name)

    def transform(x: NDArray[np.float64]) -> None:
        try:
            if not (reason := find_difference(device)):
                x[:] = transform_there(x, device)
                return
            note(f"{name} makes other bits than the host ({reason}): the host rotates updates")
        except torch.OutOfMemoryError:
            note(f"{name} has no memory left for updates: the host rotates them, to the same bits")
        hadamard(x)

    return transform


def transform_there(x: NDArray[np.float64], device: torch.device) -> NDArray[np.float64]:
    """Computes on a device what `hadamard` computes in place, butterfly by butterfly."""
    made = torch.tensor(x, device=device)
    for where, size in sections(x.size):
        part, half = made[where], 1
        while half < size:
            pairs = part.view(size // (2 * half), 2, half, -1)
            difference = pairs[:, 0] - pairs[:, 1]
            pairs[:, 0] += pairs[:, 1]
            pairs[:, 1] = difference
            half *= 2
        part *= 0.5 ** (size.bit_length() // 2)
    there: NDArray[np.float64] = made.cpu().numpy()
    return there


@cache
def find_difference(device: torch.device) -> str:
    """Says how a device transforms a test vector otherwise than the host; empty if it does not."""
    words = public_stream("secureps-bits").words(3 * LARGEST + 1023)  # pieces of every size
    x = (words.astype(np.float64) / 2**32 - 0.5) * 10.0 ** (words % 30 - 25.0)
    try:
        there = transform_there(x, device)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError) as error:
        # an empty text would mean that all bits are the same
        return one_line(error, lines=1) or type(error).__name__
    hadamard(x)
    return "" if np.array_equal(there, x) else "sums or products"
