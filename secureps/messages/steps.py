"""When the six steps of a version were done, cohort by cohort, as a status and a page show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CohortSteps:
    """When the steps of one cohort were done, in seconds of the run's clock; None: not yet.

    Args:
        version: that it makes; members: how many clients stand in it.
        began: its round opened, or the version before was committed.
        ended: in a word, where it made no version: burnt, spoilt or reopened; and why.
    """

    group: str
    number: int
    version: int
    members: int
    began: float
    closed: float
    held: float | None = None
    opened: float | None = None
    prepared: float | None = None
    committed: float | None = None
    ended: str = ""
    why: str = ""
