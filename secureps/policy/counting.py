"""How much a client counts: by which public number, up to which bound, how precisely.

The number stands in the client's signed receipt. An update is scaled by its share, the number over
the bound, before it is rounded, so the bound must be one for all: it is the plan's, and without one
all count alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from secureps.config.plan import (
    GroupSection,
    PlanSection,
    RecordPrivacySection,
)
from secureps.errors import Malformed, PlanRefused
from secureps.messages.submission import Cohort
from secureps.policy.checks.evaluation import evaluation_group

MOST_EXAMPLES = 1 << 40
"""Beyond this no bound is stated: whoever has more is mistaken."""

FEW_BITS = 8
"""Of a cohort's mean: fewer are warned of, where weights have taken some."""


def refuse_unbounded(section: GroupSection) -> None:
    """Refuses clients that count by their examples where the plan has no bound (PlanRefused)."""
    if section.weighting == "examples" and section.most_examples is None:
        raise PlanRefused(
            'weighting = "examples" needs most_examples: about how many examples the largest '
            "client has, for one that has more counts as with so many; or take "
            'weighting = "uniform", by which all count alike'
        )


def bound(section: GroupSection) -> int:
    """The most that a client of a group counts by; 1 where all count alike."""
    return 1 if section.weighting == "uniform" else section.most_examples or 1


def check_counted(section: GroupSection, whose: object, examples: int) -> None:
    """Refuses a public number beyond the bound, or below 1 (Malformed).

    It would make its client's update stand out of the mean. `whose` begins the refusal.
    """
    most = bound(section)
    if not 1 <= examples <= most:
        raise Malformed(
            f"{whose}: it counts as {examples} examples, and a client of this group counts as 1 "
            f"to {most}"
        )


def shares_in(section: GroupSection, cohort: Cohort) -> Fraction:
    """Computes exactly what a cohort's sum is divided by: members' shares times their weights."""
    counted = sum(member.weight * member.examples for member in cohort.members)
    return Fraction(counted, bound(section))


def counts_by_public_number(section: PlanSection) -> bool:
    """Tells whether clients count by a number of the site's or the plan's, not by their records.

    Then nothing that a client sends depends on how many records it has exactly.
    """
    privacy = section.privacy
    return isinstance(privacy, RecordPrivacySection) and privacy.adjacency == "add-or-remove"


def publishes_exact_counts(section: PlanSection) -> bool:
    """Tells whether clients publish the exact number of their examples, in any group."""
    return not counts_by_public_number(section) and any(
        group.weighting == "examples" for group in section.group
    )


def public_number(section: PlanSection, own: int | None) -> int | None:
    """The number of records that a client counts by; None where it counts what it has.

    Args:
        own: that of the client's own settings, which goes before the plan's.
    Raises:
        PlanRefused: its records may not be counted, and neither says a number.
    """
    if own is not None or not counts_by_public_number(section):
        return own
    privacy = section.privacy
    assert isinstance(privacy, RecordPrivacySection)
    if privacy.records is None:
        raise PlanRefused(
            "privacy.records: that a record was added or removed must not show in how much a "
            "client counts, so it counts by a public number: state about how many records a "
            'client has (or each client its own, by --records), or set adjacency = "zero-out", '
            "under which exact numbers are public"
        )
    return privacy.records


def publishes_counts(section: PlanSection) -> bool:
    """Tells whether receipts have the number that a client counts by."""
    groups = (*section.group, evaluation_group(section))
    return any(group is not None and group.weighting == "examples" for group in groups)


def describe_public(section: PlanSection, own: int | None) -> tuple[str, ...]:
    """Tells a client which of its numbers is public, and to whom; nothing where all count alike.

    Args:
        own: that of the client's own settings.
    Raises:
        PlanRefused: as `public_number`.
    """
    if not publishes_counts(section):
        return ()
    number = public_number(section, own)
    how, own_way = "by how many examples it has", "; --records N counts by a number of your own"
    if number is not None:
        how, own_way = f"as {number} examples", ""
    return (
        f"this client counts {how}, and that number is public: the coordinator, the shards and the "
        f"key holders read it in its receipts{own_way}",
    )


def remarks(section: GroupSection, of: str, number: int) -> tuple[str, ...]:
    """Says what a client should know of how it counts.

    Args:
        of: ends a phrase with the group's name, or nothing.
        number: what the client counts by.
    """
    most, members = bound(section), section.rule.minimum
    share, found = min(number, most) / most, []
    if number > most:
        found.append(
            f"this client counts as if it had {most} examples, not {number}: more counts no more, "
            f"by the plan's most_examples{of}"
        )
    left = bits_left(section.bits, share * members, members)
    if is_few(left, section.bits):
        found.append(
            f"about {max(0.0, left):.1f} of {section.bits} bits{of} are left in a mean of "
            f"{members} clients like this one, whose {number} examples are few of {most}: ask for "
            "a plan with a smaller most_examples, or with more bits"
        )
    return tuple(found)


def is_few(left: float, bits: int) -> bool:
    """Tells whether weights leave few of the bits that a plan asks for."""
    return left < min(FEW_BITS, bits - 0.5)


def shares_of(section: GroupSection, numbers: Sequence[int]) -> list[float]:
    """Divides these clients' numbers, 1 or more, by the bound of their group."""
    most = bound(section)
    return [min(number, most) / most for number in numbers]


def bits_left(bits: int, shares: float, members: int) -> float:
    """Computes how many bits of a group's integers are left in a cohort's mean.

    Every member's rounding is an independent error of about a step; the mean divides their sum by
    the sum of weights.

    Args:
        shares: the sum of the shares of so many members.
    """
    return bits + math.log2(shares) - math.log2(members) / 2
