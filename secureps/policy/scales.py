"""What moves the scale of a group, in units of which its updates travel."""

from __future__ import annotations

from secureps.codec.moving_range import MovingRange
from secureps.policy.plan import Plan
from secureps.privacy.adaptive import AdaptiveClip


def moved(plan: Plan, group: str, sent: int = 1) -> AdaptiveClip | MovingRange | None:
    """What moves a group's scale; None where it has none.

    Args:
        sent: how many values are sent of an update; whoever but checks a scale need not know.
    """
    section = plan.group(group)
    if not section.follows_norms:
        return plan.adaptive(group)
    return MovingRange(section.clip, plan.grid(group, sent).range)
