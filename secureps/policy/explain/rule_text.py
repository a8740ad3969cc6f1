"""A group's rule in sentences, for `secureps check`: from the numbers that all parties rely on."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.config.plan import (
    AsyncSection,
    BufferedSection,
    ClientPrivacySection,
    GroupSection,
    OwnRuleSection,
    PrioritySection,
    RuleSection,
    SspSection,
    SyncSection,
)
from secureps.crypto.cipher import Opening
from secureps.policy.counting import by_public_number
from secureps.policy.plan import Plan
from secureps.policy.rules.rule import Bounds


@dataclass(frozen=True, slots=True)
class RuleText:
    """One group's rule.

    Args:
        group: its name; of a table that is cut, of all its row-blocks.
        rule: when members train and versions are made.
        behind: how old the version may be that an update was trained from.
        weights: that the rule gives members, what they take of the cipher's capacity, and what
            else members count by.
        charged: what a client is charged, at most, in the whole run.
        seen: what the coordinator sees of a client besides who takes part and sizes.
    """

    group: str
    rule: str
    behind: str
    weights: str
    charged: str
    seen: str


def rule_words(plan: Plan) -> tuple[RuleText, ...]:
    """Of every group of the plan's file, in its order."""
    return tuple(_words(plan, section) for section in plan.section.group)


def _words(plan: Plan, section: GroupSection) -> RuleText:
    cut = section.sparse
    name = section.name if cut is None else cut.names(section.name)[0]
    own = plan.bounds(name)
    return RuleText(
        group=section.name,
        rule=_rule(section.rule, own),
        behind=f"up to {own.stale} versions" if own.stale else "none: all train from the newest",
        weights=_weights(plan, own) + _counted(plan, section),
        charged=_charged(plan, section.rule, name, own),
        seen=_seen(section),
    )


def _rule(section: RuleSection, own: Bounds) -> str:
    match section:
        case SyncSection():
            invited = f"up to {own.most} members"
            if section.fraction < 1:
                part = f"{section.fraction:g} of the live members"
                invited = f"{part}, at most {own.most}, drawn for each version"
            return (
                f"rounds of {invited}, once {own.start} are live; one closes when "
                f"all have sent, or after {section.deadline:g} s with {section.quorum}"
            )
        case SspSection(slack=slack):
            return (
                f"nobody runs more than {slack} updates ahead of the slowest live member, who is "
                f"waited for {section.deadline:g} s; a version is made when all have sent"
            )
        case BufferedSection():
            return (
                f"a version of the first {section.buffer} updates, whoever sends them; after "
                f"{section.deadline:g} s {own.minimum} suffice"
            )
        case PrioritySection():
            return (
                f"a version of the best {section.buffer} of {section.waiting} waiting updates by "
                f"{section.score}; {section.ageing:g} s of waiting count as much as 1 of it"
            )
        case AsyncSection():
            return "every update is a version"
        case OwnRuleSection(name=name):
            return (
                f"{name} decides, code that the coordinator alone imports, about cohorts of "
                f"{own.minimum} to {own.most}"
            )


def _weights(plan: Plan, own: Bounds) -> str:
    noise = " and 1 of the shards' noise" if plan.noisy_shards else ""
    used = f"{own.total}{noise} of the capacity of {plan.section.cipher.capacity}"
    if own.most_weight == 1:
        return f"all 1; {used}"
    text = f"1 to {own.most_weight}, less for what is stale; {used}"
    if own.most == own.minimum and plan.opening is not Opening.NOTHING:
        text += (
            f"; cohorts of {own.most} must weigh alike, for each weight is that of {own.minimum} "
            "members or more: power = 0 would take a quarter"
        )
    return text


def _counted(plan: Plan, section: GroupSection) -> str:
    """What a member's update counts by, besides the rule's weight: a number in its receipt."""
    if section.weighting == "uniform":
        return ""
    if by_public_number(plan.section):
        return "; besides, each counts by a public number, its own or privacy.records"
    return "; besides, each counts by its number of records, which is public then"


def _charged(plan: Plan, section: RuleSection, name: str, own: Bounds) -> str:
    privacy = plan.section.privacy
    if privacy is None:
        return "nothing: nothing is private"
    most = plan.versions(name) + own.ahead
    whole = isinstance(privacy, ClientPrivacySection)
    each = "one release" if whole else "its steps"
    if isinstance(section, OwnRuleSection):
        return f"{each} for every update that the rule asks of it, until its budget ends it"
    ahead = f", {own.ahead} of them ahead of the others" if own.ahead else ""
    return (
        f"{each} for each of up to {most} updates{ahead}, summed or not; that only some of all "
        "clients are summed makes none cheaper"
    )


def _seen(section: GroupSection) -> str:
    found = []
    cut = section.sparse
    if cut is not None:
        found.append(
            f"which of {len(cut.names(section.name))} row-blocks of {cut.block} rows it touches, "
            "and the shards see it too"
        )
    if isinstance(section.rule, PrioritySection) and section.rule.score == "magnitude":
        found.append("how large each update is, in 16 classes of half an octave")
    return "; ".join([*found, "how long it takes for each update"])
