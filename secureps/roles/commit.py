"""The six steps of a version, as the coordinator drives them.

    1 close    cohort and weights journalled before any message names them
    2 hold     every shard verifies and sums; what is missing leads to a new close
    3 open     only when all hold
    4 prepare  shards average and step; their new blocks are durable
    5 commit   when all are prepared
    6 publish  clients are told

`advance` moves every group as far as it can go now. What must not live here: checks of who may
say what (`roles.coordinator`), what is said again to whom (`roles.repeating`), rules, I/O.
"""

from __future__ import annotations

from secureps.crypto.cipher import Opening
from secureps.crypto.suite import cipher
from secureps.messages.evaluation import EVALUATION
from secureps.messages.orders import (
    Commit,
    Examine,
    Found,
    Hold,
    Invite,
    MemberBlocks,
    Open,
    Prepare,
    Published,
    SendAgain,
    ShardSums,
)
from secureps.messages.records import (
    CohortBurnt,
    CohortClosed,
    CohortOpened,
    CohortReopened,
    FlawFoundLate,
    FounderChosen,
    LiarsNamed,
    MemberDeclined,
    OpeningFailed,
    ReceiptExamined,
    RoundExtended,
    RoundGivenUp,
    RoundOpened,
    ShardPrepared,
    SumsHeld,
    VersionCommitted,
)
from secureps.messages.requests import Examined, Prepared
from secureps.messages.submission import Cohort, Receipt, SubmissionId
from secureps.policy.rule import Admit, Arrival, Close, Drop, Extend, Wait
from secureps.policy.sync import named
from secureps.roles import checkpointing, ending, judging, quorum, suspecting
from secureps.roles.federation import GroupState, Phase
from secureps.roles.turn import Turn

REASON_LIMIT = 300
"""Characters of another party's own words that are kept."""


def advance(turn: Turn) -> float | None:
    """Moves every group on; returns when time alone could move one (None: never)."""
    if turn.federation.pinned is None or turn.federation.finished:
        return None
    _choose_founder(turn)
    if judging.unkept(turn):
        checkpointing.order(turn)  # a round may wait for it
    untils = [_advance_group(turn, group) for group in turn.federation.groups.values()]
    untils.append(_await_evaluator(turn))
    checkpointing.order(turn)
    ending.finish(turn)
    return min((until for until in untils if until is not None), default=None)


def _advance_group(turn: Turn, group: GroupState) -> float | None:
    until = None
    if group.name == EVALUATION:
        until = _open_evaluation(turn, group)
    elif group.phase is Phase.WAITING and not ending.over(turn, group):
        until = _open_round(turn, group)
    if group.phase is Phase.OPENING and quorum.wanted(turn.plan):
        until = _try_answers(turn, group)
    return _decide(turn, group) if group.phase is Phase.COLLECTING else until


# --- before version 0 -------------------------------------------------------------


def _choose_founder(turn: Turn) -> None:
    federation = turn.federation
    founding = [g for g in federation.groups.values() if g.phase is Phase.FOUNDING]
    waiting = [g for g in founding if not turn.plan.given(g.name)]
    if not any(not g.receipts for g in waiting):
        return
    if federation.founder not in turn.trainers:
        candidates = [client for client in federation.members if client in turn.trainers]
        if candidates:
            turn.write(FounderChosen(candidates[0]))
            for group in [g for g in waiting if not g.receipts]:
                turn.order(federation.founder, make_invite(turn, group, federation.founder))


def found(turn: Turn, group: GroupState, receipt: Receipt | None) -> None:
    """A founding model is complete (or lies in the plan's file): the shards make version 0."""
    for shard in turn.federation.owners(group.name):
        if shard not in group.prepared:
            turn.order(shard, Found(turn.federation.incarnation, group.name, receipt))


# --- 1 close ----------------------------------------------------------------------


