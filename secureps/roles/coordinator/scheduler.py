"""Brings each group from one version to the next.

Theory of operation. The coordinator asks members to train. Their updates wait until the group's
rule closes a cohort of them; the cohort then becomes a version (`roles.coordinator.commit`) or is
burnt. The table of transitions (`roles.coordinator.group`) lists every change that a group can go
through. This module decides when a change happens, and makes it by writing a record.

    open      In WAITING, a group with rounds asks all members that the rule admits, together
              (`_open_round`). A group without rounds starts to take updates.
    follow    Live clients take part; clients that sit out, left, or are left out do not.
    decide    In COLLECTING, the rule closes a cohort, moves the deadline, drops updates, passes
              members over, or waits.
    ask       Without rounds, each member that the rule admits trains from the newest version, also
              while the next version is made. Updates outside the cohort wait for a later one.
    end       After the last version, or when the run ends, waiting updates are dropped.

A round asks its members once and ends with its cohort; updates that are not in the cohort are
dropped. Of fragments only the one with the fewest versions opens a round. After a burnt cohort
`roles.coordinator.recovery` may choose the clients of the next rounds, under every rule; while such
a round is open, the rule is not asked.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import ChainMap, Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import lru_cache

from secureps.crypto.cipher import Opening
from secureps.errors import RuleFailed
from secureps.messages import coordinator_records as records
from secureps.messages.encoding import digest
from secureps.messages.submission import Base, Receipt, SubmissionId
from secureps.policy.cohorts.suspicion import Choice
from secureps.policy.plan import joint_groups, next_groups
from secureps.policy.rules.registry import refuse_close
from secureps.policy.rules.rule import (
    Admission,
    Admit,
    Arrival,
    Close,
    Decision,
    Drop,
    Extend,
    PassOver,
    RuleState,
    Wait,
    end_hopeless_wait,
    holds_everybody,
    select_alike,
)
from secureps.roles.coordinator import (
    checkpointing,
    commit,
    envelopes,
    founding,
    opening,
    recovery,
    resharding,
    termination,
    trailing,
)
from secureps.roles.coordinator.group import MOST_REFUSED, GroupState, Phase
from secureps.roles.coordinator.transaction import GOES_ON, Names, Transaction
from secureps.wording import named


def advance(tx: Transaction) -> float | None:
    """Moves every group on; returns when time alone could move one (None: never)."""
    if tx.federation.pinned is None or tx.federation.finished:
        return None
    leaves = resharding.drop_absent_shard(tx)
    resharding.advance(tx)
    founding.choose_founder(tx)
    moves = resharding.describe_due_move(tx)
    if trailing.unkept_version(tx) and not moves:
        checkpointing.order(tx)  # a round may wait for it
    paused = tx.federation.paused or moves or checkpointing.why_cohorts_wait(tx)
    untils = [_advance_group(tx, group, paused) for group in tx.federation.groups.values()]
    untils += (leaves, _await_evaluator(tx))
    if not moves:
        checkpointing.order(tx)
    envelopes.release(tx)
    if tx.federation.coming is None:
        termination.finish(tx)
    untils.append(note_overdue(tx))
    return _earliest(*untils)


def _advance_group(tx: Transaction, group: GroupState, paused: str) -> float | None:
    until = None
    for waits in _steps(tx, group, paused):
        group.reason, until = waits.reason or group.reason, waits.until
    return until


def _steps(tx: Transaction, group: GroupState, paused: str) -> Iterator[Wait]:
    envelopes.give_up_lost(tx, group)
    envelopes.leave_out_doubted(tx, group)
    if paused and _is_between(tx, group):
        yield Wait(None, paused)
        return
    if group.phase is Phase.WAITING:
        yield _open(tx, group)
    if group.takes_updates:
        yield _collect(tx, group)
    if group.phase is Phase.OPENING and tx.plan.has_committee:
        yield commit.try_answers(tx, group)


def _is_between(tx: Transaction, group: GroupState) -> bool:
    """True if a group is between two versions, where a pause or a move of blocks can hold it.

    A closed cohort goes on to its version.
    """
    return group.phase in (Phase.WAITING, Phase.COLLECTING) and not tx.is_over(group)


# --- open ---------------------------------------------------------------------------


def _open(tx: Transaction, group: GroupState) -> Wait:
    if group.trails:
        return _open_trailing(tx, group)
    if tx.is_over(group):
        return GOES_ON
    if group.rounds:
        return _open_round(tx, group)
    tx.write(records.StreamBegan(group.name))
    return GOES_ON


def _end_if_hopeless(tx: Transaction, group: GroupState) -> None:
    """Gives a group up if no set of clients can make its next version."""
    if not recovery.is_choosing(tx, group):
        return
    tried = recovery.choice(tx, group, tx.takers(group.name))
    if not recovery.note_grown(tx, group, tried.over) and tried.over:
        termination.give_up(
            tx,
            group,
            f"{len(group.suspicion.burnt)} cohorts in succession came to nothing at version "
            f"{group.version}{tx.plan.of(group.name)}, and every one was charged: "
            f"{group.reason}; {tried.reason}; {recovery.describe_suspects(group)}",
        )


def _open_round(tx: Transaction, group: GroupState) -> Wait:
    if group not in (turn := _next_groups(tx, group)):
        return Wait(None, f"waits for its turn, and {turn[0].name} is sent first")
    _end_if_hopeless(tx, group)
    if group.resigned:
        return GOES_ON
    out, retired = _left_out(tx, group), frozenset(tx.federation.retired)
    live = tx.present(group)
    invited, reason = _admit(tx, group, live)
    spent = frozenset[str]()
    if invited or retired:
        spent = termination.exhausted_clients(tx, termination.groups_ahead(tx, group))
        if spent:
            invited, reason = _admit(tx, group, live - spent)
        gone = {
            "their budget is spent": (live | retired) & spent,
            "take part no more": retired - spent,
        }
        why = [f"{text}: {named(sorted(names))}" for text, names in gone.items() if names]
        reason = "; ".join([*why, reason])
    absent = out | spent | retired
    if absent and not invited and not _admit(tx, group, tx.clients - absent)[0]:
        termination.end_for_few(tx, group, group.sitting_out, spent)
        if group.resigned:
            return GOES_ON
    if not invited:
        return Wait(None, tx.federation.ending or tx.why_too_few(group) or reason)
    if lacking := opening.why_too_few(tx, group):
        return Wait(None, lacking)
    held = _await_unheard(tx, group, invited) or trailing.hold_back(tx)
    if held is not None:
        return held
    reason = f"{len(invited)} members are invited to version {group.version + 1}"
    _invite(tx, group, invited, reason)
    return GOES_ON


def _next_groups(tx: Transaction, group: GroupState) -> list[GroupState]:
    """Returns the groups whose rounds are next, of those that train together with this one."""
    groups, joint = tx.federation.groups, joint_groups(tx.plan, group.name)
    versions = {name: groups[name].version for name in joint}
    return [groups[name] for name in next_groups(tx.plan, joint, versions)]


def _await_unheard(tx: Transaction, group: GroupState, invited: tuple[str, ...]) -> Wait | None:
    """Waits a while, after a restart, for clients that may have gone before it.

    Clients that are there come back within seconds. For one that is not, a round would wait until
    its deadline.
    """
    until = tx.sessions.began + min(tx.plan.section.lease, tx.deadline(group.name))
    unheard = tx.sessions.unheard.intersection(invited)
    if not unheard or tx.now >= until:
        return None
    return Wait(until, f"waits to hear of {named(sorted(unheard))}, since it began anew")


def _left_out(tx: Transaction, group: GroupState) -> frozenset[str]:
    """Clients that are not waited for: out of the run, or in an opened sum of this version."""
    return group.sitting_out | tx.federation.isolated.keys()


def _open_trailing(tx: Transaction, group: GroupState) -> Wait:
    trailing.skip_lost(tx, group)
    at = tx.evaluation_due()
    if not at:
        return GOES_ON
    out = termination.exhausted_clients(tx, (group,)) | _left_out(tx, group)
    invited, reason = _admit(tx, group, tx.live - out)
    if not invited:
        may_come = _admit(tx, group, tx.clients - out - tx.federation.retired)[0]
        return trailing.await_members(tx, group, at, reason, bool(may_come))
    _invite(tx, group, invited, f"{len(invited)} members are asked to evaluate version {at}")
    return GOES_ON


def _invite(tx: Transaction, group: GroupState, invited: Collection[str], reason: str) -> None:
    clients = tuple(sorted(invited))
    tx.write(records.RoundOpened(group.name, group.round + 1, group.version, clients, reason))
    for client in clients:
        tx.order(client, tx.make_invite(group, client))


def _admit(tx: Transaction, group: GroupState, members: Names) -> tuple[tuple[str, ...], str]:
    """Returns the members that the rule admits if these are live, and why it refuses the first."""
    if recovery.is_choosing(tx, group):
        chosen = recovery.choice(tx, group, frozenset(members))
        return tuple(sorted(chosen.clients)), chosen.reason
    rule, out = tx.rule(group.name), len(_left_out(tx, group))
    state = replace(rule_state(tx, group), live=members, left_out=out)
    first = next((rule.admit(tx.now, member, state) for member in members), None)
    if first is not None and holds_everybody(first):
        return (), first.reason
    answers: dict[str, Admission] = {}
    for member in sorted(members):
        answers[member] = rule.admit(tx.now, member, state)
        if holds_everybody(answers[member]):
            break
    invited = tuple(member for member, answer in answers.items() if isinstance(answer, Admit))
    reasons = [a.reason for a in answers.values() if not isinstance(a, Admit)]
    return invited, (reasons or ["no member is live"])[0]


# --- collect ------------------------------------------------------------------------


def _collect(tx: Transaction, group: GroupState) -> Wait:
    collecting = group.phase is Phase.COLLECTING
    if not group.rounds and collecting and tx.is_over(group):
        _end(tx, group)
        return GOES_ON
    if collecting and group.invited and not termination.leave_out(tx, group):
        return tx.again
    try:
        if group.rounds:
            return _decide(tx, group)
        return _run_stream(tx, group)
    except RuleFailed as error:
        return _fail(tx, group, f"the rule{tx.plan.of(group.name)} failed: {error}")


def _run_stream(tx: Transaction, group: GroupState) -> Wait:
    """Updates the members, decides and asks, in a group without rounds."""
    _follow(tx, group)
    waits = _decide(tx, group) if group.phase is Phase.COLLECTING else GOES_ON
    if not group.takes_updates or recovery.is_chosen_round(tx, group):
        return waits
    if lacking := tx.why_too_few(group):
        return Wait(waits.until, lacking)
    chosen = None
    if _may_try_sets(tx, group):
        chosen = recovery.choice(tx, group, tx.takers(group.name))
        alone = not _are_enough(tx, group, _others(tx, group))
        if recovery.note_grown(tx, group, chosen.over and alone):
            return tx.again
        lacking = opening.why_too_few(tx, group) if chosen.clients else ""
        if chosen.clients and not lacking:
            _begin_set(tx, group, chosen)
            return _decide(tx, group)
        if not lacking:
            _send_back(tx, group, chosen)
        if not chosen.over and not _are_enough(tx, group, _others(tx, group)):
            until = _earliest(waits.until, _patience(tx, group))
            return Wait(until, lacking or chosen.reason)
    spent, reason = len(group.members.spent), waits.reason
    asked = _ask(tx, group)
    if asked.reason and group.phase is Phase.COLLECTING:  # otherwise keep the version's own reason
        reason = f"{reason or group.reason}; {asked.reason}"
    if group.phase is Phase.COLLECTING and not tx.federation.ending:
        _end_if_too_few(tx, group, chosen.reason if chosen is not None else "")
    if group.resigned:
        return tx.again
    if tx.federation.ending or len(group.members.spent) > spent:
        return Wait(tx.now, reason)
    until = _earliest(waits.until, asked.until, _patience(tx, group), _rest(tx, group))
    return Wait(until, reason)


def _earliest(*times: float | None) -> float | None:
    return min((at for at in times if at is not None), default=None)


def _patience(tx: Transaction, group: GroupState) -> float | None:
    """Returns until when only other clients may follow a burnt cohort; None if sets may, too."""
    if group.phase is not Phase.COLLECTING or not recovery.has_burnt(tx, group):
        return None
    until = (group.opened_at or 0.0) + _deadline(tx, group)
    return until if tx.now < until else None


def _rest(tx: Transaction, group: GroupState) -> float | None:
    """Returns when a client whose updates were refused too often is asked once more."""
    members, pause = group.members, _deadline(tx, group)
    untils = (members.rests_until(client, group.version, pause) for client in members.refused)
    return min((until for until in untils if until > tx.now), default=None)


def _deadline(tx: Transaction, group: GroupState) -> float:
    return tx.plan.group(group.name).rule.deadline


def _may_try_sets(tx: Transaction, group: GroupState) -> bool:
    """True if sets of a burnt cohort may make the version, since others had a deadline's time."""
    if group.phase is not Phase.COLLECTING or tx.federation.ending:
        return False
    if not recovery.has_burnt(tx, group):
        return False
    return _patience(tx, group) is None or not _are_enough(tx, group, _others(tx, group))


