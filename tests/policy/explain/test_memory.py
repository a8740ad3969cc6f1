"""A shard's predicted memory follows from the plan; `processes/test_memory.py` measures it."""

from dataclasses import replace
from typing import Any

import pytest

from secureps.errors import ConfigError
from secureps.policy.memory import MemoryUse, Service, footprint, worst_footprint
from secureps.policy.plan import Plan
from tests.kits import explained
from tests.kits.roles_kit import make_plan

RULE = {"quorum": 3, "minimum": 2, "most": 4}
SERVICE = replace(explained.SERVICE, shards=("shard-0",), clients=3)


def need(plan: Plan, values: int, service: Service = SERVICE) -> MemoryUse:
    return footprint(plan, plan.lay_out_sizes({"all": values}), service)


def test_every_part_is_counted() -> None:
    made = need(make_plan("plain", group=[{"rule": RULE}]), 64)
    # four blocks of 16 values, two bytes each; four members at most
    assert made == MemoryUse(
        shards=1,
        clients=3,
        memory=1000 + 3 * 4 * 64 + (16 * 8 + 16 * 8) + 12 * 2 * 32 + 3 * 128,
        program=1000,
        state=3 * 4 * 64,
        work=16 * 8 + 16 * 8,
        uploads=12 * 32 + 12 * 32,
        connections=3 * 128,
        disk=4 * 4 * 32,
        files=3 * 4 * 64,
        checkpoints=4 * 4 * 64,  # of the first two versions and the last, and one being made
    )


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 5),
        ({"keep": 1}, 3),
        ({"keep": 0}, 102),
        ({"keep": 0, "checkpoint_every": 50}, 4),
        ({"keep": 9, "checkpoint_every": 50}, 4),
    ],
)
def test_checkpoints_that_stay_are_counted(changes: dict[str, Any], count: int) -> None:
    made = need(make_plan("plain", group=[{"rule": RULE}], versions=100, **changes), 64)
    assert made.checkpoints == count * 4 * 64


def test_copies_are_counted_where_they_lie() -> None:
    """Both shards hold all four blocks; clients send half to each, and each forwards its half."""
    service = replace(SERVICE, shards=("shard-0", "shard-1"))
    rule = [{"rule": RULE}]
    alone, made = (
        need(make_plan("plain", group=rule, replicas=copies), 64, service) for copies in (1, 2)
    )
    assert (made.state, made.disk) == (3 * 4 * 64, 4 * 4 * 32)
    assert (alone.state, alone.disk) == (made.state // 2, made.disk // 2)
    assert made.connections == alone.connections
    assert made.uploads == alone.uploads + service.streams * 32


@pytest.mark.parametrize(
    ("scaling", "memory", "left"),
    [
        (None, None, 4),
        ({"policy": "fixed"}, None, 4),
        ({"policy": "rule", "least_shards": 4}, None, 4),
        ({"policy": "rule", "least_shards": 2}, None, 2),
        ({"policy": "fitted"}, None, 1),
        ({"policy": "fitted"}, 6000, 1),
    ],
)
def test_with_the_fewest_shards_that_the_load_may_leave_one_needs_more(
    scaling: dict[str, object] | None, memory: int | None, left: int
) -> None:
    """Within a limit, of what the one version that is made takes."""
    table = {"rule": RULE}
    plan = make_plan("plain", group=[table], shards=4, scaling=scaling)
    service = replace(SERVICE, shards=tuple(f"shard-{i}" for i in range(4)), memory=memory)
    groups = plan.lay_out_sizes({"all": 960})
    made = worst_footprint(plan, groups, service)
    assert made.shards == left
    assert made == footprint(plan, groups, replace(service, shards=service.shards[:left]))
    assert left == 4 or made.state > footprint(plan, groups, service).state


def test_what_clients_do_not_pull_yet_is_counted_and_so_are_differences() -> None:
    """Shards keep exact values of every version, and differences up to the length of a block."""
    plan = make_plan("plain", group=[{"rule": RULE, "pull_bits": 4}])
    full, last = 1 + 2 * 4, 1 + 2 * 4  # of 16 and of 12 values
    # seven are shorter than the full block, five shorter than the last one
    assert need(plan, 60).state == 3 * 4 * 60 * 2 + 3 * 7 * full + 5 * last


@pytest.mark.parametrize(
    ("memory", "state"), [(None, 3 * 240), (1 << 20, 240), (240, 240), (239, 0)]
)
def test_within_a_limit_only_what_is_made_is_in_the_process(memory: int | None, state: int) -> None:
    """A version that does not fit is made in a file."""
    plan, service = make_plan(group=[{"rule": RULE}]), replace(SERVICE, memory=memory)
    made = need(plan, 60, service)
    assert (made.state, made.files, made.limit) == (state, 3 * 240, memory)
    assert made.memory == need(plan, 60).memory - 3 * 240 + state


def test_too_little_is_refused() -> None:
    with pytest.raises(ConfigError, match="too little"):
        need(make_plan(), 60, replace(SERVICE, memory=63))


def test_ciphertexts_are_summed_in_memory() -> None:
    assert need(make_plan("bfv"), 60).work == 2 * 65536


def test_ciphertexts_of_the_committee_are_summed_in_memory() -> None:
    """An element of 2,048 words has 53 bits per word on arrival, 64 in a sum."""
    made = need(make_plan("rlwe", group=[{"rule": RULE}]), 60)
    assert made.work == 2048 * 8 + 2048 * 53 // 8
    assert made.disk == 4 * 4 * 2048 * 53 // 8
    assert made.uploads == 12 * 13_568 + 12 * 13_568


def test_the_busiest_of_several_shards_counts() -> None:
    plan = make_plan("plain")
    one, two = need(plan, 60), need(plan, 60, replace(SERVICE, shards=("shard-0", "shard-1")))
    assert one.state / 2 <= two.state < one.state
    assert one.disk / 2 <= two.disk < one.disk


def test_uploads_are_bounded_by_threads_and_by_the_budget() -> None:
    plan = make_plan("bfv", block_size=1 << 18)
    sealed, values = 8 << 18, 10 << 18
    few = need(plan, values, replace(SERVICE, clients=1))
    assert few.uploads == 8 * (sealed + (1 << 20))
    many, more = (need(plan, values, replace(SERVICE, clients=n)) for n in (50, 500))
    assert many.uploads == more.uploads == 12 * (sealed + (1 << 20))
    tight = need(plan, values, replace(SERVICE, clients=50, in_flight=7 << 20))
    assert tight.uploads == (7 << 20) + (12 << 20)
    large = need(plan, values, replace(SERVICE, clients=50, in_flight=3 << 20))
    assert large.uploads == 3 * sealed + (12 << 20), "there is always room for three blocks"
    assert (many.connections, more.connections) == (50 * 1300, 500 * 1300)
