"""Groups whose rule has no rounds: members train one by one, cohorts close out of what is here.

    begin     version 0 is there: live clients take part
    follow    members come and go
    ask       members that the rule admits train, from the newest version
    decide    the rule closes a cohort, gives updates up, or waits
    end       the last version is made, or the run ends: what waits is dropped

While a cohort is made into a version, members go on sending: what is not in it stays here. A client
whose cohort was burnt, or in whose envelopes a flaw was found, sits out until the next version: it
is not asked, and what it has sent waits. If too few others are here to make that version, sets of a
burnt cohort may (`roles.coordinator.recovery`); if nobody is left, the group is given up.
"""

from __future__ import annotations

import math
from collections import ChainMap
from dataclasses import replace
from itertools import islice

from secureps.crypto.cipher import Opening
from secureps.errors import RuleFailed
from secureps.messages import coordinator_records as records
from secureps.messages.requests import Withdraw
from secureps.messages.submission import SubmissionId
from secureps.policy.base import Base
from secureps.policy.cohorts.overlap import base_of
from secureps.policy.cohorts.suspicion import Choice
from secureps.policy.rules import supports
from secureps.policy.rules.registry import refuse_close
from secureps.policy.rules.rule import (
    Admission,
    Admit,
    Arrival,
    Close,
    Drop,
    PassOver,
    RuleState,
    Wait,
    holds_everybody,
)
from secureps.roles.coordinator import commit, opening, recovery, synchronous, termination
from secureps.roles.coordinator.group import MOST_REFUSED, GroupState, Phase
from secureps.roles.coordinator.transaction import GOES_ON, Names, Transaction
from secureps.wording import named


def advance(tx: Transaction, group: GroupState) -> Wait:
    if group.phase is Phase.WAITING and not termination.over(tx, group):
        tx.write(records.StreamBegan(group.name))
    if group.phase is Phase.COLLECTING and termination.over(tx, group):
        _end(tx, group)
    if not group.streaming:
        return GOES_ON
    try:
        return _move(tx, group)
    except RuleFailed as error:
        return _fail(tx, group, f"the rule{tx.plan.of(group.name)} failed: {error}")


def _move(tx: Transaction, group: GroupState) -> Wait:
    _follow(tx, group)
    waits = _decide(tx, group) if group.phase is Phase.COLLECTING else GOES_ON
    if not group.streaming or recovery.under_way(group):
        return waits
    if lacking := termination.too_few(tx, group):
        return Wait(waits.until, lacking)
    chosen = None
    if _may_follow(tx, group):
        chosen = recovery.choice(tx, group, tx.takers(group.name))
        lacking = opening.short(tx, group) if chosen.clients else ""
        if chosen.clients and not lacking:
            _begin_set(tx, group, chosen)
            return _decide_set(tx, group)
        if not lacking:
            _send_back(tx, group, chosen)
        if not chosen.over and not _suffice(tx, group, _others(tx, group)):
            until = _earliest(waits.until, _patience(tx, group))
            return Wait(until, lacking or chosen.reason)
    spent, reason = len(group.open_stream.spent), waits.reason
    asked = _ask(tx, group)
    if asked.reason and group.phase is Phase.COLLECTING:  # a version in the making keeps its words
        reason = f"{reason or group.reason}; {asked.reason}"
    if group.phase is Phase.COLLECTING and not tx.federation.ending:
        _end_if_too_few(tx, group, chosen.reason if chosen is not None else "")
    if group.resigned:
        return tx.again
    if tx.federation.ending or len(group.open_stream.spent) > spent:
        return Wait(tx.now, reason)
    until = _earliest(waits.until, asked.until, _patience(tx, group), _rest(tx, group))
    return Wait(until, reason)


def _earliest(*times: float | None) -> float | None:
    return min((at for at in times if at is not None), default=None)


def _patience(tx: Transaction, group: GroupState) -> float | None:
    """Until when others may follow a burnt cohort before sets of it do; None: not now."""
    if group.phase is not Phase.COLLECTING or not recovery.possible(tx, group):
        return None
    until = (group.opened_at or 0.0) + _deadline(tx, group)
    return until if tx.now < until else None


