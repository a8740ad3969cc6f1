"""Which updates may be in one cohort, where base versions fall into periods.

A cohort's updates must have the same support, or their values lie at different places; and the same
committee, or their keys are shared among different holders. Base versions of one period have both.
At the end of a period the older cohort closes first if it has the minimum; otherwise its updates
are dropped like stale ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from secureps.errors import Malformed
from secureps.messages.submission import Cohort, SubmissionId
from secureps.policy.rules.rule import Arrival, Decision, Drop, Wait

Period = Callable[[int], int]
"""Returns the number of a base version's period; it never decreases."""


def select_alike(
    period: Period | None,
    arrivals: Sequence[Arrival],
    pending: Mapping[SubmissionId, int],
    version: int,
    minimum: int,
) -> tuple[Arrival, ...] | Drop:
    """Returns the arrivals that a rule may see: those of the oldest period, if they are enough.

    Args:
        period: None: all arrivals may be seen.
        arrivals: in the order of arrival.
        pending: base versions of all submissions, including those that holders have yet to check.
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
    """Drops an older period's updates that wait for more: no member is asked for those."""
    if period is None or not seen or not isinstance(decision, Wait) or decision.until is not None:
        return decision
    own = period(seen[0].version)
    coming = {id for id, base in pending.items() if period(base) == own}
    over = own < period(version) and coming <= {arrival.id for arrival in seen}
    return _stale(seen, version) if over else decision


def common_version(every: int | None, cohort: Cohort) -> int:
    """Returns a base version that determines which values all members have sent.

    Raises:
        Malformed: members have sent values of different supports.
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
