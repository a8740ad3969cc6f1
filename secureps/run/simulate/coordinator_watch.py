"""Whether a simulation's coordinator has done anything since somebody looked.

Most events of a simulation are its clients': a play that looks at the run after each of them, as
it must after each of the coordinator's, looks at the same millions of times. What must not live
here: what there is to see (`run.simulate.play`).
"""

from __future__ import annotations

from concurrent.futures import Future

from secureps.messages.requests import Reply, Request
from secureps.roles.machine import Machine
from secureps.service.environment import Meter


class CoordinatorWatch(Meter):
    """Observes one coordinator, or those that follow each other.

    `changed`: it has handled something; `requests`: how many came, of which none brings more than
    two reports. Whoever looks sets both back.
    """

    def __init__(self) -> None:
        self.changed = True
        self.requests = 0

    def asked(self, message: Request, answer: Future[Reply]) -> None:
        """Counts a request."""
        self.requests += 1

    def stands(self, machine: Machine, now: float) -> None:
        """Something was handled and journalled."""
        self.changed = True
