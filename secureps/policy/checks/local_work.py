"""The portion of its local work that a slow client does, so that its update arrives in time.

The portion is the largest of 1, 1/2, 1/4, ... with which the client, by its own measurements,
finishes within the target,

    portion * (seconds of training for all of the work) + (seconds of transfer) <= target

but never less than the plan's least. FedProx likewise takes partial work instead of dropping it
(Li et al. 2020, "Federated Optimization in Heterogeneous Networks", section 3.2). The measurements
never leave the client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from secureps.config.plan import PlanSection


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that one contribution took a client, by its own clock.

    Args:
        training: seconds, extrapolated to all of the local work.
        transfer: seconds of pulling the model and pushing the update.
    """

    training: float
    transfer: float


def portion(section: PlanSection, paces: Sequence[Pace], within: float = math.inf) -> float:
    """Returns the part of its local work that a client does next: 1 before any measurement.

    The target is the plan's, or else the shortest deadline of its groups. Under `[scaling]` it is
    also at most `within`, the seconds until the deadline in force, as the invitation says. The next
    contribution is expected to take the mean of the last ones.
    """
    if section.work is None or not paces:
        return 1.0
    target, least = section.work.target_seconds, section.work.least
    if target is None:
        target = min(group.rule.deadline for group in section.group)
    if section.scaling is not None:
        target = min(target, within)
    training = fmean(pace.training for pace in paces)
    transfer = fmean(pace.transfer for pace in paces)
    part = 1.0
    while part > least and part * training + transfer > target:
        part /= 2
    return part
