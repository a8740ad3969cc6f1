"""The weight of a client's update: which public number it is, its bound, and its precision.

The number stands in the client's signed receipt. Before an update is rounded it is scaled by the
client's share, which is the number divided by a bound. The bound is the plan's, because all clients
must divide by the same one; without a bound all clients count alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from secureps.config.plan import GroupSection, PlanSection, RecordPrivacySection
from secureps.errors import Malformed, PlanRefused
from secureps.messages.submission import Cohort
from secureps.policy.checks.evaluation import evaluation_group

MOST_EXAMPLES = 1 << 40
"""The largest bound that a plan may state."""

FEW_BITS = 8
"""`check` warns of a cohort's mean that has fewer bits left than this."""


def refuse_unbounded(section: GroupSection) -> None:
    if section.weighting == "examples" and section.most_examples is None:
        raise PlanRefused(
            'weighting = "examples" needs most_examples: about how many examples the largest '
            "client has, for one that has more counts as with so many; or take "
            'weighting = "uniform", by which all count alike'
        )


def bound(section: GroupSection) -> int:
    """Returns the most that a client of a group counts by; 1 where all count alike."""
    return 1 if section.weighting == "uniform" else section.most_examples or 1


def check_counted(section: GroupSection, whose: object, examples: int) -> None:
    """Refuses a public number below 1 or above the bound (Malformed).

    With such a number a client's update would stand out of the mean. `whose` begins the refusal.
    """
    most = bound(section)
    if not 1 <= examples <= most:
        raise Malformed(
            f"{whose}: it counts as {examples} examples, and a client of this group counts as 1 "
            f"to {most}"
        )


def shares_in(section: GroupSection, cohort: Cohort) -> Fraction:
    """Computes exactly the divisor of a cohort's sum: its members' shares times their weights."""
    counted = sum(member.weight * member.examples for member in cohort.members)
    return Fraction(counted, bound(section))


def counts_by_public_number(section: PlanSection) -> bool:
    """Tells whether clients count by a stated number instead of the number of their records.

    Then nothing that a client sends depends on exactly how many records it has.
    """
    privacy = section.privacy
    return isinstance(privacy, RecordPrivacySection) and privacy.adjacency == "add-or-remove"


def publishes_exact_counts(section: PlanSection) -> bool:
    """Tells whether clients publish the exact number of their examples, in any group."""
    return not counts_by_public_number(section) and any(
        group.weighting == "examples" for group in section.group
    )


def public_number(section: PlanSection, own: int | None) -> int | None:
    """Returns the stated number that a client counts by; None where it counts its own examples.

    A number of its `own` settings overrides the plan's. PlanRefused if its records may not be
    counted, and neither states a number.
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
    groups = (*section.group, evaluation_group(section))
    return any(group is not None and group.weighting == "examples" for group in groups)


def describe_public(section: PlanSection, own: int | None) -> tuple[str, ...]:
    """Tells a client which of its numbers is public, and to whom; empty where all count alike."""
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
    """Returns warnings for a client that counts by `number`; `of` ends a phrase with its group."""
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
    """Tells whether weights leave too few of the bits that a plan asks for."""
    return left < min(FEW_BITS, bits - 0.5)


def shares_of(section: GroupSection, numbers: Sequence[int]) -> list[float]:
    most = bound(section)
    return [min(number, most) / most for number in numbers]


def bits_left(bits: int, shares: float, members: int) -> float:
    """Computes how many bits of a group's integers are left in a cohort's mean.

    Every member's rounding adds an independent error of about a step. The mean divides their sum by
    the sum of weights; `shares` is the sum of all members' shares.
    """
    return bits + math.log2(shares) - math.log2(members) / 2
