"""Records of every party, from which a restart rebuilds its state."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.charge import Charge, Fact, Release
from secureps.messages.run import Placement, RunInfo, ShardAddress
from secureps.messages.submission import SubmissionId

REIGN = 1 << 40
"""Incarnations of one reign. A standby that takes over begins the next reign; a coordinator counts
its starts within one, so no start of it reaches the number of a standby that took over."""

LINE = 1 << 24
"""Incarnations of one line within a reign. Standbys that followed the same coordinator one after
the other have different lines, so that no two reach the same number."""


def describe_starts(incarnation: int) -> str:
    """Says how often a coordinator started or was taken over; empty for a first start.

    A standby that takes over starts from 1, in a reign of its own.
    """
    reign, start = incarnation // REIGN, incarnation % LINE
    count = f"started {start} times" if start > 1 else ""
    taken = f"taken over {'once' if reign == 1 else f'{reign} times'}" if reign else ""
    return ", ".join(filter(None, (taken, count)))


@dataclass(frozen=True, slots=True)
class Incarnated:
    """The coordinator's incarnation: its own, or the highest that this party obeys.

    `standby` is the number of the folder of a standby that took over with it; empty for other
    starts.
    """

    number: int
    standby: bytes = b""


@dataclass(frozen=True, slots=True)
class RosterFollowed:
    """The roster that this party follows from now on, as in its file."""

    text: str


@dataclass(frozen=True, slots=True)
class Dated:
    """The journal's writer, and the calendar at this time of the run's clock, in Unix seconds.

    Every journal begins with one; machines do not read it.
    """

    unix: float
    party: str
    role: str


@dataclass(frozen=True, slots=True)
class RefusedRequests:
    """Counts a party's requests that were refused with one class of error since the last row.

    Machines do not read it.
    """

    party: str
    error: str
    count: int


@dataclass(frozen=True, slots=True)
class RunPinned:
    """The run that this party takes part in for good; a shard's also has the `coming` placement."""

    run: RunInfo
    placement: Placement
    shards: tuple[ShardAddress, ...]
    coming: Placement | None = None


@dataclass(frozen=True, slots=True)
class ReceiptSummary:
    """The part of a receipt that an archive keeps: the audit log's facts, and the digest.

    `sealed`: its client sealed it (`Sealed`); otherwise the coordinator accepted it (`Submit`).
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
    def fact(self) -> Fact | None:
        return self.charge if self.charge is not None else self.release
