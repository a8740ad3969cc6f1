"""Groups whose rule has no rounds: members train one by one, cohorts close out of what is here.

    begin     version 0 is there: whoever is live takes part
    follow    members come and go
    ask       whom the rule admits trains, from the newest version
    decide    the rule closes a cohort, gives updates up, or waits
    end       the last version is made, or the run ends: what waits is dropped

While a cohort is made into a version, members go on sending: what is not in it stays here. A
client whose cohort was burnt, or in whose envelopes a flaw was found, sits out until the next
version: it is not asked, and what it has sent waits. If too few others are here to make that one,
sets of a burnt cohort may (`roles.following`); if nobody is left, the group is given up.
What must not live here: the steps of a version (`roles.commit`), rules.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from functools import lru_cache

from secureps.crypto.cipher import Opening
from secureps.errors import RuleFailed
from secureps.messages.encoding import digest
from secureps.messages.orders import Invite
from secureps.messages.requests import Withdraw
from secureps.messages.stream_records import (
    MemberAsked,
    MemberEntered,
    MemberLeft,
    MemberPassed,
    StreamBegan,
    StreamEnded,
    SubmissionWithdrawn,
)
from secureps.messages.submission import SubmissionId
from secureps.policy.rule import (
    Admit,
    Arrival,
    Base,
    Close,
    Drop,
    PassOver,
    RuleState,
    holds_everybody,
    named,
)
from secureps.policy.rules import refuse_close
from secureps.policy.suspicion import Choice
from secureps.roles import commit, ending, following, quorum, suspecting
from secureps.roles.group_state import GroupState, Phase
from secureps.roles.pool import MOST_REFUSED
from secureps.roles.turn import Turn


def advance(turn: Turn, group: GroupState) -> float | None:
    """Moves a group without rounds on; returns when time alone could move it."""
    if group.phase is Phase.WAITING and not ending.over(turn, group):
        turn.write(StreamBegan(group.name))
    if group.phase is Phase.COLLECTING and ending.over(turn, group):
        _end(turn, group)
    if not group.streaming:
        return None
    try:
        return _move(turn, group)
    except RuleFailed as error:
        return _fail(turn, group, f"the rule{turn.plan.of(group.name)} failed: {error}")


def _move(turn: Turn, group: GroupState) -> float | None:
    _follow(turn, group)
    until = _decide(turn, group) if group.phase is Phase.COLLECTING else None
    if not group.streaming or following.under_way(group):
        return until
    if lacking := ending.too_few(turn, group):
        group.reason = lacking
        return until
    over = ""
    if group.phase is Phase.COLLECTING and _needs_a_set(turn, group):
        chosen = following.choice(turn, group)
        if not chosen.over:
            return _try(turn, group, chosen)
        over = chosen.reason
    spent = len(group.pool.spent)
    held = _ask(turn, group)
    if held and group.phase is Phase.COLLECTING:  # what a version in the making waits for stays
        group.reason = f"{group.reason}; {held}"
    if group.phase is Phase.COLLECTING and not turn.federation.ending:
        _end_if_too_few(turn, group, over)
    done = turn.federation.ending or group.resigned
    return turn.now if done or len(group.pool.spent) > spent else until


def _needs_a_set(turn: Turn, group: GroupState) -> bool:
    """Whether too few others are here to follow a burnt cohort."""
    if turn.federation.ending or not following.possible(turn, group):
        return False
    least = turn.plan.bounds(group.name).minimum
    return len(_others(turn, group, turn.takers(group.name), group.pool.spent)) < least


def _try(turn: Turn, group: GroupState, chosen: Choice) -> float | None:
    """A set of a burnt cohort stands to the test, once those who are needed for it are here."""
    lacking = quorum.short(turn)
    if lacking or not chosen.clients:
        group.reason = lacking or chosen.reason
        return None
    following.begin(turn, group, chosen)
    return following.decide(turn, group)


def _others(turn: Turn, group: GroupState, able: Set[str], spent: Set[str]) -> frozenset[str]:
    """Who may make the next version: of these, and whose update is here or may still come."""
    training = group.pool.training.keys() - turn.federation.isolated.keys()
    coming = {id.client for id in group.pending} | training
    return frozenset((able - spent | coming) - group.sitting_out)


def state(turn: Turn, group: GroupState) -> RuleState:
    """As the rule sees a group: whoever may train no more is there for what it has sent."""
    gone = group.pool.spent
    if gone:
        gone = gone - {id.client for id in group.receipts}
    here = turn.takers(group.name) - group.sitting_out - gone
    return group.pool.state(group.version, here, group.opened_at)


def _end(turn: Turn, group: GroupState) -> None:
    last = f"version {group.version}{turn.plan.of(group.name)} is the last"
    reason = turn.federation.ending or group.resigned or last
    ids = group.pending
    turn.write(StreamEnded(group.name, reason))
    turn.tell_fates(ids)
    if ids:
        turn.discard(ids)


def _fail(turn: Turn, group: GroupState, reason: str) -> float | None:
    """Its rule cannot be asked any more: the run ends, after the version in the making."""
    began = not turn.federation.ending
    ending.end(turn, reason, RuleFailed)
    if group.phase is Phase.COLLECTING:
        _end(turn, group)
    return turn.now if began else None


def _follow(turn: Turn, group: GroupState) -> None:
    """Whoever is live takes part; whose lease ran out does not, and may come again.

    What those have sent who are left out of the run is given up, and so is what shards lost and its
    client does not have either.
    """
    out = turn.federation.isolated
    ids = (id for id in group.pending if id.client in out and not group.closed_over(id))
    if given_up := tuple(ids):
        names = named(sorted({id.client for id in given_up}))
        turn.drop(group.name, given_up, f"{names} left out of this run")
    returning = sorted(group.pool.returning)
    if lost := tuple(id for id in returning if id in turn.lost.get(id.client, ())):
        turn.drop(group.name, lost, "a shard lost its blocks, and so did its client")
    here, clocks = turn.takers(group.name) - group.pool.spent, group.pool.clocks
    for client in sorted(clocks.keys() - here):
        turn.write(MemberLeft(group.name, client))
    for client in sorted(here - clocks.keys() - group.pool.passed):
        clock = turn.plan.rule(group.name).enter(state(turn, group))
        waiting = sum(id.client == client for id in group.pending)  # of before it went away
        turn.write(MemberEntered(group.name, client, clock + waiting))


def _decide(turn: Turn, group: GroupState) -> float | None:
    if following.under_way(group):
        return following.decide(turn, group)
    receipts, waiting = quorum.examined(turn, group)
    arrived, seen_ids = group.pool.arrived, _seen(group, {r.id for r in receipts})
    arrivals = tuple(
        Arrival(r.id, r.version, arrived[r.id], r.magnitude, r.step)
        for r in sorted(receipts, key=lambda r: (arrived[r.id], r.id))
        if r.id in seen_ids
    )
    rule = turn.plan.rule(group.name)
    seen = state(turn, group)
    # what holders have not looked into, or is sent again, has not arrived, as far as a rule can see
    unseen, done = set(group.pending) - seen_ids, _done(turn, group, seen)
    if unseen or done:
        clocks = dict(seen.clocks) | dict.fromkeys(done, seen.closed + 1)
        for id in unseen:
            if id.client in clocks:
                clocks[id.client] -= 1
        seen = replace(seen, clocks=clocks)
    decision = rule.decide(turn.now, arrivals, seen)
    match decision:
        case Close(members, reason):
            sealed = turn.plan.opening is not Opening.NOTHING
            here = {arrival.id for arrival in arrivals}
            own = turn.plan.bounds(group.name)
            if wrong := refuse_close(members, here, group.version, own, sealed):
                text = f"the rule{turn.plan.of(group.name)} closed what may not be opened: {wrong}"
                return _fail(turn, group, text)
            commit.close(turn, group, members, reason)
            return None
        case Drop(ids, reason):
            turn.drop(group.name, ids, reason)
            return turn.now
        case PassOver(members, reason):
            for client in members:
                turn.write(MemberPassed(group.name, client, reason))
            return turn.now
        case _:
            group.reason = f"{decision.reason}; {waiting}" if waiting else decision.reason
            return decision.until


def _done(turn: Turn, group: GroupState, seen: RuleState) -> set[str]:
    """Who is not waited for: may train no more; or sends nothing for now, while nobody trains."""
    pool = group.pool
    found = set(seen.live & pool.spent)
    if seen.live.isdisjoint(pool.training):
        behind = (c for c in seen.live if pool.clocks.get(c, seen.closed + 1) <= seen.closed)
        found.update(client for client in behind if _all_sent(turn, group, client))
    return found


def _all_sent(turn: Turn, group: GroupState, client: str) -> bool:
    """Whether a client has made all updates of the newest version that the plan allows."""
    base = group.pool.next_base(client, group.version)
    return base.step > turn.plan.bounds(group.name).ahead


def _seen(group: GroupState, ids: set[SubmissionId]) -> set[SubmissionId]:
    """Those of these that a rule may see: none before an older one of the same client.

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


