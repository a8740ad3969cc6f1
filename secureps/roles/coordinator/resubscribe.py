"""What is said again to a party that (re)subscribes: everything that still concerns it.

Orders may be lost with the stream that they were on; all are idempotent. What must not live
here: decisions and records (`roles.coordinator.commit`).
"""

from __future__ import annotations

from dataclasses import replace

from secureps.messages.orders import Discard, Finish, Found, Invite, SealAgain, WriteCheckpoint
from secureps.messages.run import ShardAddress
from secureps.messages.submission import SubmissionId
from secureps.roles.coordinator import (
    asynchronous,
    checkpointing,
    commit,
    envelope_checks,
    opening,
    synchronous,
)
from secureps.roles.coordinator.founding import make_configure
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction


def repeat(
    turn: Transaction,
    party: str,
    unsettled: tuple[SubmissionId, ...],
    located: tuple[ShardAddress, ...] = (),
) -> None:
    """Everything that still concerns `party`, in the order of the steps.

    Args:
        unsettled: submissions whose fate it does not know: a client's own that lie in its outbox,
            those of which a shard has blocks.
        located: where a client was told that shards are, when it joined.
    """
    federation, pinned = turn.federation, turn.federation.pinned
    if pinned is None:
        return
    if party in pinned.placement.shards or party in turn.holders:
        turn.order(party, make_configure(turn))
    if party in pinned.placement.shards:
        for group in federation.groups.values():
            _repeat_to_shard(turn, group, party)
        past = tuple(id for id in unsettled if federation.past(id))
        if past:
            turn.order(party, Discard(federation.incarnation, past))
    elif party in turn.holders:
        for group in federation.groups.values():
            if opening.wanted(turn.plan):
                _repeat_to_committee(turn, group, party)
            elif group.phase is Phase.OPENING:
                turn.order(party, commit.make_open(turn, group))
            elif group.phase is Phase.PREPARING:
                commit.prepare_again(turn, group)  # a shard may have lost what this holder opened
    else:
        if located != federation.addresses:  # a shard moved after its client had joined
            turn.order(party, make_configure(turn))
        for id in unsettled:
            if id in federation.fates:
                turn.tell_fates((id,))
            elif not federation.known(id):
                commit.send_again(turn, (id,))
        for group in federation.groups.values():
            _repeat_to_client(turn, group, party)
    if party in checkpointing.parts_due(turn):
        last = federation.checkpoints[-1]
        turn.order(party, WriteCheckpoint(federation.incarnation, last.number, last.versions))
    if federation.finished:
        turn.order(party, Finish(federation.incarnation, federation.finished))


def _repeat_to_shard(turn: Transaction, group: GroupState, shard: str) -> None:
    blocks = turn.federation.owners(group.name).get(shard)
    if blocks is None:
        return
    if group.phase is Phase.FOUNDING:
        if shard in group.coming.blocks:
            return
        for receipt in group.receipts.values():
            turn.order(shard, Found(turn.federation.incarnation, group.name, receipt))
        if turn.plan.given(group.name):
            turn.order(shard, Found(turn.federation.incarnation, group.name, None))
        return
    own = tuple(group.blocks[block] for block in blocks)
    known = replace(commit.make_commit(turn, group), blocks=own, state=group.states[shard])
    turn.order(shard, known)
    if group.phase in (Phase.HOLDING, Phase.OPENING, Phase.PREPARING):
        # It may have lost its journal, whatever it said before: what follows, follows its answer.
        if shard in group.coming.blocks:
            turn.unconfirmed.add((group.name, shard))
        turn.order(shard, commit.make_hold(turn, group, blocks))


def _repeat_to_committee(turn: Transaction, group: GroupState, holder: str) -> None:
    if group.streaming or group.phase in (Phase.COLLECTING, Phase.HOLDING, Phase.OPENING):
        for receipt in opening.unexamined(group, holder):
            turn.order(holder, envelope_checks.make_examine(turn, receipt))
    if group.phase in (Phase.OPENING, Phase.PREPARING) and holder in opening.silent(turn, group):
        turn.order(holder, commit.make_open(turn, group))


def _asked(turn: Transaction, group: GroupState, client: str) -> Invite | SealAgain:
    make = asynchronous.make_invite if group.streaming else synchronous.make_invite
    return make(turn, group, client)


def _repeat_to_client(turn: Transaction, group: GroupState, client: str) -> None:
    if group.version >= 0:
        turn.order(client, commit.make_published(turn, group))
    for receipt in [group.receipts[id] for id in group.inbox.clients.get(client, ())]:
        commit.came_back(turn, group, receipt)  # a shard may have lost what is in its outbox
    if group.awaits(client):
        turn.order(client, _asked(turn, group, client))
    founder = client == turn.federation.founder and not turn.plan.given(group.name)
    if group.phase is Phase.FOUNDING and founder and not group.receipts:
        turn.order(client, synchronous.make_invite(turn, group, client))
