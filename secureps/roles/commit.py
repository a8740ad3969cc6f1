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
    GroupVersion,
    Hold,
    Invite,
    MemberBlocks,
    Open,
    Prepare,
    Published,
    SendAgain,
    Settled,
    ShardSums,
    WriteCheckpoint,
)
from secureps.messages.records import (
    CheckpointComplete,
    CheckpointOrdered,
    CohortBurnt,
    CohortClosed,
    CohortOpened,
    CohortReopened,
    Finished,
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
from secureps.roles.federation import GroupState, Phase
from secureps.roles.machine import Work
from secureps.roles.tasks import WriteManifest
from secureps.roles.turn import Turn


def advance(turn: Turn) -> float | None:
    """Moves every group on; returns when time alone could move one (None: never)."""
    if turn.federation.pinned is None or turn.federation.finished:
        return None
    _choose_founder(turn)
    untils = [_advance_group(turn, group) for group in turn.federation.groups.values()]
    _order_checkpoint(turn)
    _finish(turn)
    return min((until for until in untils if until is not None), default=None)


def _advance_group(turn: Turn, group: GroupState) -> float | None:
    if group.phase is Phase.WAITING and group.version < turn.plan.section.versions:
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
    rule = turn.plan.rule(group.name)
    state = group.round_state(turn.live)
    answers = {member: rule.admit(turn.now, member, state) for member in sorted(turn.live)}
    invited = tuple(member for member, answer in answers.items() if isinstance(answer, Admit))
    if not invited:
        reasons = [answer.reason for answer in answers.values()] or ["no member is live"]
        group.reason = reasons[0]
        return
    reason = f"{len(invited)} members are invited to version {group.version + 1}"
    turn.write(RoundOpened(group.name, group.round + 1, group.version, invited, reason))
    for member in invited:
        turn.order(member, _invitation(turn, group))


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
            _tell_fates(turn, ids)
            _discard(turn, ids)
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
    _tell_fates(turn, ids)
    _discard(turn, ids)


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
    _tell_fates(turn, ids)
    late = tuple(id for id in ids if turn.federation.fates[id].outcome == "dropped")
    if late:
        _discard(turn, late)


def _commit(turn: Turn, group: GroupState) -> Commit:
    kept = [c.version_of(group.name) for c in turn.federation.checkpoints]
    keep = max(0, min([group.version - 1, *kept]))
    return Commit(turn.federation.incarnation, group.name, group.version, keep)


def _published(turn: Turn, group: GroupState) -> Published:
    return Published(turn.federation.incarnation, group.name, group.version, group.blocks)


def _tell_fates(turn: Turn, ids: tuple[SubmissionId, ...]) -> None:
    for id in ids:
        fate = turn.federation.fates[id]
        turn.order(
            id.client,
            Settled(turn.federation.incarnation, id, fate.outcome, fate.version, fate.reason),
        )


def _discard(turn: Turn, ids: tuple[SubmissionId, ...]) -> None:
    assert turn.federation.pinned is not None
    for shard in turn.federation.pinned.placement.shards:
        turn.order(shard, Discard(turn.federation.incarnation, ids))


# --- checkpoints and the end ------------------------------------------------------


def _order_checkpoint(turn: Turn) -> None:
    federation, every = turn.federation, turn.plan.section.checkpoint_every
    groups = federation.groups.values()
    last = federation.checkpoints[-1] if federation.checkpoints else None
    if any(group.version < 0 for group in groups) or (last and not last.complete):
        return
    for group in groups:
        before = last.version_of(group.name) if last else -1
        final = group.version == turn.plan.section.versions
        if group.version // every > before // every or (final and before < group.version):
            break
    else:
        return
    versions = tuple(GroupVersion(group.name, group.version) for group in groups)
    number = last.number + 1 if last else 0
    turn.write(CheckpointOrdered(number, versions))
    for shard in _parts_due(turn):
        turn.order(shard, WriteCheckpoint(federation.incarnation, number, versions))


def _parts_due(turn: Turn) -> tuple[str, ...]:
    """Shards that owe their part of the checkpoint in the making."""
    assert turn.federation.pinned is not None
    last = turn.federation.checkpoints[-1] if turn.federation.checkpoints else None
    if last is None or last.complete:
        return ()
    return tuple(s for s in turn.federation.pinned.placement.shards if s not in last.parts)


def manifest_again(turn: Turn) -> None:
    """When all parts of a checkpoint have arrived, its manifest makes it complete."""
    last = turn.federation.checkpoints[-1] if turn.federation.checkpoints else None
    if last is not None and not last.complete and not _parts_due(turn):
        ledger, unsafe = turn.federation.ledger, tuple(sorted(turn.federation.unsafe))
        facts = (ledger.charges, ledger.releases, unsafe)
        turn.step.effects.append(Work(WriteManifest(last.number, last.versions, *facts)))


def checkpoint_complete(turn: Turn, number: int) -> None:
    """What was included is durable: outboxes and spools may forget it."""
    ids = turn.federation.covered(number)
    turn.write(CheckpointComplete(number))
    _tell_fates(turn, ids)
    if ids:
        _discard(turn, ids)


def _finish(turn: Turn) -> None:
    federation, versions = turn.federation, turn.plan.section.versions
    if any(group.version < versions for group in federation.groups.values()):
        return
    last = federation.checkpoints[-1] if federation.checkpoints else None
    if last is None or not last.complete or any(gv.version < versions for gv in last.versions):
        return
    turn.write(Finished(f"all {versions} versions are made"))
    for party in sorted(turn.watchers):
        turn.order(party, Finish(federation.incarnation, federation.finished))


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
                _tell_fates(turn, (id,))
            elif not federation.known(id):
                turn.order(party, SendAgain(federation.incarnation, id))
        for group in federation.groups.values():
            _repeat_to_client(turn, group, party)
    if party in _parts_due(turn):
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
