"""Checks of a plan's privacy and codec.

An epsilon covers sums with noise. It is void if other things that are visible depend on a client's
data: how much the client counts, the size that it declares for an update, or the rows it sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from secureps.config.plan import (
    STAGES,
    ClientPrivacySection,
    GroupSection,
    OwnRuleSection,
    PlanSection,
    PrioritySection,
    RecordPrivacySection,
    SspSection,
    SyncSection,
)
from secureps.errors import PlanRefused
from secureps.policy.rules.rule import Bounds
from secureps.privacy.ledger import OWN_DELTA

Privacy = RecordPrivacySection | ClientPrivacySection | None

LEAST_NOISE = 0.5
"""With less, a single step spends an epsilon above 10 at a delta of 1e-5 (Balle and Wang 2018,
theorem 8): some outcome is 22,000 times as likely with a record as without it."""


def weak_privacy(privacy: Privacy) -> tuple[str, ...]:
    """Warns of a delta or a noise that is allowed, but protects next to nothing."""
    if privacy is None:
        return ()
    found = []
    if privacy.delta > OWN_DELTA:
        found.append(
            f"WARNING: the plan's delta is {privacy.delta:g}, above {OWN_DELTA:g}: with about this "
            "probability its epsilon promises nothing; ask for a smaller delta, or join with "
            f"--budget EPSILON, which counts at {OWN_DELTA:g}"
        )
    if privacy.noise_multiplier < LEAST_NOISE:
        of, what = ("step", "record") if privacy.unit == "record" else ("version", "client")
        found.append(
            f"WARNING: the plan's noise_multiplier is {privacy.noise_multiplier:g}, below "
            f"{LEAST_NOISE:g}: a single {of} that a {what} takes part in has an epsilon above 10, "
            "which protects next to nothing; ask for more noise, or join with --budget EPSILON, "
            "which stops at the epsilon that you name"
        )
    return tuple(found)


def refuse_steps(section: PlanSection) -> None:
    """Refuses record-level privacy without a number of steps, which its cost depends on."""
    steps = section.training.get("local_steps")
    record = isinstance(section.privacy, RecordPrivacySection)
    if record and (type(steps) is not int or steps < 1):
        raise PlanRefused(
            "training.local_steps: a private plan states how many steps each version takes, "
            "so that a client knows what it will spend"
        )


def refuse_adaptive(section: GroupSection, privacy: Privacy) -> None:
    """Refuses an adaptive clip where no noise covers the count of short updates (PlanRefused)."""
    if section.adaptive is None:
        return
    if not isinstance(privacy, ClientPrivacySection):
        raise PlanRefused(
            "adaptive: how many updates are short is counted under client-level "
            'privacy alone: remove it, or add [privacy] with unit = "client"'
        )
    if not isinstance(section.rule, SyncSection) or section.sparse is not None:
        raise PlanRefused(
            "adaptive: a clip that moves is one for all members of a cohort, who "
            'must train from one version of the whole group: take rule "sync" without sparse'
        )


def refuse_rows(section: GroupSection, privacy: Privacy) -> None:
    """Refuses row-blocks under privacy: no noise hides which of them are sent (PlanRefused).

    A single record decides whether its row is touched. DP-SGD and Skellam noise cover values, not
    that choice; hiding it would take an update of every row-block from every client.
    """
    if section.sparse is None or privacy is None:
        return
    whose = "a record" if isinstance(privacy, RecordPrivacySection) else "a client"
    raise PlanRefused(
        f"sparse: which row-blocks are sent tells which rows {whose} touches, and no noise hides "
        "that: remove sparse, so that everybody sends the whole table, or [privacy]"
    )


def refuse_placement(privacy: Privacy, cipher: str, sealed: bool) -> None:
    """Refuses distributed noise, which protects sums alone, under a cipher that hides nothing."""
    if not isinstance(privacy, ClientPrivacySection):
        return
    if privacy.placement == "distributed" and not sealed:
        raise PlanRefused(
            "privacy.placement: distributed noise protects a sum and no single update, and "
            f"cipher {cipher} shows every one: encrypt, or take local"
        )
    if privacy.placement != "distributed" and privacy.honest is not None:
        raise PlanRefused(
            f"privacy.honest: {privacy.placement} noise relies on nobody's share; remove it"
        )


def refuse_client_privacy(
    section: GroupSection, privacy: ClientPrivacySection, own: Bounds, honest: int
) -> None:
    """Refuses a group whose sums the noise of `privacy` would not cover (PlanRefused)."""
    if section.weighting != "uniform":
        raise PlanRefused(
            f'weighting = "{section.weighting}" makes a client\'s influence depend on its '
            "number of examples, which the noise does not cover: client-level privacy needs "
            '"uniform"'
        )
    if section.range is not None:
        raise PlanRefused(
            "range: under client-level privacy it follows from clip, bits and noise; remove it"
        )
    if privacy.placement != "local" and own.most_weight > 1:
        key = "most_weight = 1" if isinstance(section.rule, OwnRuleSection) else "power = 0"
        raise PlanRefused(
            f"rule: {privacy.placement} noise is made for members that all weigh 1, and a heavier "
            f"one would be covered less: set {key}, or take local noise"
        )
    if isinstance(section.rule, PrioritySection) and section.rule.score == "magnitude":
        raise PlanRefused(
            "rule.score: a declared magnitude tells of an update what no noise covers: take "
            '"freshness" under client-level privacy'
        )
    if honest > own.minimum:
        raise PlanRefused(
            f"{honest} members are trusted to add noise, but cohorts of {own.minimum} would be "
            "opened: raise rule.minimum or lower privacy.honest"
        )


# --- codec -------------------------------------------------------------------------


def refuse_codec(section: GroupSection, rounds: bool, versions: int, privacy: Privacy) -> None:
    """Refuses a codec whose updates cannot be added, or feedback that cannot work (PlanRefused)."""
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
            'knows what became of the last one, and so what to add to it: take rule "sync"'
        )
    if versions == 1:
        raise PlanRefused("feedback: one version is made, and what is kept would never be sent")
