"""Key holders that a plan's cipher has no use for: refused with the reason.

What must not live here: what a committee withstands (`policy.explain`).
"""

from __future__ import annotations

from secureps.config.plan import CipherSection
from secureps.crypto.cipher import Opening
from secureps.errors import PlanRefused


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
