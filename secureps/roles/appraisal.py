"""When a client evaluates a published version of the model, and which one.

It evaluates exactly the version that it is asked for, and before it trains from it. One that
has a newer one already says so, and nobody waits for it. What must not live here: budgets
(`roles.allowance`), and evaluating (`client.hands`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from secureps.messages.evaluation import EVALUATION
from secureps.messages.orders import Invite, Published
from secureps.messages.submission import model_digest
from secureps.policy.plan import Plan


class Readiness(Enum):
    """How a client stands to an invitation to evaluate."""

    EARLY = "the version is not published yet, as far as this client knows"
    READY = "every group of the model is at the version"
    LATE = "a group of the model has gone on"
    PAST = "the evaluation is over"


def readiness(plan: Plan, published: Mapping[str, Published], invite: Invite | None) -> Readiness:
    """How a client that knows these published versions stands to an invitation, if it has one."""
    own = published.get(EVALUATION)
    if own is None or invite is None or own.version < invite.version:
        return Readiness.EARLY
    if own.version > invite.version:
        return Readiness.PAST
    versions = [published[g].version if g in published else -1 for g in plan.groups]
    if max(versions) > invite.evaluates:
        return Readiness.LATE
    return Readiness.READY if min(versions) == invite.evaluates else Readiness.EARLY


def to_judge(plan: Plan, published: Mapping[str, Published], judged: int) -> int:
    """The version that a designated evaluator judges now; 0 if there is none.

    Args:
        judged: the newest version that it has judged.
    """
    versions = {published[g].version if g in published else -1 for g in plan.groups}
    (version, *others) = versions
    return version if not others and version in plan.evaluated and version > judged else 0


def digests(plan: Plan, published: Mapping[str, Published]) -> tuple[bytes, ...]:
    """Of every group of the model as it is published, in the plan's order."""
    found = (published[group] for group in plan.groups)
    return tuple(model_digest(each.group, each.version, each.blocks) for each in found)
