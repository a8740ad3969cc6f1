"""The six steps of a version, as the coordinator drives them.

    1 close    cohort and weights journalled before any message names them
    2 hold     every shard verifies and sums; what is missing leads to a new close
    3 open     only when all hold
    4 prepare  shards average and step; their new blocks are durable
    5 commit   when all are prepared
    6 publish  clients are told

`advance` moves every group as far as it can go now; `repeat` says again what concerns a
party that (re)subscribed. What must not live here: checks of who may say what
(`roles.coordinator`), rules, I/O.
"""

from __future__ import annotations

from secureps.crypto.cipher import Opening
from secureps.crypto.suite import cipher
from secureps.messages.orders import (
    Commit,
    Configure,
    Discard,
    Finish,
    Found,
    Hold,
    Invite,
    MemberBlocks,
    Open,
    Prepare,
    Published,
    SendAgain,
    ShardSums,
    WriteCheckpoint,
)
from secureps.messages.records import (
    CohortBurnt,
    CohortClosed,
    CohortOpened,
    CohortReopened,
    FounderChosen,
    RoundExtended,
    RoundGivenUp,
    RoundOpened,
    ShardPrepared,
    SumsHeld,
    VersionCommitted,
)
from secureps.messages.requests import Prepared
from secureps.messages.submission import Cohort, Receipt, SubmissionId
from secureps.policy.rule import Admit, Arrival, Close, Drop, Extend
from secureps.roles import checkpointing, ending
from secureps.roles.federation import GroupState, Phase
from secureps.roles.turn import Turn


def advance(turn: Turn) -> float | None:
    """Moves every group on; returns when time alone could move one (None: never)."""
    if turn.federation.pinned is None or turn.federation.finished:
        return None
    _choose_founder(turn)
    untils = [_advance_group(turn, group) for group in turn.federation.groups.values()]
    checkpointing.order(turn)
    ending.finish(turn)
    return min((until for until in untils if until is not None), default=None)


def _advance_group(turn: Turn, group: GroupState) -> float | None:
    if group.phase is Phase.WAITING and not ending.over(turn, group):
        _open_round(turn, group)
    if group.phase is Phase.COLLECTING:
        return _decide(turn, group)
    return None


# --- before version 0 -------------------------------------------------------------


def _choose_founder(turn: Turn) -> None:
    federation = turn.federation
    waiting = [g for g in federation.groups.values() if g.phase is Phase.FOUNDING]
    if turn.plan.section.initial is not None or not any(not g.receipts for g in waiting):
        return
    if federation.founder not in turn.live:
        candidates = [client for client in federation.members if client in turn.live]
        if candidates:
            turn.write(FounderChosen(candidates[0]))
            for group in [g for g in waiting if not g.receipts]:
                turn.order(federation.founder, _invitation(turn, group))


def found(turn: Turn, group: GroupState, receipt: Receipt | None) -> None:
    """A founding model is complete (or lies in the plan's file): the shards make version 0."""
    for shard in turn.federation.owners(group.name):
        if shard not in group.prepared:
            turn.order(shard, Found(turn.federation.incarnation, group.name, receipt))


# --- 1 close ----------------------------------------------------------------------


def _open_round(turn: Turn, group: GroupState) -> None:
    invited, reason = _admitted(turn, group, turn.live)
    if invited and (spent := ending.exhausted(turn)):
        invited, reason = _admitted(turn, group, turn.live - spent)
        reason = f"{len(turn.live & spent)} live members have spent their budget; {reason}"
        if not invited and not _admitted(turn, group, turn.clients - spent)[0]:
            assert turn.plan.section.privacy is not None
            budget = turn.plan.section.privacy.budget
            ending.end(
                turn,
                f"the privacy budget is spent: after version {group.version} of {group.name}, "
                f"another would bring {len(spent)} clients above epsilon {budget:g}",
            )
    if not invited:
        group.reason = turn.federation.ending or reason
        return
    reason = f"{len(invited)} members are invited to version {group.version + 1}"
    turn.write(RoundOpened(group.name, group.round + 1, group.version, invited, reason))
    for member in invited:
        turn.order(member, _invitation(turn, group))


def _admitted(
    turn: Turn, group: GroupState, members: frozenset[str]
) -> tuple[tuple[str, ...], str]:
    """Whom the rule admits if these are live, and why not the first of those that it does not."""
    rule, state = turn.plan.rule(group.name), group.round_state(members)
    answers = {member: rule.admit(turn.now, member, state) for member in sorted(members)}
    invited = tuple(member for member, answer in answers.items() if isinstance(answer, Admit))
    reasons = [a.reason for a in answers.values() if not isinstance(a, Admit)]
    return invited, (reasons or ["no member is live"])[0]


