"""What a client brings to a run; nothing of it but public keys and sealed updates ever leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secureps.client.trainer import Trainer
from secureps.crypto.identity import Identity
from secureps.crypto.sampling import Seed
from secureps.store.budget import BudgetLedger


@dataclass(frozen=True)
class Site:
    """What a client brings: its trainer, its identity, its seed and the holders' keys.

    `local` is the folder for tensors that never leave (the plan's `local` patterns); `threads`
    seal its blocks; `records` is the public number that it counts by, None for the plan's; `ledger`
    is charged with what every update spends, before it is sealed.
    """

    name: str
    trainer: Trainer
    identity: Identity
    seed: Seed
    holder_keys: Mapping[str, bytes]
    local: Path
    threads: int = 1
    records: int | None = None
    ledger: BudgetLedger | None = None
