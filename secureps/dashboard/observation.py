"""What was seen of a run, look by look: who came and went when, and what versions cost.

Time is an argument: Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from secureps.messages.requests import Status
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator import status as status_words
from secureps.roles.coordinator.status import SPENT, UP
from secureps.run.report.version_metrics import DOWN, SECONDS, Totals

Json = dict[str, Any]
"""An object of a page, as its script in `site/` reads it; it may have dataclasses in it."""

KEPT = 40
"""Changes, and versions of a group, that are kept: the newest."""

HERE, AWAY, AWAITED, SILENT = "here", "away", "awaited", "silent"
ENDED, NOT_KNOWN = status_words.ENDED, status_words.NOT_KNOWN


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a version for all parties: seconds by stage, bytes, the largest epsilon."""

    group: str
    version: int
    seconds: Mapping[str, float]
    up: float
    down: float
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class Seen:
    """The observations up to one moment.

    Args:
        status: the last one; None before the first.
        silent: why no answer came to the last question; empty if one did.
        silent_since: when the first question had none.
        over: no answer will come any more.
        recalled: the status is the journal's, which does not say who is there now.
        since: by party, the time of its last change.
        changes: of parties' presence, newest first: the time, the state, the one `before` and how
            many seconds that lasted.
        costs: oldest first.
        up, down: bytes of all versions.
    """

    status: Status | None = None
    silent: str = ""
    silent_since: float | None = None
    over: bool = False
    recalled: bool = False
    since: Mapping[str, float] = field(default_factory=dict)
    changes: tuple[Json, ...] = ()
    costs: tuple[Cost, ...] = ()
    up: float = 0.0
    down: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether nobody plays the run any more, or it has finished."""
        return self.over or (self.status is not None and bool(self.status.finished))

    @property
    def fresh(self) -> bool:
        """Whether the status is of now: only then it says who is there."""
        return not (self.status is None or self.silent or self.recalled or self.ended)


def with_journal(seen: Seen, recalled: Status | None) -> Seen:
    """Takes the journal's status if the coordinator gave none, or gave its last before the end."""
    if recalled is None or (seen.status is not None and not seen.over):
        return seen
    return replace(seen, status=recalled, recalled=True)


def presence(status: Status) -> dict[str, tuple[str, str]]:
    """The role of every party, and whether it is there, in one word or with its reason."""
    found = {COORDINATOR: (COORDINATOR, HERE)}
    for server in status.servers:
        state = HERE if server.live else AWAY if server.registered else AWAITED
        found[server.name] = (server.role, state)
    for member in status.members:
        found[member.name] = ("client", HERE if member.live else member.state)
    return found


class Observation:
    """Collects statuses; to be used by one thread."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._known: dict[str, tuple[str, str]] = {}
        self.seen = Seen()

    def take(self, status: Status, now: float) -> Seen:
        self._totals.add(status.telemetry)
        self._note(presence(status), now)
        self.seen = replace(
            self.seen,
            status=status,
            silent="",
            silent_since=None,
            over=False,
            costs=self._costs(status),
            up=self._totals.total(UP),
            down=self._totals.total(DOWN),
        )
        return self.seen

    def miss(self, why: str, now: float, over: bool = False) -> Seen:
        """Notes that no status came; `over`: none will."""
        if self.seen.status is not None and not over:
            self._note(self._known | {COORDINATOR: (COORDINATOR, SILENT)}, now)
        since = self.seen.silent_since
        since = now if since is None else since
        self.seen = replace(self.seen, silent=why, silent_since=since, over=over)
        return self.seen

    def _note(self, found: dict[str, tuple[str, str]], now: float) -> None:
        since, changes = dict(self.seen.since), list(self.seen.changes)
        for party, (role, state) in found.items():
            before = self._known.get(party)
            if before == (role, state):
                continue
            if before is not None:
                seconds = now - since.get(party, now)
                change = {"at": now, "party": party, "role": role, "state": state}
                changes.insert(0, change | {"before": before[1], "seconds": seconds})
            since[party] = now
        self._known = found
        known = {party: at for party, at in since.items() if party in found}
        self.seen = replace(self.seen, since=known, changes=tuple(changes[:KEPT]))

    def _costs(self, status: Status) -> tuple[Cost, ...]:
        """The costs of versions of which some party reported; those of others are unknown."""
        found = []
        for group in status.groups:
            for version in range(max(1, group.version - KEPT + 1), group.version + 1):
                sums = self._totals.of_version(group.name, version)
                spent = self._totals.coordinators(SPENT, group.name, version)
                if sums or spent is not None:
                    found.append(cost_of(group.name, version, sums, spent))
        return tuple(found)


def cost_of(group: str, version: int, sums: Mapping[str, float], epsilon: float | None) -> Cost:
    """The cost of a version by its figures, summed over the parties."""
    seconds = {stage: sums.get(f"{stage}_seconds", 0.0) for stage in SECONDS}
    return Cost(group, version, seconds, sums.get(UP, 0.0), sums.get(DOWN, 0.0), epsilon)
