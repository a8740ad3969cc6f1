"""Prints remarks for the person who runs a client, on its own terminal and nowhere else.

What must not live here: when a remark is due, which its finder decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secureps.client.trainer import FitResult
from secureps.service.logs import tell

EVENT = "Note"


@dataclass
class Notes:
    """The remarks of one client; each text is printed once in a process."""

    party: str
    told: set[str] = field(default_factory=set)

    def tell(self, notes: Iterable[str]) -> None:
        """Prints a line for each note that was not printed before."""
        for note in notes:
            if note not in self.told:
                self.told.add(note)
                tell(self.party, EVENT, note)


def told(result: FitResult) -> str:
    """A line about a training, for its data holder's terminal alone.

    It must not reach a server: no noise covers these numbers.
    """
    loss = result.metrics.get("loss")
    return f"{result.examples:,} records" + ("" if loss is None else f", loss {loss:.4g}")