def _open_round(turn: Turn, group: GroupState) -> float | None:
    suspecting.end_if_hopeless(turn, group)
    out = frozenset(turn.federation.isolated)
    live, retired = turn.trainers - out, frozenset(turn.federation.retired)
    invited, reason = _admitted(turn, group, live)
    if invited or retired:
        spent = ending.exhausted(turn, ending.next_version(turn))
        invited, reason = _admitted(turn, group, live - spent)
        if stopped := (live & spent) | retired:
            reason = f"their budget is spent: {named(sorted(stopped))}; {reason}"
        if not invited and not _admitted(turn, group, turn.clients - out - spent - retired)[0]:
            ending.end(turn, ending.budget_spent(turn, group, spent, retired))
    if not invited:
        group.reason = turn.federation.ending or reason
        return None
    if lacking := quorum.short(turn):
        group.reason = lacking
        return None
    held = judging.hold_back(turn, group)
    if held is not None:
        group.reason = held.reason
        return held.until
    reason = f"{len(invited)} members are invited to version {group.version + 1}"
    _invite(turn, group, invited, reason)
    return None


def _open_evaluation(turn: Turn, group: GroupState) -> float | None:
    """Asks members to evaluate the version that the model is at, if it is due."""
    judging.skip_lost(turn, group)
    at = judging.due(turn)
    if group.phase is not Phase.WAITING or not at:
        return None
    live = turn.live - ending.exhausted(turn, (group,)) - turn.federation.isolated.keys()
    invited, reason = _admitted(turn, group, live)
    if not invited:
        return judging.await_members(turn, group, at, reason)
    _invite(turn, group, invited, f"{len(invited)} members are asked to evaluate version {at}")
    return None


def _await_evaluator(turn: Turn) -> float | None:
    """At the end of a run no round waits for a designated evaluator; the end does."""
    at = judging.due(turn)
    if EVALUATION in turn.federation.groups or not at:
        return None
    if not all(ending.over(turn, group) for group in turn.federation.model_groups):
        return None
    held = judging.await_evaluator(turn, at)
    return turn.now if held is None else held.until


def _invite(turn: Turn, group: GroupState, invited: tuple[str, ...], reason: str) -> None:
    turn.write(RoundOpened(group.name, group.round + 1, group.version, invited, reason))
    for member in invited:
        turn.order(member, make_invite(turn, group, member))


def declined(turn: Turn, group: GroupState, client: str, reason: str) -> None:
    """A member takes no part in the open round; too few for any cohort end it at once."""
    turn.write(MemberDeclined(group.name, group.round, client, reason))
    _end_if_too_few(turn, group, client, reason)


def _end_if_too_few(turn: Turn, group: GroupState, client: str, reason: str) -> None:
    least = turn.plan.rule(group.name).minimum
    if len(group.invited) < least:
        ids = tuple(group.receipts)
        _give_up(
            turn,
            group,
            ids,
            f"given up: {len(group.invited)} members take part, the minimum cohort is {least} "
            f"({client}: {reason})",
        )


def _give_up(turn: Turn, group: GroupState, ids: tuple[SubmissionId, ...], reason: str) -> None:
    turn.write(RoundGivenUp(group.name, group.round, reason))
    turn.tell_fates(ids)
    turn.discard(ids)


def _admitted(
    turn: Turn, group: GroupState, members: frozenset[str]
) -> tuple[tuple[str, ...], str]:
    """Whom the rule admits if these are live, and why not the first of those that it does not."""
    if suspecting.chooses(turn, group):
        chosen = suspecting.choice(turn, group, members)
        return tuple(sorted(chosen.clients)), chosen.reason
    rule, out = turn.plan.rule(group.name), len(turn.federation.isolated)
    state = group.round_state(members, out)
    answers = {member: rule.admit(turn.now, member, state) for member in sorted(members)}
    invited = tuple(member for member, answer in answers.items() if isinstance(answer, Admit))
    reasons = [a.reason for a in answers.values() if not isinstance(a, Admit)]
    return invited, (reasons or ["no member is live"])[0]