def _others(tx: Transaction, group: GroupState) -> frozenset[str]:
    """Clients that do not sit out, and are here or have sent an update before they went."""
    here, members = tx.takers(group.name), group.members
    coming = {id.client for id in group.pending} | (members.training.keys() & here)
    return (here - members.spent | coming) - group.sitting_out


def _are_enough(tx: Transaction, group: GroupState, clients: frozenset[str]) -> bool:
    return len(clients) >= tx.plan.bounds(group.name).minimum


def _send_back(tx: Transaction, group: GroupState, chosen: Choice) -> None:
    """Has clients that were behind train from the newest version, if no set can be tried.

    Clients that a set needs first have a deadline's time to come.
    """
    if not chosen.over and _patience(tx, group) is not None:
        return
    clients = recovery.clients_behind(tx, group)
    here = clients & tx.takers(group.name) - group.members.spent
    if here and _are_enough(tx, group, _others(tx, group) | here):
        tx.write(records.MembersReturned(group.name, tuple(sorted(clients)), chosen.reason))


def _begin_set(tx: Transaction, group: GroupState, chosen: Choice) -> None:
    """Asks these clients to seal again what they sent, and drops what they sent since."""
    later = tuple(id for id in group.pending if id.client in chosen.clients)
    text = "its client seals again what it sent before, for a cohort that was burnt"
    tx.drop(group.name, later, text)
    _invite(tx, group, chosen.clients, chosen.reason)


