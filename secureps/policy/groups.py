"""Which groups of a plan are trained for together.

Groups of one rule with rounds move together, or not at all; row-blocks have rounds of their own,
for each has other members.
"""

from __future__ import annotations

from secureps.messages.evaluation import EVALUATION
from secureps.policy.plan import Plan


def together(plan: Plan, group: str) -> tuple[str, ...]:
    """The groups that are trained for with this one, or not at all, it included, in order."""
    if not joins_others(plan, group):
        return (group,)
    rule = plan.group(group).rule
    return tuple(
        each for each in plan.groups if joins_others(plan, each) and plan.group(each).rule == rule
    )


def joins_others(plan: Plan, group: str) -> bool:
    """Whether a group is trained for with others of its rule: in rounds, and of no row-blocks."""
    return group != EVALUATION and plan.bounds(group).rounds and plan.group(group).sparse is None
