"""Blocks move while a run trains: because a shard comes or goes, or a copy was lost with one.

From when a move is due until it is finished no cohort closes, and no checkpoint begins but the
move's own: blocks move between two versions of every group. Clients train and send meanwhile. A
move takes two placements, and the coordinator journals each before any party hears of it. By the
first, blocks lie on their new shards besides: these ask the old shards for what they took in, and
for the committed version. When all new shards have said that they have it, the second placement is
in force: clients send to the new shards, and the old ones delete what is theirs no more. Before
that a checkpoint is made where a new shard alone would have a block: a run without copies goes on
from the newest checkpoint and the outboxes, whichever disk is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from secureps.errors import Malformed, Refused, UnknownParty
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.coordinator_records import PlacementMoved
from secureps.messages.orders import Finish
from secureps.messages.requests import BALANCE, Move, Prepared
from secureps.messages.run import Placement
from secureps.messages.scaling import BlockAssigned
from secureps.model.placement import move_copies
from secureps.roles.coordinator import checkpointing, departures
from secureps.roles.coordinator.founding import make_configure
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.moving import REMOVED
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.validation import check_digests
from secureps.wording import named

SHOWN = 3
"""Blocks that a refusal names."""


# --- what an operator says --------------------------------------------------------


def act(tx: Transaction, act: Act) -> None:
    """A shard is to be added, drained or removed, if it is not so already.

    Raises:
        UnknownParty: no shard of that name has come yet.
        Refused: another move is not over, there is no version yet, or blocks would have no shard.
    """
    moving, name = tx.federation.moving, act.party
    placed, what = _placement(tx).shards, ShardDeed(act.what)
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
            departures.depart(tx, name, f"{REMOVED} before it was added{_why(act)}", True)
        else:
            tx.write(act)
        dismiss(tx, name)
        return
    if name in placed if what is ShardDeed.ADD else name not in placed:
        if what is ShardDeed.REMOVE and name not in moving.left:
            tx.write(act)
            dismiss(tx, name)
        return
    if moving.what or moving.target is not None:
        raise Refused(f"one move at a time: {told(tx)}; say it again when that is over")
    if what is not ShardDeed.ADD:
        _demand_others(tx, what, name, placed)
        if name not in tx.watchers:  # what it has, others have
            departures.depart(tx, name, f"{REMOVED}, while it was away{_why(act)}", True)
            return
    tx.write(act)


def _why(act: Act) -> str:
    return f": {act.reason}" if act.reason else ""


def _demand_others(tx: Transaction, what: ShardDeed, name: str, placed: tuple[str, ...]) -> None:
    """Refused if blocks of a shard would be lost with it, or have fewer copies than they should."""
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
    if alone := departures.alone(tx, name):
        blocks = ", ".join(f"block {block} of {group}" for group, block in alone[:SHOWN])
        more = f", and {len(alone) - SHOWN} more" if len(alone) > SHOWN else ""
        raise Refused(
            f"{name} is away, and nobody else who is here has {blocks}{more}: they would be lost; "
            "start it again, and it hands them over"
        )


# --- fence, begin and end ---------------------------------------------------------


def due(tx: Transaction) -> str:
    """Why no checkpoint begins now, and cohorts do not close; empty where nothing is to move."""
    if tx.federation.moving.target is None and _wanted(tx) is None:
        return ""
    return told(tx)


def told(tx: Transaction) -> str:
    """What moves, or is to, and what it waits for."""
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
    waits = _waits(tx)
    return f"{text}; {waits}" if waits else text


def _waits(tx: Transaction) -> str:
    """What a move waits for besides the copying; empty for nothing."""
    moving = tx.federation.moving
    if moving.target is not None:
        away = [s for s in _placement(tx).shards if s not in tx.watchers]
        if not away and moving.kept:
            return "waits for the checkpoint that is being made of it"
    elif (shards := _wanted(tx)) is not None:
        away = [s for s in {*shards, *_placement(tx).shards} if s not in tx.watchers]
        if not away and not _between(tx):
            return "waits for the cohorts and the checkpoint that are being made"
    else:
        return f"waits for {moving.shard} to come"
    return f"waits for {named(sorted(away))}" if away else ""


def advance(tx: Transaction) -> None:
    """Begins a move that is due as soon as nothing is between two versions; so it ends it."""
    federation, moving = tx.federation, tx.federation.moving
    assert federation.pinned is not None
    if moving.target is None:
        shards, placement = _wanted(tx), federation.pinned.placement
        here = shards is not None and tx.watchers.issuperset({*shards, *placement.shards})
        if shards is None or not here or not _between(tx):
            return
        tx.write(PlacementMoved(*placement.moved(shards, _held(tx, shards))))
        departures.go_on(tx)
    if moving.target is not None and not _lacking(tx) and _kept(tx):
        leaving = moving.shard if moving.what == ShardDeed.REMOVE else ""
        gone = [s for s in _placement(tx).shards if s not in moving.target.shards]
        tx.write(PlacementMoved(moving.target))
        departures.go_on(tx, gone)
        if leaving:
            dismiss(tx, leaving)


def _wanted(tx: Transaction) -> tuple[str, ...] | None:
    """The shards that are to hold the blocks, if they are others, or blocks have too few copies."""
    moving, placement = tx.federation.moving, _placement(tx)
    match moving.what:
        case ShardDeed.ADD:
            here = moving.shard in tx.watchers and moving.shard in tx.federation.shards
            return (*placement.shards, moving.shard) if here else None
        case ShardDeed.DRAIN | ShardDeed.REMOVE:
            return tuple(s for s in placement.shards if s != moving.shard)
    if moving.what == BALANCE:
        return placement.shards
    copies = min(tx.plan.section.replicas, len(placement.shards))
    thin = tx.cache.of("thin", placement.epoch, lambda: _least(placement) < copies)
    return placement.shards if thin else None


def _held(tx: Transaction, shards: tuple[str, ...]) -> dict[str, list[tuple[str, ...]]]:
    """Where blocks are to lie on these shards."""
    moving = tx.federation.moving
    if moving.what == BALANCE:
        return balanced(_placement(tx).held, moving.assigned)
    return spread(tx, shards, moving.shard if moving.what == ShardDeed.ADD else "")


def spread(
    tx: Transaction, shards: Sequence[str], joins: str = ""
) -> dict[str, list[tuple[str, ...]]]:
    """Where blocks would lie on these shards, of which one `joins`: as few move as can."""
    weights = {name: tx.federation.shards[name].weight for name in shards}
    return move_copies(_placement(tx).held, weights, tx.plan.section.replicas, joins)


def balanced(
    held: dict[str, list[tuple[str, ...]]], assigned: Sequence[BlockAssigned]
) -> dict[str, list[tuple[str, ...]]]:
    """Where blocks lie once these have moved, in place of where they lie now."""
    for each in assigned:
        own = held[each.group][each.block]
        taken = (each.taker if shard == each.giver else shard for shard in own)
        held[each.group][each.block] = tuple(taken)
    return held


def _least(placement: Placement) -> int:
    """How many copies the block has that has fewest."""
    return min(len(each) for blocks in placement.held.values() for each in blocks)


def _between(tx: Transaction) -> bool:
    """Whether no version and no checkpoint is in the making."""
    groups, checkpoints = tx.federation.groups.values(), tx.federation.checkpoints
    idle = all(group.making is None and group.version >= 0 for group in groups)
    return idle and (not checkpoints or checkpoints[-1].complete)


def _lacking(tx: Transaction) -> list[tuple[str, str]]:
    """Shards, and groups of which they have not said since they last came that all is there."""
    moving, placement, groups = tx.federation.moving, _placement(tx), tx.federation.groups
    gaining = tx.cache.of(
        "gaining",
        placement.epoch,
        lambda: [(s, g) for s in placement.shards for g in groups if moving.gains(g, s)],
    )
    here, epoch = tx.sessions.adopted, placement.epoch
    return [(s, g) for s, g in gaining if s not in tx.watchers or (epoch, g, s) not in here]


def _kept(tx: Transaction) -> bool:
    """Whether what moved survives any one disk; begins the checkpoint that it needs for that."""
    federation, moving = tx.federation, tx.federation.moving
    single = tx.cache.of("single", _placement(tx).epoch, lambda: moving.single)
    if single and not moving.kept:
        checkpointing.begin(tx)
    return not single or federation.checkpoints[-1].complete


def dismiss(tx: Transaction, shard: str) -> None:
    """It is told that it takes part no more, and ends."""
    tx.order(shard, make_configure(tx))
    tx.order(shard, Finish(tx.federation.incarnation, tx.federation.moving.left[shard]))


# --- what shards say --------------------------------------------------------------


def adopted(tx: Transaction, group: GroupState, event: Prepared) -> None:
    """A shard has its blocks of a new placement, of the committed version, and what was sent.

    Raises:
        Malformed: they are not its blocks of that version.
    """
    if event.epoch != _placement(tx).epoch or event.version != group.version:
        return  # what it says of is past
    if event.scale is not None or event.mean:  # a shard fills no journal with what nobody checks
        raise Malformed(f"{event.shard}: moved blocks come without a scale, and without metrics")
    owned = tx.federation.owners(group.name).get(event.shard, ())
    check_digests(event.shard, group.name, owned, event.blocks)
    if event.blocks != tuple(group.blocks[block] for block in owned):
        return
    if group.states.get(event.shard) != event.state:
        tx.write(event)
    tx.sessions.adopted.add((event.epoch, group.name, event.shard))
    tx.sessions.holds(event.shard, group.name)


def seen(tx: Transaction) -> Move | None:
    """How far a move is, for a status; None if there is none."""
    moving = tx.federation.moving
    if tx.federation.pinned is None or not (moving.what or due(tx)):
        return None
    moved = blocks = moved_bytes = bytes = 0
    lacking = set(_lacking(tx))
    for group in tx.layout.all_groups if tx.layout is not None else ():
        for shard in _placement(tx).shards:
            for block in moving.gains(group.name, shard):
                start, stop = group.span(block)
                whole = (shard, group.name) not in lacking
                blocks, bytes = blocks + 1, bytes + 4 * (stop - start)
                moved, moved_bytes = moved + whole, moved_bytes + whole * 4 * (stop - start)
    return Move(moving.what, moving.shard, moved, blocks, moved_bytes, bytes, _waits(tx))


def _placement(tx: Transaction) -> Placement:
    assert tx.federation.pinned is not None
    return tx.federation.pinned.placement