def rule_state(tx: Transaction, group: GroupState) -> RuleState:
    """Returns the group as the rule sees it; spent members count only for what they sent."""
    members, live = group.members, tx.present(group)
    if members.spent:
        gone = members.spent - {id.client for id in group.receipts}
        live = tx.takers(group.name) - group.sitting_out - gone
    return RuleState(
        version=group.version,
        live=live,
        invited=group.invited if group.rounds else members.training.keys(),
        opened_at=group.opened_at,
        extensions=group.extensions,
        clocks=members.clocks,
        closed=members.closed,
        moved=members.moved,
        passed=members.passed,
        sent=members.sent,
        waiting=len(group.receipts) + len(members.returning),
    )


def _end(tx: Transaction, group: GroupState) -> None:
    last = f"version {group.version}{tx.plan.of(group.name)} is the last"
    reason = tx.federation.ending or group.resigned or last
    ids = group.pending
    tx.write(records.StreamEnded(group.name, reason))
    tx.settle(ids)


def _fail(tx: Transaction, group: GroupState, reason: str) -> Wait:
    """Ends the run after the version in the making, because its rule failed."""
    began = not tx.federation.ending
    termination.end(tx, reason, RuleFailed)
    if not group.rounds and group.phase is Phase.COLLECTING:
        _end(tx, group)
    return tx.again if began else GOES_ON


