"""Whether a plan can have its `[scaling]`.

What must not live here: what it decides while a run trains (`policy.scaling`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from secureps.errors import PlanRefused

if TYPE_CHECKING:  # a status knows the folder of a run, and reads no plan
    from secureps.config.plan import PlanSection


def most_shards(section: PlanSection) -> int:
    """The shards that a run has at most: the plan's, or what its `[scaling]` allows."""
    own = section.scaling
    return section.shards if own is None or own.most_shards is None else own.most_shards


def refuse_unsound_scaling(section: PlanSection) -> None:
    """PlanRefused if the shards that a run begins with are not between the least and the most."""
    own = section.scaling
    if own is None:
        return
    if not own.least_shards <= section.shards <= most_shards(section):
        mend = "lower it, or raise scaling.most_shards"
        if section.shards < own.least_shards:
            mend = "raise it, or lower scaling.least_shards"
        raise PlanRefused(
            f"scaling: a run begins with shards = {section.shards}, and they are to be "
            f"{own.least_shards} to {most_shards(section)}: {mend}"
        )
    if own.least_shards < section.replicas:
        raise PlanRefused(
            f"scaling.least_shards = {own.least_shards}: every block lies on {section.replicas} "
            "shards, so there are as many at least"
        )