def _ask(turn: Turn, group: GroupState) -> str:
    """Asks whom the rule admits; returns why nobody trains, if nobody does."""
    coming = group.version + (group.phase is not Phase.COLLECTING)
    if coming >= turn.plan.versions(group.name) or turn.federation.ending:
        return ""
    if lacking := quorum.short(turn):
        return lacking
    pool, rule = group.pool, turn.plan.rule(group.name)
    now = state(turn, group)
    idle, held = now.live - pool.training.keys() - pool.spent, ""
    if idle and holds_everybody(first := rule.admit(turn.now, min(idle), now)):
        idle, held = frozenset(), first.reason
    for client in sorted(idle, key=lambda client: _order(group, client)):
        answer = rule.admit(turn.now, client, now)
        if not isinstance(answer, Admit):
            held = held or answer.reason
            if holds_everybody(answer):
                break
            continue
        if ending.unaffordable(turn, client, group):
            held = held or f"the budget of {client} is spent"
            turn.write(MemberLeft(group.name, client, spent=True))
            now = state(turn, group)  # nobody waits for its clock
            continue
        if pool.gave_up(client, group.version):
            held = held or f"what {client} sent was refused {MOST_REFUSED} times"
            continue
        if _all_sent(turn, group, client):
            held = held or f"{client} has sent all that it may from version {group.version}"
            continue
        base = pool.next_base(client, group.version)
        turn.write(MemberAsked(group.name, client, base.version, base.step))
        turn.order(client, make_invite(turn, group, client))
    return "" if pool.training else held or "no member is live"