def _rest(tx: Transaction, group: GroupState) -> float | None:
    """When a client whose submissions were refused too often is asked once more."""
    stream, pause = group.open_stream, _deadline(tx, group)
    untils = (stream.rests_until(client, group.version, pause) for client in stream.refused)
    return min((until for until in untils if until > tx.now), default=None)


def _deadline(tx: Transaction, group: GroupState) -> float:
    return tx.plan.group(group.name).rule.deadline


def _may_follow(tx: Transaction, group: GroupState) -> bool:
    """Whether sets of a burnt cohort are to make the version: others had a deadline's time."""
    if group.phase is not Phase.COLLECTING or tx.federation.ending:
        return False
    if not recovery.possible(tx, group):
        return False
    return _patience(tx, group) is None or not _suffice(tx, group, _others(tx, group))


def _others(tx: Transaction, group: GroupState) -> frozenset[str]:
    """Clients that are here and do not sit out, or have sent something before they went."""
    here, stream = tx.takers(group.name), group.open_stream
    coming = {id.client for id in group.pending} | (stream.training.keys() & here)
    return (here - stream.spent | coming) - group.sitting_out


def _suffice(tx: Transaction, group: GroupState, clients: frozenset[str]) -> bool:
    return len(clients) >= tx.plan.bounds(group.name).minimum


def _send_back(tx: Transaction, group: GroupState, chosen: Choice) -> None:
    """If no set can be tried, clients that were behind train from the newest version.

    Those who are needed for a set have a deadline's time to come.
    """
    if not chosen.over and _patience(tx, group) is not None:
        return
    clients = recovery.behind(tx, group)
    here = clients & tx.takers(group.name) - group.open_stream.spent
    if here and _suffice(tx, group, _others(tx, group) | here):
        tx.write(records.MembersReturned(group.name, tuple(sorted(clients)), chosen.reason))


def _begin_set(tx: Transaction, group: GroupState, chosen: Choice) -> None:
    """Asks these clients to seal again what they sent; what they have sent since is dropped."""
    clients = tuple(sorted(chosen.clients))
    later = tuple(id for id in group.pending if id.client in chosen.clients)
    text = "its client seals again what it sent before, for a cohort that was burnt"
    tx.drop(group.name, later, text)
    tx.write(
        records.RoundOpened(group.name, group.round + 1, group.version, clients, chosen.reason)
    )
    for client in clients:
        tx.order(client, recovery.make_invite(tx, group, client))


def _decide_set(tx: Transaction, group: GroupState) -> Wait:
    for client in sorted(group.invited & tx.federation.isolated.keys()):
        synchronous.declined(tx, group, client, "left out of this run")
    match recovery.decide_set(tx, group):
        case Close(members, reason):
            commit.close(tx, group, members, reason)
            return GOES_ON
        case Drop(_, reason):
            _give_up(tx, group, reason)
            return tx.again
        case Wait() as waits:
            return waits


def _give_up(tx: Transaction, group: GroupState, reason: str) -> None:
    ids = tuple(id for id in group.pending if id.client in group.suspicion.chosen)
    tx.drop(group.name, ids, reason)
    tx.write(records.RoundGivenUp(group.name, group.round, reason))


def state(tx: Transaction, group: GroupState) -> RuleState:
    """The group as the rule sees it: members that may train no more count for what they sent."""
    stream, own = group.open_stream, tx.attendance(group)
    live: Names = own.here
    if stream.spent:
        gone = stream.spent - {id.client for id in group.receipts}
        live = tx.takers(group.name) - group.sitting_out - gone
    seen = stream.state(group.version, live, group.opened_at)
    waiting = len(group.receipts) + len(group.returning)
    return replace(seen, waiting=waiting, training=own.asked)  # nobody trains who may no more


def _end(tx: Transaction, group: GroupState) -> None:
    last = f"version {group.version}{tx.plan.of(group.name)} is the last"
    reason = tx.federation.ending or group.resigned or last
    ids = group.pending
    tx.write(records.StreamEnded(group.name, reason))
    tx.settle(ids)


