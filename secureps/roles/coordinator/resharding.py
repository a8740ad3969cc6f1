"""Moves blocks between shards while a run trains: a shard comes or goes, or a copy was lost.

Blocks move between two versions of every group. From the moment a move is due until it is
finished, no cohort closes, and no checkpoint begins except the move's own; clients go on training
and sending.

1  The coordinator journals the coming placement before any party hears of it.
2  Each shard whose blocks change asks the shards that hold its new blocks for the committed version
   and for updates that are in no version yet, and makes a file of its blocks.
3  When all shards have their files, a checkpoint is made, so that a run without copies can go on
   from it and the outboxes if a disk is lost.
4  The placement is in force. Clients send by it, and shards delete blocks that are not theirs.

A shard leaves the run if it is away for SHARDS_WAIT seconds, and each of its blocks lies on another
shard that is here and has the committed version. A move under way is given up then, and begins anew
by the placement without that shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from secureps.errors import Malformed, Refused, UnknownParty
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.coordinator_records import PlacementMoved, ShardLeft
from secureps.messages.orders import Finish
from secureps.messages.requests import BALANCE, Move, Prepared
from secureps.messages.run import Placement
from secureps.messages.scaling import BlockAssigned
from secureps.model.placement import move_copies
from secureps.roles.coordinator import checkpointing, commit
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.state import REMOVED
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.validation import check_digests
from secureps.wording import named

# --- acts of an operator ----------------------------------------------------------


def begin_move(tx: Transaction, act: Act) -> None:
    """Begins to add, drain or remove a shard, unless that is done already."""
    moving, name = tx.federation.moving, act.party
    placed, what = tx.federation.placed, ShardDeed(act.what)
    if (moving.what, moving.shard) == (act.what, name):
        return
    if name not in tx.federation.shards:
        raise UnknownParty(
            f"no shard called {name!r:.80} has come to this run: put it on the roster and start it "
            "with its kit, then say so again"
        )
    if any(group.version < 0 for group in tx.federation.groups.values()):
        raise Refused("nothing can move yet: version 0 is not made; say it again when it is")
    if what is ShardDeed.REMOVE and moving.what == ShardDeed.ADD and moving.shard == name:
        if name in placed:
            depart(tx, name, f"{REMOVED} before it was added{_give_reason(act)}", True)
        else:
            tx.write(act)
        dismiss(tx, name)
        return
    if name in placed if what is ShardDeed.ADD else name not in placed:
        if what is ShardDeed.REMOVE and name not in moving.left:
            tx.write(act)
            dismiss(tx, name)
        return
    if moving.what or tx.federation.coming is not None:
        raise Refused(f"one move at a time: {describe_move(tx)}; say it again when that is over")
    if what is not ShardDeed.ADD:
        _demand_others(tx, what, name, placed)
        if name not in tx.watchers:  # other shards have copies of its blocks
            depart(tx, name, f"{REMOVED}, while it was away{_give_reason(act)}", True)
            return
    tx.write(act)


def _give_reason(act: Act) -> str:
    return f": {act.reason}" if act.reason else ""


def _demand_others(tx: Transaction, what: ShardDeed, name: str, placed: tuple[str, ...]) -> None:
    """Refused if blocks of a shard would be lost, or have fewer copies than the plan says."""
    if name in tx.watchers:
        least = tx.plan.section.replicas
        if len(placed) <= least:
            raise Refused(
                f"without {name} there are {len(placed) - 1} shards, and the plan has every block "
                f"on {least}: add another one first"
            )
        return
    if what is ShardDeed.DRAIN:
        raise Refused(f"{name} is away: start it, and it hands its blocks over; or remove it")
    if only := find_sole_blocks(tx, name):
        blocks = named([f"block {block} of {group}" for group, block in only])
        raise Refused(
            f"{name} is away, and nobody else who is here has {blocks}: they would be lost; "
            "start it again, and it hands them over"
        )


# --- fence, begin and end ---------------------------------------------------------


def describe_due_move(tx: Transaction) -> str:
    """Says which move keeps checkpoints from beginning and cohorts from closing; empty if none."""
    if tx.federation.coming is None and _wanted_shards(tx) is None:
        return ""
    return describe_move(tx)


def describe_move(tx: Transaction) -> str:
    """Says which blocks move, or are to move, and what the move waits for."""
    moving = tx.federation.moving
    match moving.what:
        case ShardDeed.ADD:
            text = f"blocks move to {moving.shard}, which is added"
        case ShardDeed.DRAIN | ShardDeed.REMOVE:
            text = f"blocks move from {moving.shard} to others"
        case _ if moving.what == BALANCE:
            text = "blocks move to shards with less to do"
        case _:
            text = "blocks are copied again, since a shard has left"
    waits = _describe_wait(tx)
    return f"{text}; {waits}" if waits else text


def _describe_wait(tx: Transaction) -> str:
    """Says what a move waits for besides the copying; empty for nothing."""
    federation = tx.federation
    if federation.coming is not None:
        away = [s for s in federation.placed if s not in tx.watchers]
        if not away and federation.checkpoint_in_making is not None:
            return "waits for the checkpoint that is being made of it"
    elif (shards := _wanted_shards(tx)) is not None:
        away = [s for s in {*shards, *federation.placed} if s not in tx.watchers]
        if not away and not _is_between(tx):
            return "waits for the cohorts and the checkpoint that are being made"
    else:
        away = [federation.moving.shard]
    return f"waits for {named(sorted(away))} to come: start again what has ended" if away else ""


def advance(tx: Transaction) -> None:
    """Begins a move that is due once no version is in the making; later begins its checkpoint."""
    federation = tx.federation
    if federation.coming is None:
        shards, placement = _wanted_shards(tx), federation.placement
        here = shards is not None and tx.watchers.issuperset({*shards, *placement.shards})
        if shards is None or not here or not _is_between(tx):
            return
        coming = Placement.by_block(placement.epoch + 1, shards, _wanted_holders(tx, shards))
        tx.write(PlacementMoved(coming))
        for shard in federation.placed:
            tx.order(shard, tx.make_configure())
        for group in federation.groups.values():
            for shard in coming.shards:
                commit.tell_coming(tx, group, shard)
    if federation.checkpoint_in_making is None and not _lacking_shards(tx):
        checkpointing.begin(tx)


def finish(tx: Transaction) -> None:
    """Puts the coming placement in force after its checkpoint, if all shards have their blocks.

    If one does not, it came back since, perhaps with an empty disk, and another checkpoint follows.
    """
    coming, moving, before = tx.federation.coming, tx.federation.moving, tx.federation.placed
    if coming is None or _lacking_shards(tx):
        return
    leaving = moving.shard if moving.what == ShardDeed.REMOVE else ""
    changing = _changing_shards(tx)
    tx.write(PlacementMoved(coming, in_force=True))
    go_on(tx, [shard for shard in before if shard not in coming.shards])
    for name, shards in changing.items():
        for shard in shards:
            tx.sessions.note_whole(shard, name)
    if leaving:
        dismiss(tx, leaving)


def _wanted_shards(tx: Transaction) -> tuple[str, ...] | None:
    """Returns the shards that are to hold the blocks after a move; None if no move is due."""
    moving, placement = tx.federation.moving, tx.federation.placement
    match moving.what:
        case ShardDeed.ADD:
            here = moving.shard in tx.watchers and moving.shard in tx.federation.shards
            return (*placement.shards, moving.shard) if here else None
        case ShardDeed.DRAIN | ShardDeed.REMOVE:
            return tuple(s for s in placement.shards if s != moving.shard)
    if moving.what == BALANCE:
        return placement.shards
    copies = min(tx.plan.section.replicas, len(placement.shards))

    def lacks() -> bool:
        return any(len(holders) < copies for of in placement.held.values() for holders in of)

    return placement.shards if tx.remember("thin", placement.epoch, lacks) else None


def _wanted_holders(tx: Transaction, shards: tuple[str, ...]) -> dict[str, list[tuple[str, ...]]]:
    """Returns the holders that each block is to have among these shards."""
    moving = tx.federation.moving
    if moving.what == BALANCE:
        return assign_blocks(tx.federation.placement.held, moving.assigned)
    return spread_blocks(tx, shards, moving.shard if moving.what == ShardDeed.ADD else "")


def spread_blocks(
    tx: Transaction, shards: Sequence[str], joins: str = ""
) -> dict[str, list[tuple[str, ...]]]:
    """Spreads the blocks over these shards, one of which may join, moving as few as possible."""
    weights = {name: tx.federation.shards[name].weight for name in shards}
    return move_copies(tx.federation.placement.held, weights, tx.plan.section.replicas, joins)


def assign_blocks(
    held: dict[str, list[tuple[str, ...]]], assigned: Sequence[BlockAssigned]
) -> dict[str, list[tuple[str, ...]]]:
    """Moves these blocks within `held`, and returns it."""
    for each in assigned:
        own = held[each.group][each.block]
        taken = (each.taker if shard == each.giver else shard for shard in own)
        held[each.group][each.block] = tuple(taken)
    return held


def _is_between(tx: Transaction) -> bool:
    """True if no version and no checkpoint is in the making."""
    groups = tx.federation.groups.values()
    idle = all(group.making is None and group.version >= 0 for group in groups)
    return idle and tx.federation.checkpoint_in_making is None


def _changing_shards(tx: Transaction) -> Mapping[str, Sequence[str]]:
    """Returns, by group, the shards whose blocks the coming placement changes."""
    coming, groups = tx.federation.coming, tx.federation.groups
    if coming is None:
        return {}

    def changing() -> dict[str, list[str]]:
        moved = commit.coming_blocks
        return {name: [s for s in coming.shards if moved(tx, name, s)] for name in groups}

    return tx.remember("changing", coming.epoch, changing)


def _lacking_shards(tx: Transaction) -> list[tuple[str, str]]:
    """Returns (shard, group) pairs for which the shard has not reported all its coming blocks."""
    coming, here = tx.federation.coming, tx.sessions.prepared
    epoch = 0 if coming is None else coming.epoch
    owed = ((s, group) for group, shards in _changing_shards(tx).items() for s in shards)
    return [(s, g) for s, g in owed if s not in tx.watchers or (epoch, g, s) not in here]


def dismiss(tx: Transaction, shard: str) -> None:
    """Tells a shard that it has left the run; it ends once no coordinator needs it to obey.

    The module `reign` says why.
    """
    tx.order(shard, tx.make_configure())
    if shard not in tx.federation.reigns.left:
        tx.order(shard, Finish(tx.federation.incarnation, tx.federation.moving.left[shard]))


# --- reports of shards ------------------------------------------------------------


def take_prepared(tx: Transaction, event: Prepared) -> None:
    """Notes that a shard has all its blocks by the coming placement, with the updates for them."""
    coming, shard = tx.federation.coming, event.shard
    group = tx.federation.groups.get(event.group)
    if (
        coming is None
        or group is None
        or (event.epoch, event.version) != (coming.epoch, group.version)
    ):
        return  # its version or placement is past
    # Unchecked fields would fill the journal.
    if event.scale is not None or event.total or event.squares:
        raise Malformed(f"{shard}: moved blocks come without a scale, metrics and squared norms")
    owned = coming.blocks_of(group.name, shard)
    check_digests(shard, group.name, owned, event.blocks)
    same = event.blocks == tuple(group.blocks[block] for block in owned)
    if not same or shard not in _changing_shards(tx)[group.name]:
        return
    if tx.federation.moving.files.get(group.name, {}).get(shard) != event.state:
        tx.write(event)
    tx.sessions.prepared.add((event.epoch, group.name, shard))
    if shard in checkpointing.parts_due(tx):  # it wrote none while blocks were on their way to it
        checkpointing.order_part(tx, shard)


def measure_move(tx: Transaction) -> Move | None:
    """Returns how far a move is, for a status; None if there is none."""
    moving = tx.federation.moving
    if tx.federation.pinned is None or not (moving.what or describe_due_move(tx)):
        return None
    now, moved, blocks, moved_bytes, bytes = tx.federation.placement, 0, 0, 0, 0
    coming, lacking = tx.federation.coming or now, set(_lacking_shards(tx))
    for group in tx.layout.all_groups:
        for shard in tx.federation.placed:
            gains = set(coming.blocks_of(group.name, shard)) - {*now.blocks_of(group.name, shard)}
            for block in gains:
                start, stop = group.span(block)
                whole = (shard, group.name) not in lacking
                blocks, bytes = blocks + 1, bytes + 4 * (stop - start)
                moved, moved_bytes = moved + whole, moved_bytes + whole * 4 * (stop - start)
    return Move(moving.what, moving.shard, moved, blocks, moved_bytes, bytes, _describe_wait(tx))


# --- shards that leave --------------------------------------------------------------

SHARDS_WAIT = 600.0
"""Seconds until an absent shard leaves. A machine that restarts is back by then, and the others
need not copy its blocks."""


def drop_absent_shard(tx: Transaction) -> float | None:
    """Has a shard leave that was away for too long; returns when the next one may have to."""
    until = list[float]()
    if tx.plan.section.replicas == 1:
        return None
    for shard in tx.federation.placed:
        if shard in tx.watchers:
            continue
        at = tx.sessions.away.setdefault(shard, tx.now) + SHARDS_WAIT
        if tx.now < at:
            until.append(at)
        elif not find_sole_blocks(tx, shard):
            away = f"away for {SHARDS_WAIT:g} seconds; others hold its blocks"
            depart(tx, shard, away)
            return tx.now  # look again: another shard may have to leave too
    return min(until, default=None)


def find_sole_blocks(tx: Transaction, shard: str) -> list[tuple[str, int]]:
    """Returns the (group, block) pairs that no other shard which is here has complete."""
    federation, placement = tx.federation, tx.federation.placement
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
    """Has a shard leave the run, and all others go on without it; gives up a move under way."""
    tx.write(ShardLeft(shard, reason, removed))
    go_on(tx)
    for due in checkpointing.parts_due(tx):  # the move may have excused a shard from its part
        checkpointing.order_part(tx, due)


def go_on(tx: Transaction, gone: Iterable[str] = ()) -> None:
    """Tells all parties of the placement, and repeats the steps that groups wait for.

    `gone` are shards that held blocks, and are told that they hold none any more.
    """
    tx.tell_placement(*gone)
    for group in tx.federation.groups.values():
        _repeat_step(tx, group)
    checkpointing.write_manifest_if_whole(tx)


def _repeat_step(tx: Transaction, group: GroupState) -> None:
    if group.phase is Phase.HOLDING:
        commit.hold_again(tx, group)
    elif group.phase is Phase.OPENING:
        commit.open_held(tx, group)
    elif group.phase is Phase.PREPARING:
        tx.tell_shards(group.name, lambda blocks: commit.make_prepare(tx, group, blocks))