def _order(group: GroupState, client: str) -> tuple[int, bytes]:
    """Whoever contributed longest ago comes first; among these, a draw that nobody chooses."""
    last = group.pool.sent.get(client)
    return (-1 if last is None else last.version), _drawn(client, group.pool.closed)


@lru_cache(maxsize=1 << 14)
def _drawn(client: str, closed: int) -> bytes:
    """The same for as long as a cohort takes, and asked for at every event."""
    return digest("secureps-asked", client.encode(), closed.to_bytes(8, "little"))


def withdrawn(turn: Turn, group: GroupState, message: Withdraw, reason: str) -> None:
    """What a client sent was refused on its way: it is asked anew, or what returns never does."""
    id, base = message.id, Base(message.version, message.step)
    if id.client in group.invited:
        following.withdrawn(turn, group, message, reason)
        return
    asked = group.pool.training.get(id.client)
    if id in group.pool.returning:
        turn.drop(group.name, (id,), f"its blocks were refused when they came again: {reason}")
    elif asked is not None and asked <= base:
        turn.write(SubmissionWithdrawn(group.name, id, reason))


def _end_if_too_few(turn: Turn, group: GroupState, tried: str) -> None:
    """The group is given up if nobody is left who might make the next version, whoever comes.

    `tried`: why no set of a burnt cohort makes it, if there was one.
    Of a row-block they would be those who joined; of others it is not known that they touch it.
    """
    federation, pool = turn.federation, group.pool
    out, retired = group.sitting_out, frozenset(federation.retired)
    block = ending.row_block(turn, group)
    if block and not out:
        return
    joined = turn.clients.intersection(federation.members) if block else turn.clients
    least = turn.plan.bounds(group.name).minimum
    able, spent = turn.takers(group.name, joined) - retired, frozenset(pool.spent)
    if turn.live.isdisjoint(pool.training):
        spent |= ending.exhausted(turn, (group,))
    gone = out | spent | retired | federation.isolated.keys()
    if not gone or len(_others(turn, group, able, spent)) >= least:
        return
    if not out and not federation.isolated:
        ending.end(turn, ending.budget_spent(turn, group, spent, retired))
        return
    parts = {
        "sit out until the next version": out,
        "are left out of this run": federation.isolated.keys(),
        "may spend no more": spent | retired,
    }
    why = [f"{named(sorted(names))} {what}" for what, names in parts.items() if names]
    ending.give_up(
        turn,
        group,
        f"fewer than {least} clients are left for version {group.version + 1}"
        f"{turn.plan.of(group.name)}: "
        + "; ".join([*why, *([f"{tried}; {suspecting.suspects(group)}"] if tried else ())]),
    )


def make_invite(turn: Turn, group: GroupState, client: str) -> Invite:
    """To train from the newest version, or one that is newer when it begins."""
    base = group.pool.training[client]
    seconds, number = turn.plan.group(group.name).rule.deadline, turn.federation.incarnation
    return Invite(number, group.name, group.round, base.version, seconds, 0, base.step)
