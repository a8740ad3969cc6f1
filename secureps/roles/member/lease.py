"""When a client renews its lease.

What must not live here: what becomes of a client whose lease ran out
(`roles.coordinator.sessions`).
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.requests import Heartbeat
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import Call, Step


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
            step.effects.append(Call(COORDINATOR, Heartbeat(client)))
