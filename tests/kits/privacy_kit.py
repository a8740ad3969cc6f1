"""Federations under client-level privacy, with a clip that stays or one that follows, for tests."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.trainer import FitConfig, FitResult
from secureps.messages.charge import Charge, Release
from secureps.messages.requests import Prepared
from secureps.policy.plan import Plan
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.ledger import Ledger
from secureps.privacy.mechanism import Words
from secureps.run.simulate.simulation import Simulation
from tests.kits.cheats import journalled
from tests.kits.federations import Tensors, Walker, small_plan

PRIVACY = {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-5, "budget": 500.0}
CLIENTS = 6
SIGMAS = 5
"""How far a measured variance may lie from the promised one: 1 run in a million by chance."""


class Still(Walker):
    """A trainer that learns nothing: what is published is the noise and nothing else."""

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        self.fits += 1
        return FitResult(dict(parameters), 10, {}, 1)


class Restless(Walker):
    """Never does the same twice, as a training that seeds from the operating system."""

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        result = super().fit(parameters, config)
        moved = result.parameters["head.bias"] + np.float32(0.01 * self.fits)
        return replace(result, parameters=result.parameters | {"head.bias": moved})


def least_cipher(placement: str) -> str:
    """Shares of noise are no protection in the clear."""
    return "bfv" if placement == "distributed" else "plain"


def private_plan(placement: str, cipher: str = "bfv", **changes: Any) -> Plan:
    group = {
        "clip": 1.0,
        "bits": 16,
        "weighting": "uniform",
        "rule": {"quorum": CLIENTS, "minimum": 5, "deadline": 10.0, "extensions": 0},
    }
    privacy = PRIVACY | {"placement": placement}
    return small_plan(
        cipher, **({"group": [group], "privacy": privacy, "block_size": 4096} | changes)
    )


def facts_of(ledger: Ledger, party: str) -> tuple[Charge | Release, ...]:
    """Everything on record of one party, in order."""
    return tuple(fact for fact in ledger.facts if fact.party == party)


def privatize(
    mechanism: ClientMechanism, update: NDArray[np.float32], rounding: Words, noise: Words
) -> NDArray[np.int64]:
    """What a client seals of a clipped update."""
    return mechanism.add_noise(mechanism.round_update(update, rounding), noise)


VALUES = 217
"""Of the walkers' group; the scale lies behind them."""


def group(**changes: Any) -> dict[str, Any]:
    rule = {"quorum": 6, "minimum": 5, "deadline": 10.0, "extensions": 0}
    known = {"clip": 1.0, "bits": 16, "weighting": "uniform", "rule": rule, "adaptive": {}}
    return known | changes


def adaptive_plan(placement: str, cipher: str = "bfv", **changes: Any) -> Plan:
    """Blocks of 64 on two shards: one has the scale, the other is told."""
    return private_plan(placement, cipher, **({"group": [group()], "block_size": 64} | changes))


def scales(simulation: Simulation) -> dict[int, float]:
    """Those of every version, as the coordinator journalled them."""
    found = journalled(simulation, Prepared)
    return {record.version: record.scale for record in found if record.scale is not None}
