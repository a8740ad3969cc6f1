"""When a client evaluates a published version of the model, and which one.

It evaluates exactly the version that it is asked for, and before it trains from it. One that
has a newer one already says so, and nobody waits for it. What must not live here: budgets
(`roles.allowance`), and evaluating (`client.hands`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from secureps.messages.encoding import digest
from secureps.messages.evaluation import EVALUATION
from secureps.messages.orders import Invite, Published
from secureps.messages.submission import model_digest
from secureps.policy.plan import Plan
from secureps.roles.library import Library
from secureps.roles.tasks import Aim, Evaluate

DECLINES = "this client sends no evaluation; its own log says why"
"""All that the coordinator hears of a refusal: why is the client's own matter."""


def unsent(group: str) -> str:
    """Why nothing comes of an invitation to a group that a client followed."""
    return DECLINES if group == EVALUATION else "what it trained to is another update"


class Readiness(Enum):
    """How a client stands to an invitation to evaluate."""

    EARLY = "the version is not published yet, as far as this client knows"
    READY = "every group of the model is at the version"
    LATE = "a group of the model has gone on"
    PAST = "the evaluation is over"
    JUDGED = "this client has judged this model before, for other metrics"
    UNPLANNED = "the plan has no such evaluation"


def readiness(
    plan: Plan,
    published: Mapping[str, Published],
    invite: Invite | None,
    judged: Mapping[bytes, int],
) -> Readiness:
    """How a client that knows these published versions stands to an invitation, if it has one.

    As many evaluations as the plan has, and of its versions: held-out records that no epsilon
    covers are asked about no more often, whatever the coordinator wants. And one model under one
    version of the metrics' group alone (`judged`, see `roles.releases`): two answers to the same
    question, in sums of different members, would give this client's away.
    """
    own = published.get(EVALUATION)
    if own is None or invite is None or own.version < invite.version:
        return Readiness.EARLY
    if own.version > invite.version:
        return Readiness.PAST
    if invite.evaluates not in plan.evaluated or invite.version >= len(plan.evaluated):
        return Readiness.UNPLANNED
    versions = [published[g].version if g in published else -1 for g in plan.groups]
    if max(versions) > invite.evaluates:
        return Readiness.LATE
    if min(versions) != invite.evaluates:
        return Readiness.EARLY
    before = judged.get(model_content(plan, published), invite.version)
    return Readiness.READY if before == invite.version else Readiness.JUDGED


def to_judge(plan: Plan, published: Mapping[str, Published], judged: int) -> int:
    """The version that a designated evaluator judges now; 0 if there is none.

    Args:
        judged: the newest version that it has judged.
    """
    versions = {published[g].version if g in published else -1 for g in plan.groups}
    (version, *others) = versions
    return version if not others and version in plan.evaluated and version > judged else 0


def task(plan: Plan, library: Library, aim: Aim | None) -> Evaluate:
    """Judges what is published, for an aim: or as the designated evaluator, without one."""
    model, blocks = library.take()
    own = library.published[EVALUATION] if aim is not None else None
    base = b"" if own is None else model_digest(EVALUATION, own.version, own.blocks)
    return Evaluate(model, blocks, digests(plan, library.published), aim, base)


def model_content(plan: Plan, published: Mapping[str, Published]) -> bytes:
    """One digest of all blocks of the model as it is published, whatever its version is called."""
    return digest("secureps-judged", *(b for group in plan.groups for b in published[group].blocks))


def digests(plan: Plan, published: Mapping[str, Published]) -> tuple[bytes, ...]:
    """Of every group of the model as it is published, in the plan's order."""
    found = (published[group] for group in plan.groups)
    return tuple(model_digest(each.group, each.version, each.blocks) for each in found)
