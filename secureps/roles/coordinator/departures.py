"""Shards that are away for good leave the run, which goes on with the copies of their blocks.

A shard leaves when it was away for the plan's `shards_wait`, and each of its blocks lies on another
one that is here and has what is committed. It is journalled as a placement of the next epoch, by
which everybody goes from then on: blocks of that shard are taken in by whoever is next in order,
and nobody takes from it what others are to hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from secureps.crypto.cipher import Opening
from secureps.messages.coordinator_records import PlacementMoved, ShardLeft
from secureps.roles.coordinator import checkpointing, commit
from secureps.roles.coordinator.founding import make_configure
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction


def leave(tx: Transaction) -> float | None:
    """Leaves out who was away for long enough; returns when time alone might do so, if ever."""
    pinned, until = tx.federation.pinned, list[float]()
    assert pinned is not None
    if tx.plan.section.replicas == 1:
        return None
    for shard in pinned.placement.shards:
        if shard in tx.watchers:
            continue
        at = tx.sessions.away.setdefault(shard, tx.now) + tx.plan.section.shards_wait
        if tx.now < at:
            until.append(at)
        elif not alone(tx, shard):
            away = f"away for {tx.plan.section.shards_wait:g} seconds; others hold its blocks"
            depart(tx, shard, away)
            return tx.now  # another one may be, by what is left
    return min(until, default=None)


def alone(tx: Transaction, shard: str) -> list[tuple[str, int]]:
    """Groups and blocks that no other shard has which is here, and whole.

    While blocks move, whoever gets one may not have it yet: those count that had it before.
    """
    federation = tx.federation
    assert federation.pinned is not None
    placement = federation.moving.before or federation.pinned.placement
    found = list[tuple[str, int]]()
    for group in federation.groups.values():
        reached = tx.sessions.reached.items()
        whole = {s for s, groups in reached if group.name in groups and s in tx.watchers} - {shard}
        own = placement.blocks_of(group.name, shard)
        found += (
            (group.name, block)
            for block in own
            if group.version < 0 or whole.isdisjoint(placement.holders(group.name, block))
        )
    return found


def depart(tx: Transaction, shard: str, reason: str, removed: bool = False) -> None:
    """A shard leaves, and everybody goes on without it; blocks that move are where they were."""
    before = tx.federation.moving.before
    tx.write(ShardLeft(shard, reason, removed))
    if before is not None:
        assert tx.federation.pinned is not None
        epoch = tx.federation.pinned.placement.epoch
        tx.write(PlacementMoved(replace(before.without(shard), epoch=epoch + 1)))
    go_on(tx)


def go_on(tx: Transaction, gone: Iterable[str] = ()) -> None:
    """Everybody hears of the placement, and says again what a group waited for that shard with.

    `gone`: who held blocks, and hears that it holds none any more.
    """
    assert tx.federation.pinned is not None
    configure = make_configure(tx)
    placed = tx.federation.pinned.placement.shards
    # shards first: they take in what others send
    for party in (*placed, *gone, *tx.holders, *tx.federation.members):
        tx.order(party, configure)
    for group in tx.federation.groups.values():
        for shard, blocks in tx.federation.owners(group.name).items():
            if group.version >= 0 and not group.states.get(shard):
                tx.order(shard, commit.make_known(tx, group, shard, blocks))
        _say_again(tx, group)
    checkpointing.manifest_again(tx)


def _say_again(tx: Transaction, group: GroupState) -> None:
    if group.phase is Phase.HOLDING:
        commit.hold_again(tx, group)
    elif group.phase is Phase.OPENING and tx.plan.opening is Opening.NOTHING:
        commit.opened(tx, group, ())
    elif group.phase is Phase.OPENING:
        commit.open_again(tx, group)
    elif group.phase is Phase.PREPARING:
        tx.tell_shards(group.name, lambda blocks: commit.make_prepare(tx, group, blocks))
