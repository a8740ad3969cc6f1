"""Shards that hold the same block come to the same bytes, or nothing is made of it.

All that they compute is of integers and single IEEE operations: two digests of one block are a
fault of one of the machines, and which of them is for its operator to find out.
"""

from __future__ import annotations

from collections.abc import Mapping

from secureps.messages.requests import Prepared
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Say

Digests = Mapping[str, tuple[bytes, ...]]
"""By shard, of its own blocks in their order."""


def agrees(tx: Transaction, group: GroupState, what: str, known: Digests, said: Digests) -> bool:
    """Whether what a shard says of its blocks is what others said of them; else it is named.

    Args:
        what: is compared, for people: "sums of cohort 3".
        known: what shards said before; said: what one says now.
    """
    pinned = tx.federation.pinned
    assert pinned is not None
    if pinned.placement.replicas is None:
        return True
    owners = tx.federation.owners(group.name)
    ((shard, digests),) = said.items()
    mine = dict(zip(owners[shard], digests, strict=True))
    for other in owners.keys() & known.keys() - {shard}:
        for block, digest in zip(owners[other], known[other], strict=True):
            if mine.get(block, digest) != digest:
                _differ(tx, group, f"{shard} and {other} have different {what}, block {block}")
                return False
    return True


def agrees_on_scale(tx: Transaction, group: GroupState, said: Prepared) -> bool:
    """The same of the scale of a clip, or of a range: all have it who hold a group's last block."""
    known, shard = group.coming, said.shard
    others = [s for s in tx.federation.last_owners(group.name) if s in known.blocks and s != shard]
    if said.scale is None or not others or said.scale == known.scale:
        return True
    found = f"{shard} and {others[0]} have different scales of version {said.version}"
    _differ(tx, group, f"{found}, {said.scale} and {known.scale}")
    return False


def _differ(tx: Transaction, group: GroupState, found: str) -> None:
    text = (
        f"{found}: one of the two computes wrongly, and nothing is made of it until they agree; "
        "start the faulty one on a sound machine, with a new state folder"
    )
    if group.reason != text:
        tx.step.effects.append(Say(f"{tx.plan.head(group.name)}{text}"))
    tx.reasons[group.name] = text
