"""What the coordinator writes into its journal about groups without rounds.

Records like those of `messages.records`, which says what they are for.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.submission import SubmissionId


@dataclass(frozen=True, slots=True)
class StreamBegan:
    """A group whose rule has no rounds takes updates from now on."""

    group: str


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """It takes no more; what waits is dropped."""

    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class MemberEntered:
    """A member takes part in a group without rounds, from this clock on (`policy.rule`)."""

    group: str
    client: str
    clock: int


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """Its lease ran out, or it sits out; or it takes part no more, for its budget is `spent`."""

    group: str
    client: str
    spent: bool = False


@dataclass(frozen=True, slots=True)
class MemberPassed:
    """Others have waited for it long enough: it has no clock until it sends again."""

    group: str
    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class MembersReturned:
    """They sit out no more: what they trained from for a burnt cohort is older than the newest."""

    group: str
    clients: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MemberAsked:
    """A member trains from this version, or a newer one that is there when it begins."""

    group: str
    client: str
    version: int
    step: int


@dataclass(frozen=True, slots=True)
class SubmissionsDropped:
    """These wait no more, and are part of nothing."""

    group: str
    ids: tuple[SubmissionId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SubmissionWithdrawn:
    """It was refused on its way to a group without rounds, and never comes."""

    group: str
    id: SubmissionId
    reason: str
