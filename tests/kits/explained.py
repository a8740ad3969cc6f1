"""How plans are explained in tests: by a service of round numbers."""

from collections.abc import Mapping

from secureps.policy.explain import explanation
from secureps.policy.explain.explanation import Explanation
from secureps.policy.memory import Service
from secureps.policy.plan import Plan

SERVICE = Service(
    shards=("shard-0", "shard-1"),
    clients=4,
    program=1000,
    connection=500,
    stream=100,
    threads=12,
    streams=8,
    piece=1 << 20,
    in_flight=64 << 20,
    shares=3,
)


def explain(plan: Plan, sizes: Mapping[str, int] | None) -> Explanation:
    return explanation.explain(plan, sizes, SERVICE)
