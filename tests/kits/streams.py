"""Small federations without rounds: members of several speeds, in virtual time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from secureps.client.trainer import Trainer
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.scenario.delays import generator
from tests.kits.federations import Walker, small_federation, small_plan

SSP = {"name": "ssp", "slack": 2}
BUFFERED = {"name": "buffered", "buffer": 5, "max_staleness": 4}
PRIORITY = {"name": "priority", "buffer": 5, "pool": 6, "max_staleness": 4, "ageing": 30.0}
ASYNC = {"name": "async"}


def stream_plan(cipher: str, rule: dict[str, Any], **changes: Any) -> Plan:
    return small_plan(cipher, rule, capacity=40, **changes)


def seconds(name: str, task: object) -> float:
    """How long a client trains: some are three times as fast as others, and none is regular."""
    aims = getattr(task, "aims", None)
    if not aims:
        return 0.0
    aim = aims[0]
    slow = 1 + int(name[-1]) % 3
    draw = generator(5, name, 100 * aim.version + aim.step, "train").random()
    return float(slow * (1.0 + draw))


def stream(
    plan: Plan,
    folder: Path,
    clients: int = 6,
    conditions: Conditions | None = None,
    cost: Callable[[str, object], float] = seconds,
    kind: Callable[[int], Trainer] = Walker,
) -> Simulation:
    return small_federation(plan, folder, conditions, clients=clients, kind=kind, cost=cost)
