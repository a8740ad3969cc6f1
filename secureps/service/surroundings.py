"""What a party runs in, and what it keeps: the same words for processes and simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from secureps.service.clock import Loop
from secureps.store.journal import Journal
from secureps.store.spool import Spool
from secureps.wire.transport import Transport


@dataclass(frozen=True)
class Surroundings:
    """Its way to servers, its loop, and the jitter of its retries."""

    transport: Transport
    loop: Loop
    jitter: Callable[[], float]


@dataclass(frozen=True)
class Stores:
    """Journal, payloads, and a folder for files of its own."""

    journal: Journal
    spool: Spool
    folder: Path