def make_invite(turn: Turn, group: GroupState, member: str) -> Invite:
    """To train, from the committed version."""
    seconds = turn.plan.group(group.name).rule.deadline
    evaluates, number = judging.asked(turn, group, member), turn.federation.incarnation
    return Invite(number, group.name, group.round, group.version, seconds, evaluates)


def _decide(turn: Turn, group: GroupState) -> float | None:
    receipts, waiting = quorum.examined(turn, group)
    arrivals = tuple(Arrival(r.id, r.version) for r in receipts)
    if suspecting.chooses(turn, group):
        decision = suspecting.decide(turn, group, arrivals)
    else:
        seen = group.round_state(turn.live)
        decision = turn.plan.rule(group.name).decide(turn.now, arrivals, seen)
    if waiting and not isinstance(decision, Close | Wait):  # they are here, and count in time
        decision = Wait(quorum.last_look(turn, group), "the deadline is over")
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
            turn.tell_shards(group.name, lambda shard, blocks: make_hold(turn, group, blocks))
            return None
        case Extend(until, reason):
            turn.write(RoundExtended(group.name, group.round, group.extensions + 1, reason))
            return until
        case Drop(ids, reason):
            _give_up(turn, group, ids, reason)
            return turn.now
        case _:
            group.reason = f"{decision.reason}; {waiting}" if waiting else decision.reason
            return decision.until


# --- 2 hold -----------------------------------------------------------------------


def make_hold(turn: Turn, group: GroupState, blocks: tuple[int, ...]) -> Hold:
    """To a shard with these blocks."""
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
    elif group.key is not None:
        prepare_again(turn, group)
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


def make_open(turn: Turn, group: GroupState) -> Open:
    """The same for every holder."""
    assert group.cohort is not None
    receipts = tuple(group.receipts[m.id] for m in group.cohort.members)
    sums = tuple(ShardSums(shard, digests) for shard, digests in sorted(group.held.items()))
    return Open(turn.federation.incarnation, group.cohort, receipts, sums)


def open_again(turn: Turn, group: GroupState) -> None:
    """Asks the holders to open the cohort that every shard holds; the same one as before."""
    for holder in turn.holders:
        turn.order(holder, make_open(turn, group))


def opened(
    turn: Turn,
    group: GroupState,
    sums: tuple[bytes, ...],
    key: bytes | None = None,
    holders: tuple[str, ...] | None = None,
) -> None:
    """The opening is there: journalled before it is forwarded."""
    turn.write(CohortOpened(group.name, group.number, sums, key, holders))
    turn.tell_shards(group.name, lambda shard, blocks: make_prepare(turn, group, blocks))


def burnt(turn: Turn, group: GroupState, reason: str, spoilt: bool = False) -> None:
    """Nobody will ever open this cohort: its members are dropped, a new round begins.

    `spoilt`: it was for what a member of a committee's cohort sent.
    """
    ids = tuple(group.receipts)
    turn.write(CohortBurnt(group.name, group.number, reason, spoilt))
    turn.tell_fates(ids)
    turn.discard(ids)
    suspecting.isolate(turn, group)


# --- what a committee of holders says ---------------------------------------------


def examine(turn: Turn, receipt: Receipt) -> None:
    """A receipt has come: every holder of a committee is asked to look into its envelope."""
    if not quorum.wanted(turn.plan):
        return
    for holder in turn.holders:
        turn.order(holder, Examine(turn.federation.incarnation, receipt))