def _follow(tx: Transaction, group: GroupState) -> None:
    """Has live clients enter the group; clients that sit out, or whose lease ran out, leave it.

    Drops the updates of clients that are left out of the run, and updates whose blocks both a shard
    and the client have lost.
    """
    out = tx.federation.isolated
    pending = group.pending if out else ()  # too many to look at in every event
    ids = (id for id in pending if id.client in out and not group.is_closed_over(id))
    if given_up := tuple(ids):
        names = named(sorted({id.client for id in given_up}))
        tx.drop(group.name, given_up, f"{names} left out of this run")
    returning = sorted(group.members.returning)
    if lost := tuple(id for id in returning if id in tx.sessions.lost.get(id.client, ())):
        tx.drop(group.name, lost, "a shard lost its blocks, and so did its client")
    here, members = tx.present(group), group.members
    for client in sorted(members.clocks.keys() - here):
        tx.write(records.MemberLeft(group.name, client))
    comes = sorted(here - members.clocks.keys() - members.passed)
    if not comes:
        return
    seen = rule_state(tx, group)  # its clocks are those of the moment
    for client in comes:
        clock = tx.rule(group.name).enter(seen)
        waiting = len(group.open_receipts.clients.get(client, ()))  # sent before it went away
        waiting += sum(id.client == client for id in members.returning)
        tx.write(records.MemberEntered(group.name, client, clock + waiting))


