"""What the person who runs a client should know of it, on its own terminal and nowhere else.

What must not live here: what that is, which whoever finds it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secureps.client.trainer import FitResult
from secureps.service.logs import tell

EVENT = "Note"


@dataclass
class Notes:
    """Of one client, in one process: each is told once."""

    party: str
    told: set[str] = field(default_factory=set)

    def tell(self, notes: Iterable[str]) -> None:
        """A line for each that was not told before."""
        for note in notes:
            if note not in self.told:
                self.told.add(note)
                tell(self.party, EVENT, note)


def told(result: FitResult) -> str:
    """Of a training, for its data holder's terminal alone: no noise covers these numbers."""
    loss = result.metrics.get("loss")
    return f"{result.examples:,} records" + ("" if loss is None else f", loss {loss:.4g}")
