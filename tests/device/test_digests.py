"""A digest that is made on a device is the one that the host makes of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from secureps.device import digests
from secureps.messages.encoding import payload_digest

CHUNK = 256
SIZES = (0, 1, 15, 16, 17, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 9 * CHUNK + 40)


@pytest.mark.parametrize("together", [2 * CHUNK, 4 * CHUNK, 1 << 24])
def test_whatever_is_hashed_together(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, chunks and trees that are whole, or lack a value, or have one more."""
    monkeypatch.setattr(digests, "_TOGETHER", together)
    for size in (*SIZES, together - 1, together, together + 1, 2 * together, 3 * together + CHUNK):
        if size > 1 << 20:
            continue
        x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        own = digests.payload_digest(torch.from_numpy(x))
        assert own == payload_digest(x.tobytes()), size