# --- decide -------------------------------------------------------------------------


def _decide(tx: Transaction, group: GroupState) -> Wait:
    """Carries out the decision of the rule, or of suspicion, about the updates that wait."""
    ids, waiting = opening.visible_submissions(tx, group)
    decision = choose_decision(tx, group, ids)
    in_round = group.rounds or recovery.is_chosen_round(tx, group)
    whole = group.rounds or group.suspicion.chosen <= group.open_receipts.clients.keys()
    if waiting and in_round and whole and isinstance(decision, Drop | Extend):
        # they came in time, and key holders are still examining them
        decision = Wait(opening.last_look(tx, group), "the deadline is over")
    match decision:
        case Close(members, reason):
            commit.close(tx, group, members, reason)
            return GOES_ON
        case Extend(until, reason):
            tx.write(records.RoundExtended(group.name, group.round, group.extensions + 1, reason))
            return Wait(until, reason)
        case Drop(_, reason) if in_round:
            termination.give_up_round(tx, group, reason)
            return tx.again
        case Drop(dropped, reason):
            tx.drop(group.name, dropped, reason)
            return tx.again
        case PassOver(passed, reason):
            for client in passed:
                tx.write(records.MemberPassed(group.name, client, reason))
            return tx.again
        case Wait(until, reason):
            return Wait(until, f"{reason}; {waiting}" if waiting else reason)


def choose_decision(tx: Transaction, group: GroupState, ids: Collection[SubmissionId]) -> Decision:
    """Returns the decision of the rule, or of suspicion, about these updates."""
    shown = _arrivals(group, _shown_submissions(group, set(ids)))
    if recovery.is_chosen_round(tx, group):
        return recovery.decide(tx, group, shown)
    return _ask_rule(tx, group, shown)


def _shown_submissions(group: GroupState, ids: set[SubmissionId]) -> set[SubmissionId]:
    """Returns the submissions that a cohort may have: in a round, the answers to it.

    Without a round, these are the submissions of members that do not sit out, unless an older one
    of the same client is still missing: holders open a client's updates in their order.
    """
    if chosen := group.suspicion.chosen:
        return {id for id in ids if id.client in chosen}
    first: dict[str, int] = {}
    for id in set(group.pending) - ids:
        first[id.client] = min(id.sequence, first.get(id.client, id.sequence))
    return {
        id
        for id in ids
        if id.client not in group.sitting_out and id.sequence < first.get(id.client, math.inf)
    }


