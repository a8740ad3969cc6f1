"""Rendezvous hashing moves as little as it can, and respects weights."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.errors import PlanRefused
from secureps.model import placement
from secureps.model.placement import move_copies, place, place_groups

Held = dict[str, list[tuple[str, ...]]]
"""By group, of every block its nodes."""

KEYS = [f"group/{i}" for i in range(20_000)]


def spread(nodes: dict[str, float]) -> list[str]:
    return [place(key, nodes) for key in KEYS]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 5])
def test_a_node_that_comes_or_goes_moves_only_its_share(count: int) -> None:
    small = {f"shard-{i}": 1.0 for i in range(count)}
    large = small | {"new": 1.0}
    before, after = spread(small), spread(large)
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    # Adding "new" to N nodes, and removing it from N + 1, both move 1 / (N + 1).
    assert len(moved) / len(KEYS) == pytest.approx(1 / (count + 1), rel=0.1)
    assert {new for _, new in moved} == {"new"}
    assert after.count("new") == len(moved)
    gone = f"shard-{count // 2}"
    left = spread({name: weight for name, weight in small.items() if name != gone})
    lost = [old for old, new in zip(before, left, strict=True) if old != new]
    assert len(lost) / len(KEYS) == pytest.approx(1 / count, rel=0.1)
    assert set(lost) == {gone}
    assert gone not in left


def test_weights_are_respected() -> None:
    nodes = {"a": 1.0, "b": 2.0, "c": 5.0}
    counts = Counter(spread(nodes))
    for name, weight in nodes.items():
        p = weight / 8
        sigma = math.sqrt(len(KEYS) * p * (1 - p))
        assert abs(counts[name] - len(KEYS) * p) < 5 * sigma


weights = st.floats(1e-3, 1e3)


def place_copies(
    group: str, blocks: int, nodes: dict[str, float], copies: int
) -> list[tuple[str, ...]]:
    held = place_groups({group: blocks}, nodes, copies)[group]
    return [tuple(each[rank] for each in held) for rank in range(copies)]


def place_group(group: str, blocks: int, nodes: dict[str, float]) -> tuple[str, ...]:
    return place_copies(group, blocks, nodes, 1)[0]


@given(
    key=st.text(),
    nodes=st.dictionaries(st.text(min_size=1), weights, min_size=1, max_size=8),
    scale=st.sampled_from([0.5, 2.0, 1024.0]),
    data=st.data(),
)
def test_order_and_scale_do_not_matter(
    key: str, nodes: dict[str, float], scale: float, data: st.DataObject
) -> None:
    chosen = place(key, nodes)
    assert chosen in nodes
    shuffled = data.draw(st.permutations(list(nodes.items())))
    assert place(key, dict(shuffled)) == chosen
    assert place(key, {name: weight * scale for name, weight in nodes.items()}) == chosen


def test_known_answer() -> None:
    """Stored placements depend on it: a change here moves the blocks of running federations."""
    nodes = {"shard-0": 1.0, "shard-1": 1.0, "shard-2": 2.0}
    assert place_group("rest", 8, nodes) == (
        "shard-1",
        "shard-2",
        "shard-1",
        "shard-2",
        "shard-0",
        "shard-2",
        "shard-0",  # both of shard-1's are placed
        "shard-2",
    )


@given(
    nodes=st.dictionaries(st.text(min_size=1), weights, min_size=1, max_size=8),
    blocks=st.integers(0, 40),
)
def test_no_node_has_more_than_its_share(nodes: dict[str, float], blocks: int) -> None:
    placed = place_group("g", blocks, nodes)
    assert len(placed) == blocks
    for node, weight in nodes.items():
        assert placed.count(node) <= math.ceil(blocks * weight / sum(nodes.values()))


@given(
    nodes=st.dictionaries(st.text(min_size=1), weights, min_size=3, max_size=8),
    blocks=st.integers(0, 40),
)
def test_copies_of_a_block_are_on_different_nodes(nodes: dict[str, float], blocks: int) -> None:
    ranks = place_copies("g", blocks, nodes, 3)
    assert ranks[0] == place_group("g", blocks, nodes)
    assert ranks[:2] == place_copies("g", blocks, nodes, 2)
    assert all(len(set(held)) == 3 for held in zip(*ranks, strict=True))


def test_copies_of_more_nodes_than_there_are_are_refused() -> None:
    with pytest.raises(PlanRefused, match="3 copies of every block lie on as many shards, not 2"):
        place_copies("g", 4, {"a": 1.0, "b": 1.0}, 3)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 2))
def test_groups_of_one_block_are_spread_as_evenly_as_blocks(
    groups: int, count: int, copies: int
) -> None:
    nodes = {f"shard-{k}": 1.0 for k in range(max(count, copies))}
    held = place_groups({f"table.{k}": 1 for k in range(groups)}, nodes, copies)
    load = Counter(each[0] for (each,) in held.values())
    assert max(load.values()) == math.ceil(groups / len(nodes))
    assert all(len(set(each)) == copies for (each,) in held.values())


def test_what_a_node_has_of_other_groups_never_makes_a_group_uneven() -> None:
    nodes = {f"shard-{k}": 1.0 for k in range(4)}
    held = place_groups({"a": 3, "b": 3, "table": 8}, nodes, 1)
    for group, most in (("a", 1), ("b", 1), ("table", 2)):
        assert max(Counter(node for (node,) in held[group]).values()) == most
    load = Counter(node for blocks in held.values() for (node,) in blocks)
    assert sorted(load.values()) == [3, 3, 4, 4]


def test_groups_of_one_block_of_who_goes_are_spread_over_those_that_stay() -> None:
    nodes = {f"shard-{k}": 1.0 for k in range(5)}
    before = place_groups({f"table.{k}": 1 for k in range(40)}, nodes, 1)
    left = {name: weight for name, weight in nodes.items() if name != "shard-0"}
    after = move_copies(before, left, 1)
    assert set(Counter(node for ((node,),) in after.values()).values()) == {10}


def test_bad_nodes_are_refused() -> None:
    with pytest.raises(PlanRefused, match="no shard"):
        place("k", {})
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(PlanRefused, match="'b' has weight"):
            place("k", {"a": 1.0, "b": bad})


@pytest.mark.parametrize("hashed", [bytes(32), b"\xff" * 32])
def test_no_hash_is_at_an_end_of_the_interval(
    hashed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "digest", lambda *_: hashed)
    assert 0.0 < placement._uniform("key", "node") < 1.0
    assert place("key", {"b": 1.0, "a": 2.0}) in {"a", "b"}


# --- blocks that move -------------------------------------------------------------


def placed(blocks: int, nodes: dict[str, float], copies: int) -> Held:
    """Two groups, by the placement that a run is founded with."""
    return {
        group: list(held)
        for group, held in place_groups({"all": blocks, "small": 1}, nodes, copies).items()
    }


def changed(before: Held, after: Held) -> list[tuple[set[str], set[str]]]:
    pairs = ((old, new) for group in before for old, new in zip(before[group], after[group]))
    return [({*old} - {*new}, {*new} - {*old}) for old, new in pairs if {*old} != {*new}]


@given(st.integers(1, 120), st.integers(2, 6), st.integers(1, 3), weights)
def test_who_comes_takes_its_share_and_nobody_else_gains(
    blocks: int, count: int, copies: int, weight: float
) -> None:
    nodes = {f"shard-{i}": 1.0 for i in range(max(count, copies))}
    before = placed(blocks, nodes, copies)
    after = move_copies(before, nodes | {"new": weight}, copies, "new")
    moved = changed(before, after)
    assert all(gained == {"new"} and len(gave) == 1 for gave, gained in moved)
    share = copies * (blocks + 1) * weight / (len(nodes) + weight)
    assert len(moved) <= share
    assert len(moved) == min(math.floor(share), blocks + 1)
    assert all(len(set(each)) == copies for group in after.values() for each in group)


@given(st.integers(1, 120), st.integers(2, 6), st.integers(1, 3))
def test_who_goes_gives_up_its_own_and_nothing_else_moves(
    blocks: int, count: int, copies: int
) -> None:
    nodes = {f"shard-{i}": 1.0 + i % 2 for i in range(max(count, copies + 1))}
    before = placed(blocks, nodes, copies)
    left = {name: weight for name, weight in nodes.items() if name != "shard-0"}
    after = move_copies(before, left, copies)
    held = sum("shard-0" in each for group in before.values() for each in group)
    moved = changed(before, after)
    assert len(moved) == held
    assert all(gave == {"shard-0"} and len(gained) == 1 for gave, gained in moved)
    assert move_copies(after, left, copies) == after, "nothing moves twice"


@given(st.integers(1, 60), st.integers(2, 5))
def test_copies_that_are_gone_are_made_again(blocks: int, count: int) -> None:
    nodes = {f"shard-{i}": 1.0 for i in range(count)}
    before = placed(blocks, nodes | {"gone": 1.0}, 2)
    thin = {g: [tuple(n for n in each if n != "gone") for each in own] for g, own in before.items()}
    after = move_copies(thin, nodes, 2)
    for old, new in zip(thin["all"], after["all"], strict=True):
        assert new[: len(old)] == old, "who has a block keeps it, and its place"
        assert len(set(new)) == 2


def test_who_comes_has_a_share_of_each_group_that_is_large_enough() -> None:
    nodes = {f"shard-{i}": 1.0 for i in range(3)}
    before = place_groups(dict.fromkeys("abc", 40), nodes, 2)
    after = move_copies(before, nodes | {"new": 1.0}, 2, "new")
    for group in "abc":
        counts = Counter(node for each in after[group] for node in each)
        assert counts["new"] == 20
        assert max(counts.values()) <= 28, counts
