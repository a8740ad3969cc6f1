"""Which updates may stand in one cohort where base versions fall into periods.

Sums of values at other places mean nothing, nor do those of keys that different holders share: all
members of a cohort have one support and one committee, those of their base versions. At the border
of two periods the older cohort closes first if it has the minimum; else what is left of it is
dropped, as updates that are too stale are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from secureps.errors import Malformed
from secureps.messages.submission import Cohort, SubmissionId
from secureps.policy.rules.rule import Arrival, Decision, Drop, Wait

Period = Callable[[int], int]
"""The number of the period that a base version falls into; it never goes down."""


def select_alike(
    period: Period | None,
    arrivals: Sequence[Arrival],
    pending: Mapping[SubmissionId, int],
    version: int,
    minimum: int,
) -> tuple[Arrival, ...] | Drop:
    """The arrivals that a rule may see: those of the oldest period, unless they are too few.

    Args:
        period: of a base version; None: all arrivals may be seen.
        arrivals: in the order of arrival.
        pending: base versions of what was sent, also of what holders have not looked into yet.
        version: the newest.
    """
    if period is None or not arrivals:
        return tuple(arrivals)
    oldest = min(period(arrival.version) for arrival in arrivals)
    first = tuple(each for each in arrivals if period(each.version) == oldest)
    senders = {id.client for id, base in pending.items() if period(base) == oldest}
    if oldest == period(version) or len(senders) >= minimum:
        return first
    return _stale(first, version)


def end_hopeless_wait(
    period: Period | None,
    decision: Decision,
    seen: Sequence[Arrival],
    pending: Mapping[SubmissionId, int],
    version: int,
) -> Decision:
    """Ends the wait of an older period: nobody is asked for more updates of it."""
    if period is None or not seen or not isinstance(decision, Wait) or decision.until is not None:
        return decision
    own = period(seen[0].version)
    coming = {id for id, base in pending.items() if period(base) == own}
    over = own < period(version) and coming <= {arrival.id for arrival in seen}
    return _stale(seen, version) if over else decision


def common_version(every: int | None, cohort: Cohort) -> int:
    """A version that determines which values all members have sent.

    Raises:
        Malformed: they have sent different ones.
    """
    if every is None:
        return cohort.version - 1
    versions = {member.version // every for member in cohort.members}
    if len(versions) > 1:
        raise Malformed("members of a cohort have sent values of several supports")
    return versions.pop() * every


def _stale(arrivals: Sequence[Arrival], version: int) -> Drop:
    text = f"from version {version} on it is sent otherwise: pull and train again"
    return Drop(tuple(arrival.id for arrival in arrivals), text)