def _fail(tx: Transaction, group: GroupState, reason: str) -> Wait:
    """Ends the run after the version in the making: its rule cannot be asked any more."""
    began = not tx.federation.ending
    termination.end(tx, reason, RuleFailed)
    if group.phase is Phase.COLLECTING:
        _end(tx, group)
    return tx.again if began else GOES_ON


def _follow(tx: Transaction, group: GroupState) -> None:
    """Has live clients take part; those that sit out, or whose lease ran out, leave.

    What members sent that are left out of the run is given up, and so is what shards lost and its
    client does not have either.
    """
    out = tx.federation.isolated
    pending = group.pending if out else ()  # nobody looks at all that wait at every event
    ids = (id for id in pending if id.client in out and not group.closed_over(id))
    if given_up := tuple(ids):
        names = named(sorted({id.client for id in given_up}))
        tx.drop(group.name, given_up, f"{names} left out of this run")
    returning = sorted(group.open_stream.returning)
    if lost := tuple(id for id in returning if id in tx.sessions.lost.get(id.client, ())):
        tx.drop(group.name, lost, "a shard lost its blocks, and so did its client")
    comes, goes = tx.attendance(group).comes_and_goes(group.open_stream)
    for client in goes:
        tx.write(records.MemberLeft(group.name, client))
    for client in comes:
        clock = tx.rule(group.name).enter(state(tx, group))
        waiting = len(group.open_receipts.clients.get(client, ()))  # of before it went away
        waiting += sum(id.client == client for id in group.returning)
        tx.write(records.MemberEntered(group.name, client, clock + waiting))


def _decide(tx: Transaction, group: GroupState) -> Wait:
    if recovery.under_way(group):
        return _decide_set(tx, group)
    stream, opened, here = group.open_stream, group.open_receipts, group.receipts
    # A deadline counts from the oldest that the rule sees: another one, while the first waits. And
    # where versions fall into periods, what comes may end what is here.
    seen_first = not here or next(iter(here)) in opened.ready
    alike = opening.periods(tx, group.name) is None
    steady = seen_first and alike and not group.sitting_out
    oldest = group.version - tx.plan.bounds(group.name).stale

    def ask() -> tuple[int, int, Wait]:
        waits = _decide_now(tx, group)
        return len(here), opened.changes, waits

    def holds(known: tuple[int, int, Wait]) -> bool:
        count, changes, waits = known
        if not (steady and count <= len(here) < waits.arrivals and synchronous.early(tx, waits)):
            return False
        new = islice(reversed(opened.ready), opened.changes - changes)
        return all(here[id].version >= oldest for id in new)

    seen = (group.version, stream.closed, group.opened_at, len(stream.returning))
    rule, kept = tx.rule(group.name), opening.kept(tx, group)
    basis = (seen, steady, group.suspicion, rule, kept)
    return tx.cache.of(("decided", group.name), basis, ask, holds)[-1]