def _arrivals(group: GroupState, ids: Collection[SubmissionId]) -> tuple[Arrival, ...]:
    """Returns these submissions as the rule sees them, in the order of arrival."""
    at = group.members.arrived
    in_order = sorted(ids, key=lambda id: (at[id], id.client, id.sequence))
    came = [group.receipts[id] for id in in_order]
    return tuple(
        Arrival(r.id, r.version, at[r.id], r.magnitude, r.step) for r in largest_alike(came)
    )


def largest_alike(receipts: Collection[Receipt]) -> Collection[Receipt]:
    """Returns the largest set of receipts that trained beside the same models of other groups.

    One group may be a version ahead while another still waits for members. Holders open no sum of
    updates that were trained beside different models.
    """
    counts = Counter(receipt.beside for receipt in receipts)
    if len(counts) < 2:
        return receipts
    ((most, _),) = counts.most_common(1)
    return tuple(receipt for receipt in receipts if receipt.beside == most)


def _ask_rule(tx: Transaction, group: GroupState, arrivals: tuple[Arrival, ...]) -> Decision:
    period, own = opening.periods(tx, group.name), tx.plan.bounds(group.name)
    whole = (r for r in group.receipts.values() if r.id.client not in group.sitting_out)
    bases = {receipt.id: receipt.version for receipt in whole} if period is not None else {}
    shown = select_alike(period, arrivals, bases, group.version, own.minimum)
    if isinstance(shown, Drop):
        return shown
    seen = _discount(tx, group, rule_state(tx, group), {arrival.id for arrival in arrivals})
    decision = tx.rule(group.name).decide(tx.now, shown, seen)
    decision = end_hopeless_wait(period, decision, shown, bases, group.version)
    if not isinstance(decision, Close):
        return decision
    if why := _why_undivided(tx, group, len(decision.members)):
        ids = tuple(sorted(member.id for member in decision.members))
        return Drop(ids, f"given up: {why}") if group.rounds else Wait(None, why)
    if tx.plan.divides_cohorts and group.suspicion.suspect_sets:
        members = tuple(replace(member, weight=1) for member in decision.members)
        decision = replace(decision, members=members)
    sealed, here = tx.plan.opening is not Opening.NOTHING, {arrival.id for arrival in shown}
    if wrong := refuse_close(decision.members, here, group.version, own, sealed):
        raise RuleFailed(f"it closed what may not be opened: {wrong}")
    return decision


def _why_undivided(tx: Transaction, group: GroupState, members: int) -> str:
    """Returns why a cohort waits for more: if it were too long, it could not be divided."""
    least = 2 * tx.plan.bounds(group.name).minimum
    coming = tx.takers(group.name, tx.clients) - tx.federation.retired - group.sitting_out
    if not group.times or members >= least or len(coming) < least:
        return ""
    bound = tx.plan.group(group.name).bound
    return f'{members} have arrived, and bound = "{bound}" needs {least}: two sets of the minimum'


def _discount(
    tx: Transaction, group: GroupState, seen: RuleState, shown: set[SubmissionId]
) -> RuleState:
    """Takes updates that are not shown out of the state that the rule sees.

    Key holders have not examined these updates yet, or their clients send them again. Members that
    have sent all that they may count as far enough, so that the rule does not wait for them.
    """
    if group.rounds:
        return seen
    members, unseen, done = group.members, set(group.pending) - shown, _find_done(tx, group, seen)
    if not (unseen or done):
        return seen
    # a view, not a copy: there may be very many clients
    clocks = ChainMap(dict.fromkeys(done, seen.closed + 1), members.clocks)
    for id in unseen:
        if id.client in clocks:
            clocks[id.client] -= 1
    stood = {id.client: at for id, at in members.arrived.items() if id.client in done}
    seen = replace(seen, clocks=clocks, moved=ChainMap(members.moved, stood))
    if members.returning:
        asked = {id.client for id in members.returning}.union(seen.invited)
        seen = replace(seen, invited=asked)
    return seen


