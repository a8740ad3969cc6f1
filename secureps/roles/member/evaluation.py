"""Decides when a client evaluates a published version of the model.

A client evaluates exactly the version that it is asked for, before it trains from that version. If
it has a newer version already, it declines, so that the coordinator does not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from secureps.messages.orders import Invite, Published
from secureps.policy.plan import Plan


class Readiness(Enum):
    """Answer to whether a client can follow an invitation to evaluate."""

    EARLY = "the version is not published yet, as far as this client knows"
    READY = "every group of the model is at the version"
    LATE = "a group of the model has gone on"
    PAST = "the evaluation is over"
    UNPLANNED = "the plan has no such evaluation"


def find_readiness(
    plan: Plan,
    published: Mapping[str, Published],
    invite: Invite | None,
) -> Readiness:
    """Returns whether a client that knows these published versions can follow an invitation.

    Only evaluations on the plan's schedule are allowed, so that a coordinator cannot ask more often
    about held-out records, which no epsilon may cover. Each evaluation has a base of its own
    (`Schedule.base`), and so one name.
    """
    own = published.get(plan.trailing)
    if own is None or invite is None or own.version < invite.version:
        return Readiness.EARLY
    if own.version > invite.version:
        return Readiness.PAST
    if invite.evaluates not in plan.schedule:
        return Readiness.UNPLANNED
    if plan.schedule.base(invite.version, invite.evaluates).step != invite.step:
        return Readiness.UNPLANNED
    versions = [published[g].version if g in published else -1 for g in plan.groups]
    if max(versions) > invite.evaluates:
        return Readiness.LATE
    if min(versions) != invite.evaluates:
        return Readiness.EARLY
    return Readiness.READY
