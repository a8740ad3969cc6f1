"""What playing one peer with one size came to: figures, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass

MEASURED = "measured"
OUT_OF_MEMORY = "out of memory"
TIMED_OUT = "timed out"
SKIPPED = "skipped"
FAILED = "failed"


class PeerError(Exception):
    """A peer did not play to its end: it is at fault, or this machine. Says how, in one line."""


@dataclass(frozen=True)
class Figures:
    """Of one warm round.

    Args:
        wall: seconds of the clock, the median of all rounds but the first.
        client_cpu, server_cpu: seconds of all processes of that side, on average.
        up, down: bytes that one client sends and gets, by value of the model; None if not counted.
        peak: bytes resident in all processes together, at most, in all rounds.
        error: of the mean, at most in any value, to the mean in float64; None if it has no mean.
        waves: messages to one client; None if not counted.
    """

    wall: float
    client_cpu: float
    server_cpu: float
    up: float | None
    down: float | None
    peak: int
    error: float | None
    waves: float | None = None


@dataclass(frozen=True)
class Outcome:
    """Of one peer with so many values.

    Args:
        status: MEASURED, with figures, or what stands in their place.
        detail: why there are no figures; or what is said of them.
        version: of the peer's package.
        bytes_from: how the bytes were counted.
    """

    peer: str
    values: int
    clients: int
    rounds: int
    status: str
    detail: str = ""
    version: str = ""
    bytes_from: str = ""
    figures: Figures | None = None