def _invitation(turn: Turn, group: GroupState) -> Invite:
    seconds = turn.plan.group(group.name).rule.deadline
    return Invite(turn.federation.incarnation, group.name, group.round, group.version, seconds)


def _decide(turn: Turn, group: GroupState) -> float | None:
    arrivals = tuple(Arrival(r.id, r.version) for r in group.receipts.values())
    decision = turn.plan.rule(group.name).decide(turn.now, arrivals, group.round_state(turn.live))
    match decision:
        case Close(members, reason):
            assert turn.federation.pinned is not None
            epoch = turn.federation.pinned.placement.epoch
            cohort = Cohort(
                group.name,
                group.number + 1,
                group.version + 1,
                epoch,
                tuple(sorted(members, key=lambda m: m.id)),
                group.scale,
            )
            turn.write(CohortClosed(cohort, reason))
            turn.tell_shards(group.name, lambda shard, blocks: _hold(turn, group, blocks))
            return None
        case Extend(until, reason):
            turn.write(RoundExtended(group.name, group.round, group.extensions + 1, reason))
            return until
        case Drop(ids, reason):
            turn.write(RoundGivenUp(group.name, group.round, reason))
            turn.tell_fates(ids)
            turn.discard(ids)
            return turn.now
        case _:
            group.reason = decision.reason
            return decision.until


# --- 2 hold -----------------------------------------------------------------------


def _hold(turn: Turn, group: GroupState, blocks: tuple[int, ...]) -> Hold:
    assert group.cohort is not None
    members = tuple(
        MemberBlocks(m.id, tuple(group.receipts[m.id].blocks[b] for b in blocks))
        for m in group.cohort.members
    )
    return Hold(turn.federation.incarnation, group.cohort, members)


def held(turn: Turn, group: GroupState, shard: str, sums: tuple[bytes, ...]) -> None:
    """A shard holds the sums of the cohort; when all do, it is opened."""
    if shard not in group.held:
        turn.write(SumsHeld(group.name, group.number, ShardSums(shard, sums)))
    if group.phase is not Phase.OPENING:
        return
    if cipher(turn.plan.cipher_parameters).opening is Opening.NOTHING:
        opened(turn, group, ())
    else:
        open_again(turn, group)


def missing(turn: Turn, group: GroupState, ids: tuple[SubmissionId, ...]) -> None:
    """A shard lacks blocks: nothing was opened; the members send again, the rule closes anew."""
    turn.write(CohortReopened(group.name, group.number, ids))
    send_again(turn, ids)


def opening_lost(turn: Turn, group: GroupState, ids: tuple[SubmissionId, ...]) -> None:
    """A shard lost opened sums: the holders open the same cohort once more.

    If it lost the sums and blocks of members too, these send again first: the cohort cannot
    be burnt for it, for no holder opens another of this version with the same clients.
    """
    if ids:
        send_again(turn, ids)
    else:
        open_again(turn, group)


def came_again(turn: Turn, group: GroupState, receipt: Receipt) -> None:
    """Blocks of a submission can be had (again): shards that may wait for them hear of it."""
    if group.phase is Phase.FOUNDING:
        found(turn, group, receipt)
    elif group.phase is Phase.PREPARING:
        prepare_again(turn, group)


def send_again(turn: Turn, ids: tuple[SubmissionId, ...]) -> None:
    """Asks members for the same bytes once more, from their outboxes."""
    for id in ids:
        turn.order(id.client, SendAgain(turn.federation.incarnation, id))


# --- 3 open -----------------------------------------------------------------------


def _open(turn: Turn, group: GroupState) -> Open:
    assert group.cohort is not None
    receipts = tuple(group.receipts[m.id] for m in group.cohort.members)
    sums = tuple(ShardSums(shard, digests) for shard, digests in sorted(group.held.items()))
    return Open(turn.federation.incarnation, group.cohort, receipts, sums)


def open_again(turn: Turn, group: GroupState) -> None:
    """Asks the holders to open the cohort that every shard holds; the same one as before."""
    for holder in turn.holders:
        turn.order(holder, _open(turn, group))


def opened(turn: Turn, group: GroupState, sums: tuple[bytes, ...]) -> None:
    """The opening is there: journalled before it is forwarded."""
    turn.write(CohortOpened(group.name, group.number, sums))
    turn.tell_shards(group.name, lambda shard, blocks: _prepare(turn, group, blocks))


def burnt(turn: Turn, group: GroupState, reason: str) -> None:
    """A holder will never open this cohort: its members are dropped, a new round begins."""
    ids = tuple(group.receipts)
    turn.write(CohortBurnt(group.name, group.number, reason))
    turn.tell_fates(ids)
    turn.discard(ids)


# --- 4 prepare, 5 commit, 6 publish -----------------------------------------------


