"""Shards that are away for good leave the run, which goes on with the copies of their blocks.

A shard leaves when it was away for the plan's `shards_wait`, and each of its blocks lies on another
one that is here and has what is committed. It is journalled as a placement of the next epoch, by
which everybody goes from then on: blocks of that shard are taken in by whoever is next in order,
and nobody takes from it what others are to hold. What must not live here: how placements are made
(`messages.run`), and shards that come back in time (`roles.coordinator.registration`).
"""

from __future__ import annotations

from secureps.crypto.cipher import Opening
from secureps.messages.coordinator_records import ShardLeft
from secureps.roles.coordinator import checkpointing, commit
from secureps.roles.coordinator.founding import make_configure
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction


def leave(tx: Transaction) -> float | None:
    """Leaves out who was away for long enough; returns when time alone might do so, if ever."""
    pinned, until = tx.federation.pinned, list[float]()
    assert pinned is not None
    if pinned.placement.replicas is None:
        return None
    for shard in pinned.placement.shards:
        if shard in tx.watchers:
            continue
        at = tx.sessions.away.setdefault(shard, tx.now) + tx.plan.section.shards_wait
        if tx.now < at:
            until.append(at)
        elif _spared(tx, shard):
            away = f"away for {tx.plan.section.shards_wait:g} seconds; others hold its blocks"
            tx.write(ShardLeft(shard, away))
            _go_on(tx)
            return tx.now  # another one may be, by what is left
    return min(until, default=None)


def _spared(tx: Transaction, shard: str) -> bool:
    """Whether all that a shard holds is on others that are here, and whole."""
    federation = tx.federation
    assert federation.pinned is not None
    placement, groups = federation.pinned.placement, federation.groups.values()
    if any(group.version < 0 for group in groups):
        return False
    names = {group.name for group in groups}
    whole = {s for s in tx.watchers if names <= tx.sessions.reached.get(s, frozenset())}
    return all(
        whole.intersection(placement.holders(group.name, block)) - {shard}
        for group in groups
        for block in placement.blocks_of(group.name, shard)
    )


def _go_on(tx: Transaction) -> None:
    """Everybody hears of the placement, and says again what a group waited for that shard with."""
    assert tx.federation.pinned is not None
    configure = make_configure(tx)
    placed = tx.federation.pinned.placement.shards
    for party in (*placed, *tx.holders, *tx.federation.members):  # shards take in what others send
        tx.order(party, configure)
    for group in tx.federation.groups.values():
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
