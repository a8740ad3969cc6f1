"""The numbers that every peer adds up, and when its rounds are over: for every environment.

Needs numpy alone; what to play stands in the process' environment.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

HALF = 0.5
"""No value is further from zero."""
EXAMPLES = 64
"""Of every client: all weigh alike, as much as a plan of ours lets them."""


def _number(name: str) -> int:
    return int(os.environ[f"PEERS_{name}"])


def values() -> int:
    return _number("VALUES")


def clients() -> int:
    return _number("CLIENTS")


def rounds() -> int:
    return _number("ROUNDS")


def update(client: int, size: int | None = None) -> Vector:
    """A client's, the same in every round: float32, of `size` values (default: `values()`)."""
    drawn = np.random.default_rng(client).random(size or values(), dtype=np.float32)
    drawn -= np.float32(HALF)
    return drawn


def mark() -> None:
    """A round is over: one line of `marks`, of the clock that all processes share."""
    with (Path(os.environ["PEERS_FOLDER"]) / "marks").open("a") as marks:
        marks.write(f"{time.monotonic()!r}\n")


def count_waves(grid: Any) -> None:
    """Has Flower's grid write a line of `waves` for every message: when it went."""
    push = grid.push_messages

    def counted(messages: Iterable[Any]) -> Any:
        sent = list(messages)
        with (Path(os.environ["PEERS_FOLDER"]) / "waves").open("a") as waves:
            waves.write(f"{time.monotonic()!r}\n" * len(sent))
        return push(sent)

    grid.push_messages = counted


def tell(steps: list[dict[str, float]]) -> None:
    """Writes what each round cost, where one process plays all sides: seconds of CPU, and bytes."""
    Path(os.environ["PEERS_FOLDER"], "steps").write_text(json.dumps(steps))


def conclude(mean: NDArray[Any], times: int = 1) -> None:
    """Writes how far `mean`, `times` as large, is from the mean in float64, in any value."""
    expected = np.zeros(values())
    for client in range(clients()):
        expected += update(client)
    expected /= clients()
    error = np.abs(mean.reshape(-1).astype(np.float64) / times - expected).max()
    written = Path(os.environ["PEERS_FOLDER"]) / "error"
    written.with_suffix(".new").write_text(f"{float(error)!r}\n")
    written.with_suffix(".new").rename(written)
