"""A shard's noise follows from its seed and the whole cohort, and never repeats.

It is drawn once, and kept sealed until it is used.
"""

import dataclasses

import numpy as np
import pytest

from secureps.crypto.sampling import SecretSeed, Seed
from secureps.errors import InternalError, KitError, Malformed
from secureps.messages.encoding import payload_digest
from secureps.messages.records import RunPinned
from secureps.messages.requests import Prepared
from secureps.messages.shard_records import SumsMade
from secureps.messages.submission import Cohort, cohort_digest
from secureps.policy.plan import Plan
from secureps.roles.shard.state import NoiseDamaged, ShardState, noise_key, sum_key
from secureps.service.shard.worker import ShardNoise
from secureps.store.spool import MemorySpool
from tests.kits.roles_kit import (
    ADDRESSES,
    SCHEMA,
    SHARDS,
    make_cohort,
    make_placement,
    make_plan,
    make_run,
)

PRIVACY = {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-5, "budget": 500.0}


def noisy(cipher: str = "plain") -> Plan:
    group = {"weighting": "uniform", "rule": {"quorum": 3, "minimum": 2}}
    return make_plan(cipher, group=[group], privacy=PRIVACY | {"placement": "aggregator"})


SEED = SecretSeed(bytes(range(32)))
COHORT = make_cohort()


def drawn(cohort: Cohort = COHORT, block: int = 0, seed: Seed = SEED) -> bytes:
    return kept(seed).seal(cohort, block)


def test_a_sum_that_is_made_again_gets_the_same_noise_and_no_other_does() -> None:
    """The same noise would cancel in the difference of two sums."""
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


def test_noise_is_in_every_value_and_on_the_grid() -> None:
    plan = noisy()
    layout = plan.layout(SCHEMA).group("all")
    values = np.frombuffer(drawn(), "<u2").astype(int)
    most = plan.grid("all", layout.size).most
    assert len(values) == layout.slots(0)
    noise = values - most
    assert noise.any()
    assert abs(noise).max() <= most


def test_it_is_added_only_where_a_plan_wants_it_and_there_is_a_key() -> None:
    with pytest.raises(InternalError, match="where the plan protects whole clients"):
        kept(plan=make_plan()).seal(COHORT, 0)
    for keys in ({}, {"a": b"x", "b": b"y"}):
        with pytest.raises(KitError, match="needs one holder's key in the shard's kit"):
            dataclasses.replace(kept(plan=noisy("bfv")), holder_keys=keys).seal(COHORT, 0)


def kept(seed: Seed = SEED, plan: Plan | None = None) -> ShardNoise:
    plan = plan or noisy()
    state = ShardState(SHARDS[0])
    state.apply(RunPinned(make_run(plan), make_placement(plan), ADDRESSES))
    return ShardNoise(state, MemorySpool(), seed, {})


def key(noise: ShardNoise, cohort: Cohort = COHORT, block: int = 0) -> str:
    about = cohort_digest(noise.state.run, cohort)
    return noise_key(cohort.group, cohort.number, block, about)


def test_it_is_drawn_once_for_a_cohort() -> None:
    noise = kept()
    noise.draw(COHORT, (0, 2), 1)
    assert noise.spool.keys() == sorted(key(noise, block=block) for block in (0, 2))
    first = noise.reader(COHORT)(0)
    assert first is not None
    assert bytes(first) == drawn()
    later = dataclasses.replace(noise, seed=SecretSeed(bytes(32)))
    later.draw(COHORT, (0, 2), 2)
    assert later.reader(COHORT)(0) == first, "another seed draws nothing that is there"
    assert kept(plan=make_plan()).reader(COHORT)(0) is None, "where the plan wants none"


def test_what_is_damaged_is_drawn_again_before_a_sum_and_given_to_nobody() -> None:
    noise = kept()
    noise.draw(COHORT, (0,), 1)
    whole = noise.spool.get(key(noise))
    for harm in (whole[:-1], bytes([whole[0] ^ 1]) + whole[1:], b""):
        noise.spool.put(key(noise), harm)
        assert noise.read(key(noise)) is None
        with pytest.raises(NoiseDamaged, match="the noise of block 0 of cohort 0 of all is gone"):
            noise.reader(COHORT)(0)
        noise.draw(COHORT, (0,), 1)
        assert noise.spool.get(key(noise)) == whole


def test_what_another_shard_drew_is_taken_as_it_is() -> None:
    ours, theirs = kept(), kept(SecretSeed(bytes(32)))
    theirs.draw(COHORT, (0,), 1)
    served = theirs.read(key(theirs))
    assert served is not None
    with pytest.raises(Malformed, match="noise came without its digest, or with another"):
        ours.take(key(ours), served[:-1])
    ours.take(key(ours), served)
    assert ours.reader(COHORT)(0) == theirs.reader(COHORT)(0)
    late = drawn()
    ours.take(key(ours), late + payload_digest(late))
    assert ours.read(key(ours)) == served, "what came first may be in a sum already"


def test_what_belongs_to_no_cohort_any_more_goes() -> None:
    """Cohort 1 was dissolved, 2 replaced another cohort of its number, and 3 may be closed."""
    noise = kept()
    cohorts = [make_cohort(number=number, version=2) for number in range(4)]
    another = dataclasses.replace(cohorts[2], members=cohorts[2].members[:1])
    for cohort in (*cohorts, another):
        noise.draw(cohort, (0, 2), 1)
        noise.spool.put(sum_key("all", cohort.number, 0), b"sum")
    noise.forget()
    assert len(noise.spool.keys()) == 14, "nothing is on record: each may be wanted"
    noise.state.apply(SumsMade(cohorts[2], (b"",) * 2))
    noise.forget("other")
    assert len(noise.spool.keys()) == 14
    noise.forget("all")
    left = [key(noise, cohort, block) for cohort in cohorts[2:] for block in (0, 2)]
    left += [sum_key("all", number, 0) for number in (2, 3)]
    assert noise.spool.keys() == sorted(left)
    noise.state.apply(Prepared("s", "all", 2, (b"",) * 2, b"", cohort=3))
    noise.forget()
    assert noise.spool.keys() == sorted(k for k in left if "/2/" in k[:10])
