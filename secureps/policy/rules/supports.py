"""Which updates may stand in one cohort where a support stays for some versions.

Sums of values at other places mean nothing: all members of a cohort have one support, that of
their base versions. At the border of two the older cohort closes first if it has the minimum;
else what is left of the older support is dropped, as updates that are too stale are. What must
not live here: which values they are (`policy.block_codes`), and rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secureps.errors import Malformed
from secureps.messages.submission import Cohort, SubmissionId
from secureps.policy.rules.rule import Arrival, Decision, Drop, Wait


def alike(
    every: int | None,
    arrivals: Sequence[Arrival],
    pending: Mapping[SubmissionId, int],
    version: int,
    minimum: int,
) -> tuple[Arrival, ...] | Drop:
    """The arrivals that a rule may see: those of the oldest support, unless they are too few.

    Args:
        every: for how many versions a support stays; None: all arrivals may be seen.
        arrivals: in the order of arrival.
        pending: base versions of what was sent, also of what holders have not looked into yet.
        version: the newest.
    """
    if every is None or not arrivals:
        return tuple(arrivals)
    oldest = min(arrival.version // every for arrival in arrivals)
    first = tuple(each for each in arrivals if each.version // every == oldest)
    senders = {id.client for id, base in pending.items() if base // every == oldest}
    if oldest == version // every or len(senders) >= minimum:
        return first
    return _stale(first, version)


def not_for_ever(
    every: int | None,
    decision: Decision,
    seen: Sequence[Arrival],
    pending: Mapping[SubmissionId, int],
    version: int,
) -> Decision:
    """The decision of a rule that has seen these; what is left of an older support does not wait
    for more without an end, for nobody is asked for more."""
    if every is None or not seen or not isinstance(decision, Wait) or decision.until is not None:
        return decision
    own = seen[0].version // every
    coming = {id for id, base in pending.items() if base // every == own}
    over = own < version // every and coming <= {arrival.id for arrival in seen}
    return _stale(seen, version) if over else decision


def common_version(every: int | None, cohort: Cohort) -> int:
    """A version from which the values follow that all members have sent.

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
    text = f"other values are sent from version {version} on: pull and train again"
    return Drop(tuple(arrival.id for arrival in arrivals), text)
