"""How long a client's contributions take, by its own clock, and when it renews its lease.

Of the last few alone, and in memory: a client that is started again begins with all of its work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from secureps.errors import SecurepsError
from secureps.messages.requests import Figure, Heartbeat, Telemetry
from secureps.messages.submission import BlockHeader, Receipt
from secureps.policy.checks.local_work import Pace
from secureps.roles.machine import Step

REMEMBERED = 3
"""Contributions whose mean is expected of the next."""


@dataclass(slots=True)
class Transfer:
    """A submission on its way: since when, what its making took, which blocks its shards have.

    Args:
        since: from when on nothing but that is left to do.
        ahead: blocks that left before all were sealed.
        refused: why one of those was not taken in.
    """

    since: float
    work: tuple[Figure, ...] = ()
    stored: set[int] = field(default_factory=set)
    ahead: list[BlockHeader] = field(default_factory=list)
    refused: SecurepsError | None = None

    def report(self, now: float, receipt: Receipt) -> Telemetry:
        """What it took, now that all its blocks have arrived."""
        made, figures = (
            receipt.version + 1,
            (*self.work, Figure("network_seconds", now - self.since)),
        )
        return Telemetry(receipt.id.client, receipt.id.group, made, figures, receipt.step)


@dataclass(slots=True)
class Timing:
    """Of one client."""

    paces: deque[Pace] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    pulled: float = 0.0
    """Seconds in which the newest model came that was trained from."""
    _pulls: float | None = None
    _began: float | None = None
    _part: float = 1.0

    def pulls(self, now: float) -> None:
        """Blocks of the model are on their way, from the first time on that this is said."""
        if self._pulls is None:
            self._pulls = now

    def begins(self, now: float, part: float) -> None:
        """The model is here, and training begins, with this part of the work."""
        self.pulled = 0.0 if self._pulls is None else now - self._pulls
        self._pulls, self._began, self._part = None, now, part

    def done(self, now: float) -> None:
        """Trained and sealed, if it was training that began."""
        if self._began is not None:
            self.paces.append(Pace((now - self._began) / self._part, self.pulled))
        self._began = None

    def sent(self, seconds: float) -> None:
        """An update of the last training arrived, after so many seconds of sending."""
        if self.paces:
            last = self.paces.pop()
            self.paces.append(Pace(last.training, max(last.transfer, self.pulled + seconds)))


@dataclass(slots=True)
class LeaseRenewal:
    """One heartbeat at a time: while the coordinator is away they do not pile up.

    Args:
        at: when the next one is due, None before the run is known.
        beating: one is on its way.
    """

    at: float | None = None
    beating: bool = False

    def due(self, now: float) -> bool:
        """Whether it is time."""
        return self.at is None or now >= self.at

    def beats(self, now: float, lease: float, client: str, step: Step) -> None:
        """Renews a lease of so many seconds."""
        self.at = now + lease / 3
        if not self.beating:
            self.beating = True
            step.tell(Heartbeat(client))
