"""Repeats to a party that (re)subscribes all orders that still concern it.

Orders may be lost with the stream that they were on; all are idempotent.
"""

from __future__ import annotations

from secureps.messages.orders import Discard, Found
from secureps.messages.submission import SubmissionId
from secureps.roles.coordinator import (
    checkpointing,
    commit,
    envelopes,
    opening,
    recovery,
    resharding,
    termination,
)
from secureps.roles.coordinator.founding import make_configure
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Located, Transaction


def repeat(
    tx: Transaction,
    party: str,
    unsettled: tuple[SubmissionId, ...],
    located: Located | None = None,
) -> None:
    """Repeats what still concerns `party`, in the order of the steps.

    Args:
        unsettled: submissions whose fate it does not know: a client's own that lie in its outbox,
            those of which a shard has blocks.
        located: where a client was told that shards are, and blocks, when it joined.
    """
    federation, pinned = tx.federation, tx.federation.pinned
    if pinned is None:
        return
    if party in federation.moving.removed:
        resharding.dismiss(tx, party)
        return
    spare = tx.spare(party)  # it hears which run it is part of, and no more
    if spare or party in federation.placed or party in tx.holders:
        tx.order(party, make_configure(tx))
    if party in federation.placed:
        for group in federation.groups.values():
            _repeat_to_shard(tx, group, party)
        past = tuple(id for id in unsettled if federation.past(id))
        if past:
            tx.order(party, Discard(federation.incarnation, past))
    elif party in tx.holders:
        if federation.released(party):
            tx.order(party, envelopes.make_erase(tx, party))
        for group in federation.groups.values():
            if opening.wanted(tx.plan):
                _repeat_to_committee(tx, group, party)
            elif group.phase is Phase.OPENING:
                tx.order(party, commit.make_open(tx, group))
            elif group.phase is Phase.PREPARING:
                commit.prepare_again(tx, group)  # a shard may have lost what this holder opened
    elif not spare:
        for committee in opening.used_committees(tx):
            tx.order(party, opening.make_seal_for(tx, committee))
        now = (federation.addresses, pinned.placement.epoch)
        if located != now:  # a shard or a block moved after its client had joined
            tx.order(party, make_configure(tx))
        for id in unsettled:
            if federation.settled.of(id) is not None:
                tx.tell_fates((id,))
            elif not federation.known(id):
                commit.send_again(tx, (id,))
        for group in federation.groups.values():
            _repeat_to_client(tx, group, party)
    if party in checkpointing.parts_due(tx):
        checkpointing.order_part(tx, party)
    if federation.finished:
        termination.tell_finish(tx, party)


def _repeat_to_shard(tx: Transaction, group: GroupState, shard: str) -> None:
    if coming := commit.make_coming(tx, group, shard):
        tx.order(shard, coming)
    blocks = tx.federation.owners(group.name).get(shard)
    if blocks is None:
        return
    if group.phase is Phase.FOUNDING:
        for receipt in commit.founded_from(tx, group) if shard not in group.coming else ():
            tx.order(shard, Found(tx.federation.incarnation, group.name, receipt))
        return
    tx.order(shard, commit.make_known(tx, group, shard, blocks))
    if group.phase in (Phase.HOLDING, Phase.OPENING, Phase.PREPARING):
        # It may have lost its journal, whatever it said before: what follows, follows its answer.
        if shard in group.coming:
            tx.sessions.unconfirmed.add((group.name, shard))
        tx.order(shard, commit.make_hold(tx, group, blocks))


def _repeat_to_committee(tx: Transaction, group: GroupState, holder: str) -> None:
    if group.takes_updates or group.phase in (Phase.HOLDING, Phase.OPENING):
        for receipt in opening.unexamined(tx, group, holder):
            tx.order(holder, envelopes.make_examine(tx, receipt))
    if group.phase in (Phase.OPENING, Phase.PREPARING) and holder in opening.silent(tx, group):
        tx.order(holder, commit.make_open(tx, group))


def _repeat_to_client(tx: Transaction, group: GroupState, client: str) -> None:
    if group.version >= 0:
        tx.order(client, commit.make_published(tx, group))
    for receipt in [group.receipts[id] for id in group.open_receipts.clients.get(client, ())]:
        commit.came_back(tx, group, receipt)  # a shard may have lost what is in its outbox
    if group.awaits(client):
        tx.order(client, recovery.make_invite(tx, group, client))
    founder = client == tx.federation.founder and not tx.plan.given(group.name)
    if group.phase is Phase.FOUNDING and founder and not group.receipts:
        tx.order(client, recovery.make_invite(tx, group, client))
