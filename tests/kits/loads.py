"""What policies of `[scaling]` see, made up."""

from typing import Any

from secureps.messages.scaling import ScalingDecided
from secureps.policy.scaling.policies import Limits, Observation, Round, Waits
from tests.kits.unset import unset

LIMITS = Limits(
    least_shards=1,
    most_shards=4,
    deadline=20.0,
    least_deadline=0.25,
    most_deadline=4.0,
    minimum=5,
    quorum=5,
    extensions=2,
    buffer=20,
    least_buffer=0.1,
)


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
