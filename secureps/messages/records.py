"""What every party writes into its journal: the facts from which a restart rebuilds it.

A machine's state is the fold of its records; nothing else survives. Records are
appended, in one transaction, before any effect of the step that made them.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.charge import Charge, Release
from secureps.messages.run import Placement, RunInfo, ShardAddress
from secureps.messages.submission import SubmissionId

REIGN = 1 << 40
"""Incarnations of one reign: a standby that takes over begins the next one. What a coordinator is
started, it counts within a reign, so that no start of it comes to the number of who took over."""

LINE = 1 << 24
"""Incarnations of one line in a reign: of several standbys that followed the same coordinator, one
after the other, each has a line of its own, so that no two come to the same number."""


def describe_starts(incarnation: int) -> str:
    """How often its coordinator started, in words; empty for a first start that took nothing over.

    A standby that takes over starts from 1, in a reign of its own.
    """
    reign, start = incarnation // REIGN, incarnation % LINE
    count = f"started {start} times" if start > 1 else ""
    taken = f"taken over {'once' if reign == 1 else f'{reign} times'}" if reign else ""
    return ", ".join(filter(None, (taken, count)))


@dataclass(frozen=True, slots=True)
class Incarnated:
    """The coordinator's incarnation: its own, or the highest that this party obeys.

    `standby` took over from another coordinator with it, by the number of its folder; empty for any
    other start.
    """

    number: int
    standby: bytes = b""


@dataclass(frozen=True, slots=True)
class RosterFollowed:
    """The roster that this party goes by from now on, as its file has it."""

    text: str


@dataclass(frozen=True, slots=True)
class Dated:
    """The journal's writer, and the calendar at this time of the run's clock, in Unix seconds.

    Every journal begins with one; machines do not see it.
    """

    unix: float
    party: str
    role: str


@dataclass(frozen=True, slots=True)
class RefusedRequests:
    """Counts the requests of a party that were refused with one class of error since the last row.

    No machine reads it.
    """

    party: str
    error: str
    count: int


@dataclass(frozen=True, slots=True)
class RunPinned:
    """The run that this party takes part in for good; at a shard also the `coming` placement."""

    run: RunInfo
    placement: Placement
    shards: tuple[ShardAddress, ...]
    coming: Placement | None = None


@dataclass(frozen=True, slots=True)
class ReceiptSummary:
    """The part of a receipt that an archive keeps: the facts of the audit log, and the digest.

    `sealed`: its client sealed it (`Sealed`); else the coordinator accepted it (`Submit`).
    """

    id: SubmissionId
    purpose: str
    version: int
    size: int
    charge: Charge | None
    release: Release | None
    unsafe: bool
    digest: bytes
    sealed: bool

    @property
    def fact(self) -> Charge | Release | None:
        return self.charge if self.charge is not None else self.release
