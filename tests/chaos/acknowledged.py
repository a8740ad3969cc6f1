"""What a party acknowledges is there, whatever happens next: on its disk, in its journal, and with
its standby, if it has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from secureps.errors import SecurepsError
from secureps.messages.requests import PutBlock, Submit
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import OPENED, BlockHeader, SubmissionId
from secureps.roles.shard.shard import Shard
from secureps.store.spool import DiskSpool
from tests.chaos import takeover
from tests.chaos.disk import Journal

if TYPE_CHECKING:
    from tests.chaos.world import World


def answers(world: World, party: str, message: Any, answer: Any) -> None:
    """An answer leaves: what it acknowledges is there after a cut."""
    if isinstance(answer, SecurepsError) or not isinstance(message, PutBlock | Submit):
        return
    journal = world._stores[party].journal
    assert isinstance(journal, Journal)
    known: Submit | BlockHeader
    if isinstance(message, Submit):
        name, known = str(message.receipt.id), Submit(message.receipt)
    else:
        name, known = message.header.key, message.header
        if not (_durable(world, party, name) or _let_go(world, party, message.header)):
            world.evidence.broken(f"{party} acknowledged {name} before it was durable")
    if takeover.lacks(world, party, known):
        world.evidence.broken(f"{party} acknowledged {name} before its standby had it")
    if known not in journal.durable:
        world.evidence.broken(f"{party} acknowledged {name} before that was in its journal")


def _durable(world: World, party: str, key: str) -> bool:
    spool = world._stores[party].spool
    assert isinstance(spool, DiskSpool)
    path = spool.path(key)
    return path.exists() and world._disk.durable(path)


def _let_go(world: World, party: str, header: BlockHeader) -> bool:
    """Whether a shard had a block, and lets go of it rightly: what it was for is settled.

    An answer waits for copies elsewhere, and meanwhile the coordinator may say so.
    """
    machine = world.parties[party].machine
    if not isinstance(machine, Shard) or header in machine.state.spooled.values():
        return False
    federation = world.coordinator.federation
    if header.purpose == OPENED:
        return federation.groups[header.group].number > header.sequence
    id = SubmissionId(header.author, header.group, header.sequence)
    return COORDINATOR in world.lost or federation.settled.of(id) is not None
