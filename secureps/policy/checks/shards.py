"""How many shards a plan begins with, may come to by its `[scaling]`, and has of each block."""

from __future__ import annotations

from secureps.config.plan import PlanSection
from secureps.errors import PlanRefused


def refuse_replicas(section: PlanSection) -> None:
    """PlanRefused for more copies than shards, or a wait for shards that nobody has copies of."""
    copies = section.replicas
    if copies > section.shards:
        raise PlanRefused(
            f"replicas: {copies} copies of every block lie on as many shards, and there are "
            f"{section.shards}: raise shards to {copies} or lower replicas"
        )
    if copies == 1 and section.shards_wait != PlanSection.model_fields["shards_wait"].default:
        raise PlanRefused(
            "shards_wait: without copies (replicas = 1) no shard is ever left out; remove it"
        )


def refuse_unsound_scaling(section: PlanSection) -> None:
    """PlanRefused if the shards that a run begins with are not between the least and the most."""
    own = section.scaling
    if own is None:
        return
    if not own.least_shards <= section.shards <= section.most_shards:
        mend = "lower it, or raise scaling.most_shards"
        if section.shards < own.least_shards:
            mend = "raise it, or lower scaling.least_shards"
        raise PlanRefused(
            f"scaling: a run begins with shards = {section.shards}, and they are to be "
            f"{own.least_shards} to {section.most_shards}: {mend}"
        )
    if own.least_shards < section.replicas:
        raise PlanRefused(
            f"scaling.least_shards = {own.least_shards}: every block lies on {section.replicas} "
            "shards, so there are as many at least"
        )
