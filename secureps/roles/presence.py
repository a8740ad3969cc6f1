"""Who is at the coordinator's door now; what must outlive it is in the journal."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Presence:
    """Who is here now, and whom this incarnation gave orders; a restart forgets it."""

    leases: dict[str, float] = field(default_factory=dict)
    watchers: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)

    def live(self, now: float) -> frozenset[str]:
        """Clients whose lease runs."""
        return frozenset(client for client, until in self.leases.items() if until > now)
