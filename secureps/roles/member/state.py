"""What a client's records come to, as one value: what its compacted journal begins with.

What only this process knows (what is on its way, whose keys it has) is no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.member_records import OwnDeed, Sealed
from secureps.messages.submission import Receipt, SubmissionId
from secureps.privacy.ledger import Ledger
from secureps.roles.announced_keys import AnnouncedKeys


@dataclass(frozen=True, slots=True)
class MemberState:
    """All but the run and its rosters.

    Args:
        sealed, next, carried, founded: as `Outbox` has them.
        committee: by group, the newest receipt under a committee.
        acted, wants: as `Departure` has them; lowered: the least budget that an act named.
    """

    client: str
    sealed: dict[SubmissionId, Sealed]
    next: dict[str, int]
    carried: dict[str, tuple[int, bytes]]
    committee: dict[str, Receipt]
    keys: AnnouncedKeys
    ledger: Ledger
    founded: set[str]
    acted: int
    wants: OwnDeed | None
    lowered: float | None
