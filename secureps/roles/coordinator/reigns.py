"""Which incarnations a coordinator's journal knows of, and which standby has all of it.

A reign is what one coordinator rules, however often it starts; a standby that takes over begins
the next one. A party that obeyed an incarnation which the journal does not know has been ruled by
another coordinator since. What must not live here: what follows from that
(`roles.coordinator.reign`, `roles.coordinator.standby`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import REIGN, Incarnated

MISSED = 1 << 10
"""Reigns that may have come and gone without a journal; no more are believed in."""


@dataclass(slots=True)
class Reigns:
    """The fold of what a journal says of its coordinators.

    Args:
        incarnation: of whoever rules; newest: the highest of each reign.
        follower: the standby that nothing is said before it has it, by the number of its folder;
            empty: nobody.
        shared: a standby has ever followed: another coordinator may rule.
        ruler: the standby that took over last; empty: none did.
    """

    incarnation: int = 0
    newest: dict[int, int] = field(default_factory=dict)
    follower: bytes = b""
    shared: bool = False
    ruler: bytes = b""

    def apply(self, record: Incarnated | StandbyFollows) -> None:
        """Folds one record."""
        match record:
            case Incarnated(number, standby):
                self.incarnation = self.newest[number // REIGN] = number
                self.ruler = standby or self.ruler
            case StandbyFollows(standby):
                self.follower = standby
                self.shared = True

    @property
    def next_reign(self) -> int:
        """The incarnation with which a standby that has this journal takes over."""
        return (self.incarnation // REIGN + 1) * REIGN

    def foreign(self, seen: int) -> bool:
        """Whether this incarnation is of another coordinator that the journal does not know of.

        In its own reign a higher one is its own, of which it lost the record.
        """
        own, reign = self.incarnation // REIGN, seen // REIGN
        if reign == own or reign > own + MISSED:
            return False
        return seen > self.newest.get(reign, 0)
