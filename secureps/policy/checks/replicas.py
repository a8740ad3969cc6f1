"""How many shards hold each block: what a plan cannot have is refused.

What must not live here: which shards they are (`model.placement`).
"""

from __future__ import annotations

from secureps.config.plan import PlanSection
from secureps.errors import PlanRefused


def refuse_replicas(section: PlanSection, noisy_shards: bool) -> None:
    """PlanRefused for more copies than shards, or where copies of a sum would differ."""
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
    if copies > 1 and noisy_shards:
        raise PlanRefused(
            "replicas: each shard draws its own noise, so that copies of a sum would differ: "
            'take replicas = 1, or another privacy.placement than "aggregator"'
        )
