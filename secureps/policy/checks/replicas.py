"""How many shards hold each block: what a plan cannot have is refused.

What must not live here: which shards they are (`model.placement`).
"""

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
