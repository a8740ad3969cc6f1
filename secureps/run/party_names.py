"""How parties are called where one command names them all: `up` and `simulate` agree."""

from __future__ import annotations

OBSERVER = "observer"
"""Who looks at a run of `up`."""


def shard_names(count: int) -> tuple[str, ...]:
    """shard-0, shard-1, ..."""
    return tuple(f"shard-{i}" for i in range(count))


def holder_names(count: int) -> tuple[str, ...]:
    """holder-0, ..."""
    return tuple(f"holder-{i}" for i in range(count))


def client_names(count: int) -> tuple[str, ...]:
    """client-00, client-01, ...: as many digits as sorting by name needs."""
    digits = max(2, len(str(count - 1)))
    return tuple(f"client-{i:0{digits}d}" for i in range(count))
