"""Which groups of a plan are trained together, and which of them have a moving scale.

Groups with rounds and the same rule move together. Row-blocks have rounds of their own, because
each has other members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secureps.codec.grid import MovingRange
from secureps.messages.encoding import digest
from secureps.messages.orders import GroupVersion
from secureps.messages.submission import model_digest
from secureps.policy.plan import Plan
from secureps.privacy.client_level import AdaptiveClip


def joint_groups(plan: Plan, group: str) -> tuple[str, ...]:
    """Returns the groups that train together with this one, itself included, in order."""
    if not joins_others(plan, group):
        return (group,)
    rule = plan.group(group).rule
    return tuple(
        each for each in plan.groups if joins_others(plan, each) and plan.group(each).rule == rule
    )


def digest_round_models(
    plan: Plan, group: str, model: Sequence[GroupVersion], blocks: Mapping[str, Sequence[bytes]]
) -> bytes:
    """Digests the models that all groups of a round were trained on; empty for a single group.

    A trailing group is always single: its base covers the digests of the whole model. `blocks` are
    the digests of the published blocks of `model`, by group.
    """
    groups = joint_groups(plan, group)
    if len(groups) == 1:
        return b""
    at = {each.group: each.version for each in model}
    return digest("secureps-beside", *(model_digest(g, at[g], tuple(blocks[g])) for g in groups))


def joins_others(plan: Plan, group: str) -> bool:
    """Tells whether a group has rounds that other groups of the same rule may join."""
    apart = plan.trails(group) or plan.group(group).sparse is not None
    return not apart and plan.bounds(group).rounds


def scale_mover(plan: Plan, group: str, sent: int = 1) -> AdaptiveClip | MovingRange | None:
    """Builds the mover of a group's scale, in whose units its updates travel; None without one."""
    section = plan.group(group)
    if not section.follows_norms:
        return plan.adaptive(group)
    return MovingRange(section.clip, plan.grid(group, sent).range)
