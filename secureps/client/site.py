"""The settings and secrets of one client; only public keys and sealed updates ever leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from secureps.client.trainer import Trainer
from secureps.crypto.identity import Identity
from secureps.crypto.sampling import Seed
from secureps.store.budget import BudgetLedger, MemoryLedger


@dataclass(frozen=True)
class Site:
    """A client's trainer, keys and settings.

    Args:
        seed: all randomness but keys and encryption errors comes from it.
        holder_keys: the key holders' public cipher keys, by name.
        local: folder of the tensors that never leave (the plan's `local` patterns).
        threads: that seal blocks.
        records: the public number that the client counts by; None for the plan's.
        ledger: has every update on record, and what it spends, before it is sealed.
        shared: other clients train in this process while an update is sealed, with the same arrays
            perhaps: those of a training are copied.
    """

    name: str
    trainer: Trainer
    identity: Identity
    seed: Seed
    holder_keys: Mapping[str, bytes]
    local: Path
    threads: int = 1
    records: int | None = None
    ledger: BudgetLedger = field(default_factory=MemoryLedger)
    shared: bool = False
