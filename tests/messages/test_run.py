"""A placement says which shards hold a block, and which blocks a shard holds."""

import pytest

from secureps.messages.run import GroupPlacement, Placement, Replicas, _views

GROUPS = (GroupPlacement("a", ("x", "y", "x")), GroupPlacement("b", ("y",)))
COPIES = (GroupPlacement("a", ("y", "", "z")), GroupPlacement("b", ("z",)))
PLACEMENT = Placement(1, ("x", "y", "z"), GROUPS, Replicas(COPIES))


def test_holders_of_a_block_are_its_primary_and_then_its_replicas() -> None:
    assert [PLACEMENT.holders("a", block) for block in range(3)] == [
        ("x", "y"),
        ("y",),
        ("x", "z"),
    ]
    assert PLACEMENT.holders("a", -1) == ("x", "z")
    assert PLACEMENT.of("a") == GROUPS[0]
    assert PLACEMENT.ranks("b") == (GROUPS[1], COPIES[1])
    for ask in (PLACEMENT.of, PLACEMENT.ranks):
        with pytest.raises(KeyError, match="c"):
            ask("c")
    with pytest.raises(IndexError):
        PLACEMENT.holders("a", 3)


def test_a_shard_holds_blocks_as_primary_or_as_replica() -> None:
    held = {shard: PLACEMENT.blocks_of("a", shard) for shard in ("x", "y", "z", "w")}
    assert held == {"x": (0, 2), "y": (0, 1), "z": (2,), "w": ()}
    alone = Placement(1, ("x", "y"), GROUPS)
    assert alone.blocks_of("a", "y") == (1,)
    assert alone.holders("a", 1) == ("y",)


def test_who_leaves_is_followed_by_the_next_in_order() -> None:
    left = PLACEMENT.without("x")
    assert (left.epoch, left.shards) == (2, ("y", "z"))
    assert [left.holders("a", block) for block in range(3)] == [("y",), ("y",), ("z",)]
    assert left.holders("b", 0) == ("y", "z")
    last = left.without("y")
    assert (last.replicas, last.of("a").owners) == (None, ("", "", "z")), '"" for a lost copy'


def test_what_follows_from_a_placement_is_made_once_for_all_blocks() -> None:
    groups = tuple(GroupPlacement(f"rows.{n}", ("x", "y")) for n in range(500))
    placement = Placement(1, ("x", "y"), groups)
    _views.cache_clear()
    held = [placement.holders(group.group, block) for group in groups for block in range(2)]
    assert held == [("x",), ("y",)] * 500
    assert [placement.blocks_of(group.group, "y") for group in groups] == [(1,)] * 500
    assert _views.cache_info().misses == 1


def test_equal_placements_are_one_and_others_are_not() -> None:
    again = Placement(1, ("x", "y", "z"), GROUPS, Replicas(COPIES))
    other = Placement(1, ("x", "y", "z"), GROUPS)
    assert {PLACEMENT, again} == {PLACEMENT}
    assert len({PLACEMENT, other}) == 2
    assert other.holders("a", 0) == ("x",)
    assert PLACEMENT.holders("a", 0) == ("x", "y")
