"""Orders checkpoints: when one begins, which shards owe parts, and what it makes durable."""

from __future__ import annotations

from secureps.messages import requests
from secureps.messages.coordinator_records import CheckpointComplete, CheckpointOrdered
from secureps.messages.orders import WriteCheckpoint
from secureps.messages.run import GroupVersion, Placement
from secureps.roles.coordinator import trailing
from secureps.roles.coordinator.group import CheckpointState, GroupState
from secureps.roles.coordinator.state import WriteManifest
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Work
from secureps.roles.validation import check_part
from secureps.wording import named

AHEAD, LEAST_AHEAD = 2, 8
"""While a shard owes its part of a checkpoint, a group may be ahead of the newest whole one by
AHEAD times the plan's `checkpoint_every`, or by LEAST_AHEAD versions if that is more. A restart
redoes no more versions, and outboxes keep no more."""


def order(tx: Transaction) -> None:
    """Begins the next checkpoint if one is due by the plan, at the end, or by an operator's act."""
    federation, last = tx.federation, tx.federation.last_checkpoint
    groups = federation.groups.values()
    if any(group.version < 0 for group in groups) or federation.checkpoint_in_making is not None:
        return
    kept = not trailing.unkept_version(tx) or all(
        tx.is_over(group) for group in federation.model_groups
    )
    asked = federation.wants_checkpoint and has_newer_version(tx)
    if not kept or asked or any(_is_due(tx, group, last) for group in groups):
        begin(tx)


def begin(tx: Transaction) -> None:
    last = tx.federation.last_checkpoint
    versions = tuple(GroupVersion(g.name, g.version) for g in tx.federation.groups.values())
    number = last.number + 1 if last else 0
    tx.write(CheckpointOrdered(number, versions))
    for shard in parts_due(tx):
        order_part(tx, shard)


def order_part(tx: Transaction, shard: str) -> None:
    last, kept = tx.federation.checkpoints[-1], tx.sessions.kept
    tx.order(shard, WriteCheckpoint(tx.federation.incarnation, last.number, last.versions, kept))


def why_cohorts_wait(tx: Transaction) -> str:
    """Returns why no cohort may close before the checkpoint is whole; empty if one may."""
    if not (away := [shard for shard in parts_due(tx) if shard not in tx.watchers]):
        return ""
    whole = [each for each in tx.federation.checkpoints if each.complete]
    most = max(LEAST_AHEAD, AHEAD * tx.plan.section.checkpoint_every)
    if all(
        group.version - (whole[-1].version_of(group.name) if whole else -1) < most
        for group in tx.federation.model_groups
    ):
        return ""
    return f"waits for {named(away)}: too many versions are in no checkpoint without it"


def has_newer_version(tx: Transaction) -> bool:
    """True if a group has a version newer than every checkpoint, whole or in the making."""
    last, groups = tx.federation.last_checkpoint, tx.federation.groups.values()
    return any(last is None or group.version > last.version_of(group.name) for group in groups)


def _is_due(tx: Transaction, group: GroupState, last: CheckpointState | None) -> bool:
    """True if a group's version is due for a checkpoint; the last one waits for all results."""
    before, every = last.version_of(group.name) if last else -1, tx.plan.section.checkpoint_every
    if tx.is_over(group):
        told = last is not None and last.results == len(tx.federation.trail.results)
        return tx.has_no_evaluation() and not (told and before == group.version)
    return not group.trails and group.version // every > before // every


def parts_due(tx: Transaction) -> tuple[str, ...]:
    """Returns shards that owe a part of the checkpoint, without those that are about to leave."""
    last = tx.federation.checkpoint_in_making
    return (
        () if last is None else tuple(s for s in _next_placement(tx).shards if s not in last.parts)
    )


def _next_placement(tx: Transaction) -> Placement:
    """Returns the placement after the move under way, if there is one."""
    return tx.federation.coming or tx.federation.placement


def take_checkpointed(tx: Transaction, event: requests.Checkpointed) -> None:
    """Notes that a shard has written its part of the newest checkpoint."""
    last = tx.federation.last_checkpoint
    if last is None or last.number != event.number:
        return
    check_part(event)
    if event.shard not in last.parts:
        tx.write(event)
        write_manifest_if_whole(tx)


def write_manifest_if_whole(tx: Transaction) -> None:
    last = tx.federation.checkpoint_in_making
    if last is not None and not parts_due(tx):
        parts = tuple(last.parts[shard] for shard in sorted(_next_placement(tx).shards))
        tallies, unsafe = tx.federation.ledger.tallies(), tuple(sorted(tx.federation.unsafe))
        trail, stay = tx.federation.trail, frozenset[int]()
        if tx.plan.keeps_best:  # also the version whose round is open, which may become the best
            stay = frozenset({trail.subject, trailing.best_version(tx)}) - {0}
        known = (_next_placement(tx), parts, tallies, unsafe, trail.newest, stay)
        tx.step.effects.append(Work(WriteManifest(last.number, last.versions, *known)))


def complete(tx: Transaction, done: WriteManifest, kept: tuple[int, ...]) -> bool:
    """Takes a durable manifest; returns whether it completes the newest checkpoint.

    Then outboxes and spools may forget what the checkpoint includes. A manifest of an older
    placement does not count, and another one is asked for.
    """
    tx.sessions.kept, last = kept or tx.sessions.kept, tx.federation.checkpoint_in_making
    due = None if last is None else (last.number, _next_placement(tx).epoch)
    if due != (done.number, done.placement.epoch):
        return False
    ids = tx.federation.covered(done.number)
    tx.write(CheckpointComplete(done.number))
    tx.settle(ids)
    return True
