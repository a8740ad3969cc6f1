"""What a holder's answers for a cohort are bound to."""

from __future__ import annotations

from secureps.messages.submission import opening_digest
from secureps.roles.coordinator.state import CoordinatorState


def about(federation: CoordinatorState, group: str) -> bytes:
    """What a holder's answers for the cohort of a group that is asked for are bound to."""
    known, pinned = federation.groups[group], federation.pinned
    if known.cohort is None or pinned is None:
        return b""
    receipts = (known.receipts[member.id] for member in known.cohort.members)
    return opening_digest(pinned.run.id, known.cohort, receipts)