def _decide_now(tx: Transaction, group: GroupState) -> Wait:
    ids, waiting = opening.examined(tx, group)
    arrived, seen_ids = group.open_stream.arrived, _seen(group, set(ids))
    arrivals = tuple(
        Arrival(r.id, r.version, arrived[r.id], r.magnitude, r.step)
        for r in sorted(
            (group.receipts[id] for id in seen_ids), key=lambda r: (arrived[r.id], r.id)
        )
    )
    rule, period = tx.rule(group.name), opening.periods(tx, group.name)
    seen, minimum = state(tx, group), tx.plan.bounds(group.name).minimum
    whole = (r for r in group.receipts.values() if r.id.client not in group.sitting_out)
    bases = {receipt.id: receipt.version for receipt in whole} if period is not None else {}
    chosen = supports.alike(period, arrivals, bases, group.version, minimum)
    if isinstance(chosen, Drop):
        tx.drop(group.name, chosen.ids, chosen.reason)
        return tx.again
    # what holders have not looked into, or is sent again, has not arrived, as far as a rule can see
    unseen, done = set(group.pending) - seen_ids, _done(tx, group, seen)
    if unseen or done:
        stream = group.open_stream  # not copied: it may have very many clients
        clocks = ChainMap(dict.fromkeys(done, seen.closed + 1), stream.clocks)
        for id in unseen:
            if id.client in clocks:
                clocks[id.client] -= 1
        stood = {id.client: at for id, at in arrived.items() if id.client in done}
        seen = replace(seen, clocks=clocks, moved=ChainMap(stream.moved, stood))
        if stream.returning:
            asked = {id.client for id in stream.returning}.union(seen.invited)
            seen = replace(seen, invited=asked, training=None)
    decision = rule.decide(tx.now, chosen, seen)
    decision = supports.not_for_ever(period, decision, chosen, bases, group.version)
    match decision:
        case Close(members, reason):
            if opening.wanted(tx.plan) and group.suspicion.suspect_sets:
                members = tuple(replace(member, weight=1) for member in members)
            sealed = tx.plan.opening is not Opening.NOTHING
            here = {arrival.id for arrival in chosen}
            own = tx.plan.bounds(group.name)
            if wrong := refuse_close(members, here, group.version, own, sealed):
                text = f"the rule{tx.plan.of(group.name)} closed what may not be opened: {wrong}"
                return _fail(tx, group, text)
            commit.close(tx, group, members, reason)
            return GOES_ON
        case Drop(ids, reason):
            tx.drop(group.name, ids, reason)
            return tx.again
        case PassOver(members, reason):
            for client in members:
                tx.write(records.MemberPassed(group.name, client, reason))
            return tx.again
        case _:
            reason = f"{decision.reason}; {waiting}" if waiting else decision.reason
            enough = decision.arrivals if isinstance(decision, Wait) else 0
            return Wait(decision.until, reason, arrivals=enough)


def _done(tx: Transaction, group: GroupState, seen: RuleState) -> set[str]:
    """Members that nobody waits for: their budget is spent, or all have sent what they may."""
    stream = group.open_stream
    found = set(seen.live & stream.spent)
    if seen.live.isdisjoint(stream.training):
        behind = (c for c in seen.live if stream.clocks.get(c, seen.closed + 1) <= seen.closed)
        found.update(client for client in behind if _all_sent(tx, group, client))
    return found


def _all_sent(tx: Transaction, group: GroupState, client: str) -> bool:
    """Whether a client has made all updates of the newest version that the plan allows."""
    base = group.open_stream.next_base(client, group.version)
    return base.step > tx.plan.bounds(group.name).ahead


def _seen(group: GroupState, ids: set[SubmissionId]) -> set[SubmissionId]:
    """The submissions that a rule may see: none before an older one of the same client.

    Holders open a client's updates in the order in which it made them, and no others.
    """
    first: dict[str, int] = {}
    for id in set(group.pending) - ids:
        first[id.client] = min(id.sequence, first.get(id.client, id.sequence))
    return {
        id
        for id in ids
        if id.client not in group.sitting_out and id.sequence < first.get(id.client, math.inf)
    }


def _ask(tx: Transaction, group: GroupState) -> Wait:
    """Asks members that the rule admits; says why nobody trains, and when time may change that."""
    coming = group.version + (group.phase is not Phase.COLLECTING)
    if coming >= tx.plan.versions(group.name) or tx.federation.ending:
        return GOES_ON
    if lacking := opening.short(tx, group):
        return Wait(None, lacking)
    stream, rule, own = group.open_stream, tx.rule(group.name), tx.attendance(group)
    now, held, until = state(tx, group), "", None
    first = next((rule.admit(tx.now, client, now) for client in own.free), None)
    if first is not None and holds_everybody(first):
        return Wait(_until(first), "" if stream.training else first.reason)
    for client in own.in_order(stream.closed):
        answer = rule.admit(tx.now, client, now)
        if not isinstance(answer, Admit):
            held = held or answer.reason
            if holds_everybody(answer):
                until = _until(answer)
                break
            continue
        if termination.unaffordable(tx, client, group):
            held = held or f"the budget of {client} is spent"
            tx.write(records.MemberLeft(group.name, client, spent=True))
            now = state(tx, group)  # nobody waits for its clock
            continue
        if stream.rests_until(client, group.version, _deadline(tx, group)) > tx.now:
            held = held or f"what {client} sent was refused {MOST_REFUSED} times"
            continue
        if _all_sent(tx, group, client):
            held = held or f"{client} has sent all that it may from version {group.version}"
            continue
        base = stream.next_base(client, group.version)
        tx.write(records.MemberAsked(group.name, client, base.version, base.step))
        tx.attendance(group)  # the rule sees that it trains
        tx.order(client, recovery.make_invite(tx, group, client))
    return Wait(until, "" if stream.training else held or "no member is live")