def _find_done(tx: Transaction, group: GroupState, seen: RuleState) -> set[str]:
    """Members not to wait for: their budget is spent, or they have sent all that they may."""
    members = group.members
    found = set(seen.live & members.spent)
    if seen.live.isdisjoint(members.training):
        behind = (c for c in seen.live if members.clocks.get(c, seen.closed + 1) <= seen.closed)
        found.update(client for client in behind if _has_sent_all(tx, group, client))
    return found


def _has_sent_all(tx: Transaction, group: GroupState, client: str) -> bool:
    """True if a client has sent as many updates of the newest version as the plan allows."""
    base = group.members.next_base(client, group.version)
    return base.step > tx.plan.bounds(group.name).ahead


def _ask(tx: Transaction, group: GroupState) -> Wait:
    """Asks members that the rule admits; returns why none trains, and when that may change."""
    coming = group.version + (group.phase is not Phase.COLLECTING)
    if coming >= tx.plan.versions(group.name) or tx.federation.ending:
        return GOES_ON
    if lacking := opening.why_too_few(tx, group):
        return Wait(None, lacking)
    members, rule = group.members, tx.rule(group.name)
    now, held, until = rule_state(tx, group), "", None
    busy, free = now.busy_since, tx.present(group) - members.training.keys()
    if free and holds_everybody(first := rule.admit(tx.now, min(free), now)):
        return Wait(_until(first), "" if members.training else first.reason)
    for client in _in_order(group, free):
        answer = rule.admit(tx.now, client, now)
        if not isinstance(answer, Admit):
            held = held or answer.reason
            if holds_everybody(answer):
                until = _until(answer)
                break
            continue
        if termination.is_unaffordable(tx, client, group):
            held = held or f"the budget of {client} is spent"
            tx.write(records.MemberLeft(group.name, client, spent=True))
            now = rule_state(tx, group)  # without its clock
            busy = now.busy_since
            continue
        if members.rests_until(client, group.version, _deadline(tx, group)) > tx.now:
            held = held or f"what {client} sent was refused {MOST_REFUSED} times"
            continue
        if _has_sent_all(tx, group, client):
            held = held or f"{client} has sent all that it may from version {group.version}"
            continue
        base = members.next_base(client, group.version)
        tx.write(records.MemberAsked(group.name, client, base.version, base.step))
        insort(busy, members.moved.get(client, math.inf))  # the rule sees that it trains
        tx.order(client, tx.make_invite(group, client))
    return Wait(until, "" if members.training else held or "no member is live")


def _in_order(group: GroupState, free: Collection[str]) -> list[str]:
    """Returns free clients, first those whose last contribution is oldest; ties by lot."""
    members, never = group.members, Base(-1, 0)

    def place(client: str) -> tuple[int, bytes]:
        return members.sent.get(client, never).version, _draw_lot(client, members.closed)

    return sorted(free, key=place)


@lru_cache(1 << 17)
def _draw_lot(client: str, closed: int) -> bytes:
    """Draws a client's lot for the next cohort, when so many are settled."""
    return digest("secureps-asked", client.encode(), closed.to_bytes(8, "little"))


def _asks_nobody(tx: Transaction, group: GroupState) -> bool:
    """True if no client trains, and the rule asks those that are here only after others come."""
    members, now = group.members, rule_state(tx, group)
    idle, gone = now.live - members.spent, tx.federation.isolated.keys() | tx.federation.retired
    if members.training.keys() - gone or not idle:
        return False
    answer = tx.rule(group.name).admit(tx.now, min(idle), now)
    return holds_everybody(answer) and _until(answer) is None


