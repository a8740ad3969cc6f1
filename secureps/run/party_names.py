"""Names of parties, where one command names several of them."""

from __future__ import annotations

OBSERVER = "observer"
"""The party that reads the status of a run of `up`."""


def shard_names(count: int) -> tuple[str, ...]:
    """shard-0, shard-1, ..."""
    return tuple(f"shard-{i}" for i in range(count))


def holder_names(count: int) -> tuple[str, ...]:
    """holder-0, ..."""
    return tuple(f"holder-{i}" for i in range(count))


def site_holder(client: str) -> str:
    """The key holder that a data holder's site runs beside its client: CLIENT-holder."""
    return f"{client}-holder"


def client_names(count: int) -> tuple[str, ...]:
    """client-00, client-01, ...: with leading zeros, so that they sort by number."""
    digits = max(2, len(str(count - 1)))
    return tuple(f"client-{i:0{digits}d}" for i in range(count))
