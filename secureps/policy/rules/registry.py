"""From a rule's section to the rule, and to what every party may rely on whatever the rule does.

`bounds` follows from the plan's text alone: all parties compute it, and nothing that a rule
decides goes beyond it (`refuse_close`). The rule itself is made at the coordinator: one of a
user's is imported there and nowhere else, for no client runs code because a plan names it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from secureps.config.plan import (
    AsyncSection,
    BufferedSection,
    OwnRuleSection,
    PrioritySection,
    RuleSection,
    SspSection,
    SyncSection,
)
from secureps.errors import PlanRefused
from secureps.messages.submission import Member, SubmissionId
from secureps.policy.cohorts.overlap import uneven
from secureps.policy.rules.buffered import FULL, SCORES, Buffered, Priority, Score
from secureps.policy.rules.rule import Bounds, Rule
from secureps.policy.rules.ssp import Ssp
from secureps.policy.rules.sync import Sync
from secureps.policy.rules.user_rule import Guarded, imported, own_rule


def bounds(section: RuleSection, room: int) -> Bounds:
    """Computes what no cohort of a rule exceeds, if cohorts have room for this total weight."""
    match section:
        case SyncSection():
            start = section.start if section.start is not None else section.quorum
            return Bounds(section.minimum, _or(section.most, room), 1, start, 0, True)
        case SspSection():
            least, slack = section.minimum, section.slack
            most = _or(section.most, room)
            return Bounds(least, most, 1, least, 2 * slack + 1, ahead=slack)
        case BufferedSection() | PrioritySection():
            fades = section.power > 0 and section.max_staleness > 0
            weight = FULL if fades else 1
            least, stale = section.minimum, section.max_staleness
            return Bounds(least, section.buffer, weight, least, stale)
        case AsyncSection():
            return Bounds(1, 1, 1, 1, section.max_staleness)
        case OwnRuleSection(most_weight=weight):
            most = _or(section.most, room // weight)
            stale = section.max_staleness
            return Bounds(section.minimum, most, weight, section.minimum, stale, ahead=stale)


def in_force(section: RuleSection, deadline: float, buffer: float) -> RuleSection:
    """Applies these factors to a rule's section; a user's own rule stays as it is.

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


def build_rule(section: RuleSection, room: int) -> Rule:
    """Makes the rule that a section names.

    Raises:
        PlanRefused: a rule or score of the user's cannot be imported, or made.
    """
    own = bounds(section, room)
    match section:
        case SyncSection():
            return Sync(section, own)
        case SspSection():
            return Ssp(section, own)
        case BufferedSection() | AsyncSection():
            return Buffered(section, own)
        case PrioritySection():
            known = SCORES.get(section.score)
            score = known or cast(Score, imported("rule.score", section.score, SCORES))
            made = Priority(section, own, score)
            return made if known else Guarded(section.score, made, own.stale)
        case OwnRuleSection():
            return own_rule(section)


def refuse_rule(section: RuleSection, capacity: int, sealed: bool, noisy_shards: bool) -> None:
    """Refuses numbers that clash.

    Args:
        capacity: the cipher's; sealed: whether it hides anything.
        noisy_shards: whether shards' noise takes 1 of it.
    Raises:
        PlanRefused: says which, and what to do.
    """
    own = bounds(section, capacity - noisy_shards)
    if sealed and isinstance(section, AsyncSection):
        raise PlanRefused(
            'rule "async" opens every update alone, which under encryption would hide nothing: '
            'take "buffered", or cipher "plain"'
        )
    if sealed and own.minimum < 2:
        raise PlanRefused(
            f"rule.minimum = {own.minimum}: the sum of a cohort of one is that "
            "client's update, open to whoever sees sums: under encryption it is at least 2"
        )
    if isinstance(section, SyncSection):
        _refuse_rounds(section, own, noisy_shards)
    elif own.most < own.minimum:
        key = "most" if isinstance(section, SspSection | OwnRuleSection) else "buffer"
        raise PlanRefused(
            f"rule.{key} = {own.most} is below the minimum cohort of {own.minimum}: no cohort "
            "would ever be opened"
        )
    if isinstance(section, PrioritySection) and section.waiting < section.buffer:
        raise PlanRefused(
            f"rule.pool = {section.pool}: {section.buffer} are chosen of them; raise it"
        )
    if own.total > capacity - noisy_shards:
        noise = ", of which the shards' noise takes 1" if noisy_shards else ""
        each = f" members of weight up to {own.most_weight}" if own.most_weight > 1 else ""
        raise PlanRefused(
            f"a cohort of {own.most}{each} exceeds the cipher's capacity of "
            f"{capacity}{noise}; raise cipher.capacity to {own.total + noisy_shards} or make "
            "cohorts smaller"
        )


def _refuse_rounds(section: SyncSection, own: Bounds, noisy_shards: bool) -> None:
    if section.minimum > section.quorum:
        raise PlanRefused(
            f"the quorum {section.quorum} is below the minimum cohort {section.minimum}; "
            "such a cohort would never be opened: raise rule.quorum, or lower rule.minimum"
        )
    if own.start < section.quorum:
        raise PlanRefused(
            f"a round would open with {own.start} members and could never reach its "
            f"quorum of {section.quorum}"
        )
    needed = section.quorum if section.fraction < 1 else own.start
    if own.most < needed:
        limit = (
            f"cipher.capacity to {needed + noisy_shards}, which says how many updates a sum holds"
            if section.most is None
            else f"rule.most to {needed}"
        )
        raise PlanRefused(
            f"at most {own.most} members are invited, but a round waits for {needed}; raise {limit}"
        )


def refuse_close(
    members: tuple[Member, ...],
    here: Collection[SubmissionId],
    version: int,
    own: Bounds,
    sealed: bool,
) -> str:
    """Says why these may not be a cohort, whatever rule says so; empty if they may.

    What a client sent before an update that is summed is dropped for ever: no holder opens it.

    Args:
        here: what has arrived; version: the newest; sealed: whether the cipher hides anything.
    """
    ids = [member.id for member in members]
    if len(members) < own.minimum:
        return f"{len(members)} members are fewer than the minimum cohort of {own.minimum}"
    if len({id.client for id in ids}) < len(ids) or not set(ids) <= set(here):
        return "a client stands in it twice, or with what is not here"
    oldest: dict[str, int] = {}
    for id in here:
        oldest[id.client] = min(id.sequence, oldest.get(id.client, id.sequence))
    if late := [id for id in ids if id.sequence > oldest[id.client]]:
        return f"{late[0]} is in it before an older update of its client, which is to be dropped"
    if version - min(member.version for member in members) > own.stale:
        return f"one of its bases is more than {own.stale} versions behind version {version}"
    weights = [member.weight for member in members]
    if len(members) > own.most or max(weights) > own.most_weight or min(weights) < 1:
        return (
            f"{len(members)} members of weights up to {max(weights)} exceed the plan's "
            f"{own.most} of {own.most_weight}"
        )
    return uneven(weights, own.minimum) if sealed else ""


def _or(given: int | None, default: int) -> int:
    return default if given is None else given