def _until(answer: Admission) -> float | None:
    return answer.until if isinstance(answer, Wait) else None


def _end_if_too_few(tx: Transaction, group: GroupState, tried: str) -> None:
    """Gives the group up if too few clients are left that might make the next version.

    For a row-block only clients that joined count, because others may not touch it. `tried` is as
    in `termination.end_for_few`.
    """
    federation, members = tx.federation, group.members
    out = group.sitting_out - recovery.clients_behind(tx, group)
    retired = frozenset(federation.retired)
    block = tx.is_row_block(group)
    if block and not out:
        return
    spent = frozenset(members.spent)
    if tx.live.isdisjoint(members.training):
        spent |= termination.exhausted_clients(tx, (group,))
    gone = out | spent | retired | federation.isolated.keys()
    if not gone:
        return
    joined = tx.clients.intersection(federation.members) if block else tx.clients
    least = tx.plan.bounds(group.name).minimum
    able = tx.takers(group.name, joined) - retired
    coming = {
        id.client for id in group.pending
    } | members.training.keys() - federation.isolated.keys()
    enough = len((able - spent | coming) - out) >= least
    # Updates of clients that went count for a cohort, but a rule asks only clients that are here.
    asked = len(able - spent - out) >= least or not _asks_nobody(tx, group)
    if enough and asked:
        return
    tried = f"{tried}; {recovery.describe_suspects(group)}" if tried else ""
    termination.end_for_few(tx, group, out, spent, tried)


def _await_evaluator(tx: Transaction) -> float | None:
    """Has the end of a run wait for a designated evaluator, since no later round does."""
    at = tx.evaluation_due()
    if tx.trailing is not None or not at:
        return None
    if not all(tx.is_over(group) for group in tx.federation.model_groups):
        return None
    held = trailing.await_evaluator(tx, at)
    return tx.now if held is None else held.until


def note_overdue(tx: Transaction) -> float | None:
    """Notes which servers are overdue, logs each once, and returns when another one may be."""
    sessions, names, until = tx.sessions, dict[str, str](), list[float]()
    owed = {step: parties for step, parties in _owed(tx) if parties}
    sessions.steps = {step: sessions.steps.get(step, tx.now) for step in owed}
    for (group, version, what), parties in owed.items():
        deadline = tx.plan.group(group or tx.plan.groups[0]).rule.deadline
        end = sessions.steps[group, version, what] + deadline
        if tx.now < end:
            until.append(end)
            continue
        text = f"owes {what} {version} for more than {deadline:g} s, the plan's deadline"
        names |= {party: text for party in parties if party in tx.watchers}
    for party in sorted(names.keys() - sessions.overdue.keys()):
        tx.step.say(f"{party} {names[party]}")
    sessions.overdue = names
    return min(until, default=None)


def _owed(tx: Transaction) -> Iterator[tuple[tuple[str, int, str], tuple[str, ...]]]:
    """Yields (group or "", version or checkpoint, what is owed), and the servers that owe it."""
    for group in tx.federation.groups.values():
        what, silent = _find_owed(tx, group)
        yield (group.name, group.version + 1, what), silent
    if parts := checkpointing.parts_due(tx):
        yield ("", tx.federation.checkpoints[-1].number, "its part of checkpoint"), parts


def _find_owed(tx: Transaction, group: GroupState) -> tuple[str, tuple[str, ...]]:
    heard: Collection[str]
    match group.phase:
        case Phase.HOLDING:
            what, heard = "its sums for version", group.closed_cohort.held
        case Phase.OPENING if tx.plan.has_committee:
            return "its share for version", opening.silent_holders(tx, group)
        case Phase.OPENING:
            return "the opened sums for version", tx.holders
        case Phase.PREPARING:
            what, heard = "its part of version", group.coming
        case Phase.FOUNDING if tx.plan.is_given(group.name):
            what, heard = "its part of version", group.coming
        case _:
            return "", ()
    return what, tuple(shard for shard in tx.federation.owners(group.name) if shard not in heard)
