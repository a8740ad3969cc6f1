"""A shard's own noise follows from its seed and the whole cohort, and is never the same twice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from secureps.crypto.sampling import SecretSeed, Seed
from secureps.errors import InternalError, KitError
from secureps.messages.submission import Cohort
from secureps.policy.plan import Plan
from secureps.service.shard.noise import ShardNoise
from tests.kits.roles_kit import SCHEMA, make_cohort, make_plan

PRIVACY = {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-5, "budget": 500.0}


def noisy(cipher: str = "plain") -> Plan:
    group = {"weighting": "uniform", "rule": {"quorum": 3, "minimum": 2}}
    return make_plan(cipher, group=[group], privacy=PRIVACY | {"placement": "aggregator"})


SEED = SecretSeed(bytes(range(32)))
COHORT = make_cohort()


def drawn(cohort: Cohort = COHORT, block: int = 0, seed: Seed = SEED) -> bytes:
    plan = noisy()
    return ShardNoise(seed, {}).sealed(plan, plan.layout(SCHEMA).group("all"), cohort, block)


def test_a_sum_that_is_made_again_gets_the_same_noise_and_no_other_does() -> None:
    """Two sums under the same noise tell their difference, exactly."""
    first, *others = COHORT.members
    cohorts = [
        dataclasses.replace(COHORT, members=tuple(others)),
        dataclasses.replace(COHORT, members=(dataclasses.replace(first, update=b"x"), *others)),
        dataclasses.replace(COHORT, members=(dataclasses.replace(first, weight=2), *others)),
        dataclasses.replace(COHORT, number=COHORT.number + 1),
        dataclasses.replace(COHORT, version=COHORT.version + 1),
    ]
    made = [drawn(), *(drawn(cohort) for cohort in cohorts), *(drawn(block=b) for b in (1, 2))]
    made.append(drawn(seed=SecretSeed(bytes(32))))
    assert len(set(made)) == len(made)
    assert drawn() == made[0]


def test_noise_is_no_member_that_counts() -> None:
    plan = noisy()
    layout = plan.layout(SCHEMA).group("all")
    values = np.frombuffer(drawn(), "<u2").astype(int)
    most = plan.grid("all", layout.size).most
    assert len(values) == layout.slots(0)
    assert not values[: layout.weight_slots].any()
    noise = values[layout.weight_slots :] - most
    assert noise.any()
    assert abs(noise).max() <= most


def test_it_is_added_only_where_a_plan_wants_it_and_there_is_a_key() -> None:
    layout = make_plan().layout(SCHEMA).group("all")
    with pytest.raises(InternalError, match="where the plan protects whole clients"):
        ShardNoise(SEED, {}).sealed(make_plan(), layout, COHORT, 0)
    for keys in ({}, {"a": b"x", "b": b"y"}):
        with pytest.raises(KitError, match="needs one holder's key in the shard's kit"):
            ShardNoise(SEED, keys).sealed(noisy("bfv"), layout, COHORT, 0)