def looked_into(turn: Turn, group: GroupState, answer: Examined) -> None:
    """A holder has; with a flaw the submission is dropped, before anything is opened.

    No holder was asked to open a cohort that is only held: it is closed anew. Once holders are
    asked it is too late (this one will refuse its share), and the client is remembered.
    """
    id, flaw = answer.id, answer.flaw[:REASON_LIMIT]
    if answer.holder in group.examined.get(id, ()):
        return
    if flaw and group.phase is Phase.HOLDING and id in group.receipts:
        turn.write(CohortReopened(group.name, group.number, ()))
    if id in group.receipts and (not flaw or group.phase is Phase.COLLECTING):
        turn.write(ReceiptExamined(group.name, id, answer.holder, flaw))
        if flaw:
            turn.tell_fates((id,))
            turn.discard((id,))
            _end_if_too_few(turn, group, id.client, turn.federation.fates[id].reason)
    elif flaw and id.client not in group.suspicion.flawed:
        fate = turn.federation.fates.get(id)
        if id in group.receipts or (fate is not None and fate.outcome != "dropped"):
            turn.write(FlawFoundLate(group.name, id, answer.holder, flaw))


def _try_answers(turn: Turn, group: GroupState) -> float | None:
    """Tries the next sum of keys that the answers give, if there is one."""
    match quorum.decide(turn, group):
        case quorum.Found(key, holders):
            opened(turn, group, (), key, holders)
            return None
        case quorum.Hopeless(reason, spoilt):
            burnt(turn, group, reason, spoilt)
            return turn.now
        case quorum.Patience(until, reason):
            group.reason = reason
            return until


def did_not_open(turn: Turn, group: GroupState, shard: str, reason: str) -> None:
    """The sum of keys that was tried is not that of the cohort: another subset may give it."""
    text = f"with the answers of {', '.join(group.opened_by)}, {shard} says: {reason}"
    turn.write(OpeningFailed(group.name, group.number, group.opened_by, text[:REASON_LIMIT]))


# --- 4 prepare, 5 commit, 6 publish -----------------------------------------------


def make_prepare(turn: Turn, group: GroupState, blocks: tuple[int, ...]) -> Prepare:
    """To a shard with these blocks."""
    assert group.cohort is not None
    sums = tuple(group.opened[b] for b in blocks) if group.opened else ()
    return Prepare(turn.federation.incarnation, group.cohort, sums, group.key)


def prepare_again(turn: Turn, group: GroupState) -> None:
    """Tells shards that are not prepared yet once more."""
    for shard, blocks in turn.federation.owners(group.name).items():
        if shard not in group.prepared:
            turn.order(shard, make_prepare(turn, group, blocks))


def prepared(turn: Turn, group: GroupState, by: Prepared) -> bool:
    """A shard is prepared; when all are, the version is committed and published.

    Returns:
        whether it is.
    """
    version = group.version + 1
    if by.shard not in group.prepared:
        made = ShardPrepared(group.name, version, by.shard, by.blocks, by.state, by.scale)
        turn.write(made)
    if len(group.prepared) < len(turn.federation.owners(group.name)):
        return False
    if group.key is not None:
        _name_liars(turn, group)
    ids = tuple(group.receipts)
    turn.write(VersionCommitted(group.name, version))
    suspecting.isolate(turn, group)
    turn.tell_shards(group.name, lambda shard, blocks: make_commit(turn, group))
    turn.tell_clients(make_published(turn, group))
    turn.tell_fates(ids)
    late = tuple(id for id in ids if turn.federation.fates[id].outcome == "dropped")
    if late:
        turn.discard(late)
    return True


def _name_liars(turn: Turn, group: GroupState) -> None:
    """The opening was right: holders whose answers do not fit it are on record."""
    names, reason = quorum.liars(turn, group)
    if names:
        turn.write(LiarsNamed(group.name, group.number, names, reason))


def make_commit(turn: Turn, group: GroupState) -> Commit:
    """With what may be forgotten."""
    kept = [c.version_of(group.name) for c in turn.federation.checkpoints]
    keep = max(0, min([group.version - 1, *kept]))
    return Commit(turn.federation.incarnation, group.name, group.version, keep)


def make_published(turn: Turn, group: GroupState) -> Published:
    """What clients pull."""
    return Published(turn.federation.incarnation, group.name, group.version, group.blocks)