def _asks_nobody(tx: Transaction, group: GroupState) -> bool:
    """Whether nobody trains, and those here are asked only when others have come."""
    stream, now = group.open_stream, state(tx, group)
    idle, gone = now.live - stream.spent, tx.federation.isolated.keys() | tx.federation.retired
    if stream.training.keys() - gone or not idle:
        return False
    answer = tx.rule(group.name).admit(tx.now, min(idle), now)
    return holds_everybody(answer) and _until(answer) is None


def _until(answer: Admission) -> float | None:
    return answer.until if isinstance(answer, Wait) else None


def withdrawn(tx: Transaction, group: GroupState, message: Withdraw, reason: str) -> None:
    """What a client sent was refused on its way: it is asked anew.

    What was to come again never does. The set of a client that sealed the same anew is given up.
    """
    id, base = message.id, Base(message.version, message.step)
    if id.client in group.invited:
        place = group.places[id.client]
        same = base == base_of(place) and id.sequence > place.id.sequence
        if same and group.awaits(id.client):
            tx.write(replace(message, reason=reason))
            _give_up(tx, group, f"given up: what {id.client} sent was refused: {reason}")
        return
    asked = group.open_stream.training.get(id.client)
    if id in group.open_stream.returning:
        tx.drop(group.name, (id,), f"its blocks were refused when they came again: {reason}")
    elif asked is not None and asked <= base:
        tx.write(replace(message, reason=reason))


def _end_if_too_few(tx: Transaction, group: GroupState, tried: str) -> None:
    """Gives the group up if nobody is left who might make the next version.

    Those who might make a version of a row-block are those who joined; of others it is not known
    that they touch it.

    Args:
        tried: why no set of a burnt cohort makes it, if there was one.
    """
    federation, stream = tx.federation, group.open_stream
    out = group.sitting_out - recovery.behind(tx, group)
    retired = frozenset(federation.retired)
    block = termination.row_block(tx, group)
    if block and not out:
        return
    spent = frozenset(stream.spent)
    if tx.live.isdisjoint(stream.training):
        spent |= termination.exhausted(tx, (group,))
    gone = out | spent | retired | federation.isolated.keys()
    if not gone:
        return
    joined = tx.clients.intersection(federation.members) if block else tx.clients
    least = tx.plan.bounds(group.name).minimum
    able = tx.takers(group.name, joined) - retired
    coming = {
        id.client for id in group.pending
    } | stream.training.keys() - federation.isolated.keys()
    enough = len((able - spent | coming) - out) >= least
    # What others sent before they went counts for a cohort, and not for whom a rule asks.
    asked = len(able - spent - out) >= least or not _asks_nobody(tx, group)
    if enough and asked:
        return
    if not out and not federation.isolated:
        termination.end(tx, *termination.budget_spent(tx, group, spent, retired))
        return
    parts = {
        "are left out of this run": federation.isolated.keys(),
        "may spend no more": spent | retired,
    }
    why = [f"{named(sorted(names))} {what}" for what, names in parts.items() if names]
    why = [group.why_out(out), *why] if out else why
    termination.give_up(
        tx,
        group,
        f"fewer than {least} clients are left for version {group.version + 1}"
        f"{tx.plan.of(group.name)}: "
        + "; ".join([*why, *([f"{tried}; {recovery.suspects(group)}"] if tried else ())]),
    )
