"""Blocks move away from overloaded shards, and none moves for nothing."""

import math
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.policy.scaling.policies import EVEN, MOST, UNEVEN, WORTH, balance

TWO = {"shard-0": 1.0, "shard-1": 1.0}


def placed(*shards: str) -> dict[str, list[tuple[str, ...]]]:
    """Makes groups of one block each, named by number."""
    return {f"table.{k}": [(shard,)] for k, shard in enumerate(shards)}


def test_a_hot_row_block_leaves_its_shard() -> None:
    held = placed("shard-0", "shard-0", "shard-0", "shard-1")
    found = balance(held, {"table.0": 60.0, "table.1": 50.0, "table.2": 10.0}, TWO)
    assert found is not None
    blocks, reason = found
    assert [(b.group, b.giver, b.taker) for b in blocks] == [("table.0", "shard-0", "shard-1")]
    assert reason == (
        "shard-0 had 2.00 times the work of an even spread: 1 block to others, which leaves 1.00"
    )


def test_an_even_spread_stays() -> None:
    held = placed("shard-0", "shard-1")
    assert balance(held, {"table.0": 60.0, "table.1": 50.0}, TWO) is None
    assert balance(held, {}, TWO) is None, "nothing was sent"


def test_one_block_that_has_all_the_load_gains_nothing_by_moving() -> None:
    held = placed("shard-0", "shard-1")
    assert balance(held, {"table.0": 60.0}, TWO) is None


def test_a_shard_that_is_slow_whatever_it_has_keeps_a_block_by_which_that_is_known() -> None:
    """Without blocks it would seem fast again, and its blocks would move to and fro for ever."""
    names = [f"shard-{k}" for k in range(4)]
    held, costs = placed(*names * 2), dict.fromkeys(names, 1.0) | {"shard-0": 4.0}
    loads = dict.fromkeys(held, 1.0)
    found = balance(held, loads, costs)
    assert found is not None
    (moved,) = found[0]
    assert moved.giver == "shard-0"
    held[moved.group] = [(moved.taker,)]
    assert balance(held, loads, costs) is None


@pytest.mark.parametrize("cost", [5e-324, 1e-308, 1e308, math.inf])
def test_weights_that_no_shard_has_move_nothing_and_end_nothing(cost: float) -> None:
    held = placed("shard-0", "shard-0", "shard-0", "shard-1")
    loads = dict.fromkeys(held, 1e300)
    assert balance(held, loads, dict.fromkeys(TWO, cost)) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000)), min_size=1, max_size=24),
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=4, max_size=4),
    st.integers(1, 2),
)
def test_what_moves_is_there_and_the_busiest_shard_has_less(
    blocks: list[tuple[int, int]], costs: list[float], copies: int
) -> None:
    names = [f"shard-{k}" for k in range(4)]
    held = {
        f"table.{k}": [tuple(names[(at + c) % 4] for c in range(copies))]
        for k, (at, _) in enumerate(blocks)
    }
    loads = {f"table.{k}": float(load) for k, (_, load) in enumerate(blocks)}
    cost = dict(zip(names, costs, strict=True))

    def busiest() -> float:
        """Returns the busiest shard's time relative to an even spread."""
        busy = (sum(loads[g] for g, of in held.items() if s in of[0]) * cost[s] for s in names)
        return max(busy) * sum(1 / c for c in costs) / (copies * sum(loads.values()))

    found = balance(held, loads, cost)
    if found is None:
        return
    before = busiest()
    assert 1 <= len(found[0]) <= MOST
    assert max(Counter((b.group, b.block) for b in found[0]).values()) == 1
    for each in found[0]:
        own = held[each.group][each.block]
        assert each.giver in own
        assert each.taker not in own
        held[each.group][each.block] = tuple(each.taker if s == each.giver else s for s in own)
    assert before > UNEVEN
    assert busiest() <= WORTH * before * (1 + 1e-6)
    told = re.fullmatch(r".* had ([\d.]+) times .*, which leaves ([\d.]+)", found[1])
    assert told is not None
    assert [float(each) for each in told.groups()] == pytest.approx([before, busiest()], abs=0.006)
    assert EVEN < UNEVEN
