"""What policies of `[scaling]` see, made up."""

from typing import Any

from secureps.messages.scaling import ScalingDecided
from secureps.policy.plan import Plan
from secureps.policy.scaling.policies import Observation, Round, Waits
from tests.kits.federations import small_plan
from tests.kits.unset import unset

LIMITS: dict[str, Any] = {
    "most_shards": 4,
    "least_deadline": 0.25,
    "most_deadline": 4.0,
    "least_buffer": 0.1,
}
ROUNDS = {"quorum": 5, "minimum": 5, "deadline": 20.0}


def scaled_plan(rule: Any = ROUNDS, **limits: Any) -> Plan:
    return small_plan(rule=rule, capacity=40, scaling=LIMITS | limits)


def observed(shards: int = 2, spares: int = 1, **changes: Any) -> Observation:
    """Ten members who all come within ten seconds of their round, on shards that cost nothing."""
    came = tuple(float(at) for at in range(1, 11))
    known: dict[str, Any] = {
        "reward": 1.0,
        "lost": 0.0,
        "waits": Waits(clients=10.0, transfer=0.0, shards=0.0, holders=0.0),
        "rounds": (Round(10, came, 10.0),) * 3,
        "shards": tuple(f"shard-{k}" for k in range(shards)),
        "spares": tuple(f"shard-{shards + k}" for k in range(spares)),
    }
    return Observation(**(known | changes))


def decided(**changes: Any) -> ScalingDecided:
    made: ScalingDecided = unset(
        ScalingDecided, **{"deadline": 1.0, "buffer": 1.0, "reward": 1.0, "shards": 2} | changes
    )
    return made