def _prepare(turn: Turn, group: GroupState, blocks: tuple[int, ...]) -> Prepare:
    assert group.cohort is not None
    sums = tuple(group.opened[b] for b in blocks) if group.opened else ()
    return Prepare(turn.federation.incarnation, group.cohort, sums)


def prepare_again(turn: Turn, group: GroupState) -> None:
    """Tells shards that are not prepared yet once more."""
    for shard, blocks in turn.federation.owners(group.name).items():
        if shard not in group.prepared:
            turn.order(shard, _prepare(turn, group, blocks))


def prepared(turn: Turn, group: GroupState, by: Prepared) -> None:
    """A shard is prepared; when all are, the version is committed and published."""
    version = group.version + 1
    if by.shard not in group.prepared:
        made = ShardPrepared(group.name, version, by.shard, by.blocks, by.state, by.scale)
        turn.write(made)
    if len(group.prepared) < len(turn.federation.owners(group.name)):
        return
    ids = tuple(group.receipts)
    turn.write(VersionCommitted(group.name, version))
    turn.tell_shards(group.name, lambda shard, blocks: _commit(turn, group))
    turn.tell_clients(_published(turn, group))
    turn.tell_fates(ids)
    late = tuple(id for id in ids if turn.federation.fates[id].outcome == "dropped")
    if late:
        turn.discard(late)


def _commit(turn: Turn, group: GroupState) -> Commit:
    kept = [c.version_of(group.name) for c in turn.federation.checkpoints]
    keep = max(0, min([group.version - 1, *kept]))
    return Commit(turn.federation.incarnation, group.name, group.version, keep)


def _published(turn: Turn, group: GroupState) -> Published:
    return Published(turn.federation.incarnation, group.name, group.version, group.blocks)


# --- for those who subscribe again ------------------------------------------------


def repeat(turn: Turn, party: str, unsettled: tuple[SubmissionId, ...]) -> None:
    """Everything that still concerns `party`, in the order of the steps.

    `unsettled` are submissions whose fate it does not know: a client's own that lie in its
    outbox, those of which a shard has blocks.
    """
    federation, pinned = turn.federation, turn.federation.pinned
    if pinned is None:
        return
    if party in pinned.placement.shards or party in turn.holders:
        shards = tuple(federation.shards[name] for name in pinned.placement.shards)
        turn.order(party, Configure(federation.incarnation, pinned.run, pinned.placement, shards))
    if party in pinned.placement.shards:
        for group in federation.groups.values():
            _repeat_to_shard(turn, group, party)
        past = tuple(id for id in unsettled if federation.past(id))
        if past:
            turn.order(party, Discard(federation.incarnation, past))
    elif party in turn.holders:
        for group in federation.groups.values():
            if group.phase is Phase.OPENING:
                turn.order(party, _open(turn, group))
            elif group.phase is Phase.PREPARING:
                prepare_again(turn, group)  # a shard may have lost what this holder opened
    else:
        for id in unsettled:
            if id in federation.fates:
                turn.tell_fates((id,))
            elif not federation.known(id):
                turn.order(party, SendAgain(federation.incarnation, id))
        for group in federation.groups.values():
            _repeat_to_client(turn, group, party)
    if party in checkpointing.parts_due(turn):
        last = federation.checkpoints[-1]
        turn.order(party, WriteCheckpoint(federation.incarnation, last.number, last.versions))
    if federation.finished:
        turn.order(party, Finish(federation.incarnation, federation.finished))


def _repeat_to_shard(turn: Turn, group: GroupState, shard: str) -> None:
    blocks = turn.federation.owners(group.name).get(shard)
    if blocks is None:
        return
    if group.phase is Phase.FOUNDING:
        if shard in group.prepared:
            return
        for receipt in group.receipts.values():
            turn.order(shard, Found(turn.federation.incarnation, group.name, receipt))
        if turn.plan.section.initial is not None:
            turn.order(shard, Found(turn.federation.incarnation, group.name, None))
        return
    turn.order(shard, _commit(turn, group))
    if group.phase is Phase.HOLDING and shard not in group.held:
        turn.order(shard, _hold(turn, group, blocks))
    if group.phase is Phase.PREPARING and shard not in group.prepared:
        turn.order(shard, _prepare(turn, group, blocks))


def _repeat_to_client(turn: Turn, group: GroupState, client: str) -> None:
    if group.version >= 0:
        turn.order(client, _published(turn, group))
    for receipt in [r for r in group.receipts.values() if r.id.client == client]:
        came_again(turn, group, receipt)  # a shard may have lost what is in its outbox
    arrived = {id.client for id in group.receipts}
    if group.phase is Phase.COLLECTING and client in group.invited - arrived:
        turn.order(client, _invitation(turn, group))
    if group.phase is Phase.FOUNDING and client == turn.federation.founder and not arrived:
        turn.order(client, _invitation(turn, group))
