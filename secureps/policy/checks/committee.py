"""Key holders that a plan's cipher has no use for, or that could not be asked: refused with why."""

from __future__ import annotations

from collections.abc import Mapping

from secureps.config.plan import CipherSection
from secureps.crypto.cipher import Opening
from secureps.crypto.sharing import Committee
from secureps.errors import PlanRefused
from secureps.messages.orders import MESSAGE_LIMIT
from secureps.policy.envelope_size import order_bytes
from secureps.policy.rules.rule import Bounds


def refuse_holders(section: CipherSection, opening: Opening) -> None:
    """PlanRefused for holders, or a threshold, where no committee opens sums."""
    if opening is Opening.HOLDER and section.holders not in (None, 1):
        raise PlanRefused(
            f"cipher.holders: {section.name} has one holder of the whole secret key; "
            f"{section.holders} were asked for"
        )
    if opening is not Opening.COMMITTEE and section.threshold is not None:
        raise PlanRefused(
            f"cipher.threshold: {section.name} has no committee; remove it, or take rlwe"
        )


def refuse_crowded(committee: Committee, bounds: Mapping[str, Bounds]) -> None:
    """PlanRefused for cohorts of which a holder could not be told all members in one message."""
    for group, own in bounds.items():
        size, none = (order_bytes(committee, count, group) for count in (own.most, 0))
        if size > MESSAGE_LIMIT:
            fit = (MESSAGE_LIMIT - none) * own.most // (size - none)
            raise PlanRefused(
                f"cohorts of {group} have up to {own.most} members, whose envelopes for "
                f"{len(committee.holders)} key holders may take {size} bytes, and no message to a "
                f"holder has more than {MESSAGE_LIMIT}: let the rule take at most {fit} (most, "
                "buffer, or cipher.capacity), or take fewer holders"
            )
