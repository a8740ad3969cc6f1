"""The newest reports of what a version costs, and how long each client was waited for.

Parties report seconds and bytes of their own. The coordinator adds how many bytes each update
has, when it published a version and with which clip, and of every client that was invited to its
round how long after the opening its update arrived, or how long it was waited for in vain. All of
it is for people: nothing is decided on it, none of it is journalled, and a restart forgets it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from secureps.errors import Malformed
from secureps.messages.coordinator_records import CohortClosed, Received, VersionCommitted
from secureps.messages.requests import Figure, Telemetry
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import UPDATE, Receipt
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.status import clip_of, most_spent
from secureps.roles.coordinator.transaction import Transaction

KEPT = 4096
"""Reports that a status shows; who wants them all asks before so many have come."""

MOST = 1e15
"""Of a party's figure: a petabyte. Figures of many are summed, and no sum of theirs is infinite."""

WAITED, ARRIVED = "waited_seconds", "arrived"
"""What the coordinator says of a client: seconds from the round's opening; 1 if it came, else 0."""

UP = "bytes_up"
"""The same, of an update that it has taken."""

PUBLISHED = "published_seconds"
"""What it says as itself of a version: seconds of the run's clock."""

SPENT = "epsilon"
"""The same: the largest epsilon of all members when it was published."""

CLIP = "clip"
"""The same: the clip of those who train from it, where that is adaptive."""


class Window:
    """The newest reports, in the order in which they came."""

    def __init__(self) -> None:
        self._reports: deque[Telemetry] = deque(maxlen=KEPT)

    @property
    def newest(self) -> tuple[Telemetry, ...]:
        """The reports that are kept, oldest first."""
        return tuple(self._reports)

    def take(self, report: Telemetry, groups: Mapping[str, GroupState]) -> None:
        """A party's own report; one of a version that nobody makes yet is passed over.

        Raises:
            Malformed: an unknown group, too many figures, too long a name or one that is not
                the party's to say, or a value that is no amount.
        """
        names = [figure.name for figure in report.figures]
        if report.group not in groups:
            raise Malformed(f"no group is called {report.group!r}")
        if len(names) > 16 or any(len(name) > 64 for name in names):
            raise Malformed("telemetry has at most 16 figures, with names of 64 letters")
        if wrong := {WAITED, ARRIVED, UP}.intersection(names):
            raise Malformed(f"{min(wrong)} is the coordinator's figure, not a party's")
        if not all(0 <= figure.value <= MOST for figure in report.figures):
            raise Malformed(f"telemetry has seconds and bytes: from 0 to {MOST:g}")
        # A client that names any version would fill the memory of whoever keeps all reports. Two
        # above: a coordinator that was started anew may be behind its shards.
        if 0 <= report.version <= groups[report.group].version + 2:
            self._reports.append(report)

    def measure(self, tx: Transaction) -> None:
        """What arrived, what had not when a cohort closed, and what was published."""
        for record in tx.step.records:
            match record:
                case Received(receipt):
                    self._size(receipt)
                    self._waited(tx, receipt.id.group, (receipt.id.client,), arrived=True)
                case CohortClosed(cohort):
                    group = tx.federation.groups[cohort.group]
                    late = sorted(group.invited - group.open_receipts.clients.keys())
                    self._waited(tx, cohort.group, late, arrived=False)
                case VersionCommitted(name, version):
                    clip, spent = clip_of(tx, tx.federation.groups[name]), most_spent(tx)
                    known = {PUBLISHED: tx.now, CLIP: clip, SPENT: spent}
                    figures = tuple(Figure(n, v) for n, v in known.items() if v is not None)
                    self._reports.append(Telemetry(COORDINATOR, name, version, figures))

    def _size(self, receipt: Receipt) -> None:
        if receipt.purpose == UPDATE:
            client, group, made = receipt.id.client, receipt.id.group, receipt.version + 1
            figures = (Figure(UP, float(receipt.size)),)
            self._reports.append(Telemetry(client, group, made, figures, receipt.step))

    def _waited(self, tx: Transaction, name: str, clients: Iterable[str], arrived: bool) -> None:
        group = tx.federation.groups[name]
        if group.opened_at is None:
            return  # the founding model, or the round was given up in this transaction
        seconds = Figure(WAITED, tx.now - group.opened_at)
        figures = (seconds, Figure(ARRIVED, float(arrived)))
        for client in clients:
            self._reports.append(Telemetry(client, name, group.version + 1, figures))
