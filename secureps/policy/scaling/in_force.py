"""The rule of a group with the deadline and the buffer that follow the load, and its staleness.

What must not live here: which these are (`policy.scaling`).
"""

from __future__ import annotations

from secureps.config.plan import BufferedSection, OwnRuleSection, PrioritySection, RuleSection
from secureps.policy.plan import Plan
from secureps.policy.rules.registry import build_rule
from secureps.policy.rules.rule import Rule


def in_force(section: RuleSection, deadline: float, buffer: float) -> RuleSection:
    """A rule's section with these factors; a user's own rule as it is.

    A buffer is never above the plan's, by which all parties bound a cohort, nor below the minimum.
    """
    if isinstance(section, OwnRuleSection):
        return section
    changes: dict[str, float] = {"deadline": section.deadline * deadline}
    if isinstance(section, BufferedSection | PrioritySection):
        wanted = max(section.minimum, round(section.buffer * buffer))
        changes["buffer"] = min(section.buffer, wanted)
    return section.model_copy(update=changes)


def staleness_power(section: RuleSection) -> float:
    """The p by which an update of staleness tau is worth (1 + tau)^-p; 0 where a rule has none."""
    return section.power if isinstance(section, BufferedSection | PrioritySection) else 0.0


def rule_in_force(plan: Plan, group: str, deadline: float, buffer: float) -> Rule:
    """The rule of a group of the model with these factors."""
    return build_rule(in_force(plan.group(group).rule, deadline, buffer), plan.room)
