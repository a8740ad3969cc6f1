"""Refuses what a group's codec and feedback cannot be combined with, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from secureps.config.plan import STAGES, ClientPrivacySection, GroupSection, SspSection
from secureps.errors import PlanRefused
from secureps.policy.checks.privacy import Privacy


def refuse_codec(section: GroupSection, rounds: bool, versions: int, privacy: Privacy) -> None:
    """Refuses a chain that does not add up, or clients that cannot keep the rest (PlanRefused).

    Args:
        rounds: whether the group's rule has rounds; versions: how many are made of it.
    """
    names = [stage.name for stage in section.codec]
    for name, count in Counter(names).items():
        if count > 1:
            raise PlanRefused(f"codec: {name} is there {count} times")
    if names != (right := [name for name in STAGES if name in names]):
        raise PlanRefused(f"codec: stages go in the order {', '.join(right)}")
    if section.adaptive is not None and names:
        raise PlanRefused(
            "codec: under adaptive clipping one value of an update says whether it was short, and "
            "must be sent as it is: remove codec or adaptive"
        )
    if "support" in names:
        _refuse_support(section, rounds)
    if "round" in names:
        _refuse_range(section, names, rounds, privacy)
    if section.feedback:
        _refuse_feedback(section, rounds, versions)


def _refuse_support(section: GroupSection, rounds: bool) -> None:
    rule = section.rule.name
    if rounds and section.support_every is not None:
        raise PlanRefused(
            "codec: support.every is for rules without rounds; with them every version has a "
            "support of its own: remove every"
        )
    if isinstance(section.rule, SspSection):
        raise PlanRefused(
            'codec: rule "ssp" waits for an update of every member, of whichever version, and '
            'members of a cohort must send the same part of the model: take rule "sync" or '
            '"buffered", or leave support out'
        )
    if not rounds and section.support_every is None:
        raise PlanRefused(
            f'codec: members of a cohort must send the same part of the model, and rule "{rule}" '
            "adds up updates of several versions: state support.every, for how many versions it "
            'stays the same, or take rule "sync"'
        )


def _refuse_range(
    section: GroupSection, names: Sequence[str], rounds: bool, privacy: Privacy
) -> None:
    if isinstance(privacy, ClientPrivacySection):
        raise PlanRefused(
            "codec: under client-level privacy the range follows from clip, bits and noise: remove "
            "round"
        )
    if "rotate" not in names:
        raise PlanRefused(
            "codec: round takes one range for all values, which are alike after a rotation alone: "
            "add rotate before it"
        )
    if "clip" not in section.model_fields_set:
        raise PlanRefused(
            "codec: round takes the range from the clip: state clip, about as long as updates are"
        )
    if section.follows_norms and (not rounds or section.sparse is not None):
        raise PlanRefused(
            'codec: a range that follows "mean_norm" is one for all members of a cohort, who must '
            'train from one version of the whole group: take rule "sync" without sparse, or '
            'length = "clip"'
        )
    if section.range is not None:
        raise PlanRefused("range: it follows from the clip where codec has round: remove one")


def _refuse_feedback(section: GroupSection, rounds: bool, versions: int) -> None:
    if section.adaptive is not None:
        raise PlanRefused(
            "feedback: what a client kept is in units of a clip that has moved since: remove "
            "adaptive or feedback"
        )
    if not rounds:
        raise PlanRefused(
            f'feedback: under rule "{section.rule.name}" a client may send an update before it '
            'knows what became of the last one, and what to add: take rule "sync"'
        )
    if versions == 1:
        raise PlanRefused("feedback: one version is made, and what is kept would never be sent")
