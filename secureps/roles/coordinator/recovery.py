"""Recovery after a burnt cohort: chooses the next sets of clients, and finds who spoilt it.

Key holders allow only certain sets of clients to follow a burnt cohort, and cohorts of these sets
show which client spoilt it. In a group with rounds, the next rounds are for these sets. In a group
without rounds, the members of the cohort sit out until the next version, and other clients make
that one. If too few others are here, the sets follow one after another: exactly the clients of a
set seal the same updates anew, and only these updates, with their old weights, make the cohort.
"""

from __future__ import annotations

from functools import partial

from secureps.messages.coordinator_records import ClientIsolated, LengthsGrew
from secureps.messages.submission import Base, Member, Receipt
from secureps.policy.cohorts.suspicion import (
    COLLUDING,
    Choice,
    Clients,
    Cut,
    Suspicion,
    choose,
    close_with,
    halves,
    places,
    uneven,
)
from secureps.policy.rules.rule import Arrival, Close, Drop, Wait
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import named


def is_choosing(tx: Transaction, group: GroupState) -> bool:
    """True if suspicion, and not the rule, chooses the clients of a group's rounds."""
    return tx.plan.divides_cohorts and group.suspicion.chooses and group.rounds


def choice(tx: Transaction, group: GroupState, live: frozenset[str]) -> Choice:
    """Chooses the clients of the next round, if these are live.

    Without rounds, only clients of a burnt cohort that can still send that update are chosen.
    """
    federation, rule = tx.federation, tx.plan.bounds(group.name)
    cut: Cut = partial(halves, federation.run.id, group.name, group.version + 1)
    able = tx.takers(group.name, tx.clients) - federation.retired
    if group.rounds:
        able -= group.sitting_out
        return choose(group.suspicion, cut, able, live, rule.minimum, rule.most)
    able, cut = able & group.places.keys(), partial(_cut_evenly, cut, group.suspicion)
    same = partial(_stood_alike, group)
    return choose(group.suspicion, cut, able, live, rule.minimum, rule.most, same)


def _stood_alike(group: GroupState, whole: Clients, part: Clients) -> bool:
    """True if a burnt cohort of the clients in `whole` had the current updates of `part`."""
    now = {client: (m.weight, m.base, m.update) for client, m in group.places.items()}
    burnt = (was for was in map(places, group.spoilt) if was.keys() == whole)
    return any(all(now[client] == was[client] for client in part) for was in burnt)


def _cut_evenly(cut: Cut, state: Suspicion, whole: Clients, least: int) -> tuple[Clients, ...]:
    """Cuts a set into halves; returns none if weights would single out a client in a part."""
    parts = [whole]
    for part in parts:
        parts += cut(part, least)
    if any(uneven([state.weight(client) for client in part], least) for part in parts):
        return ()
    return cut(whole, least)


def decide(
    tx: Transaction, group: GroupState, arrivals: tuple[Arrival, ...]
) -> Close | Drop | Wait:
    """Decides about the open round of chosen clients, in place of the rule."""
    assert group.opened_at is not None
    state = group.suspicion
    here = frozenset(arrival.id.client for arrival in arrivals)
    first, last = tx.deadlines(group, group.opened_at)
    whole = here >= group.invited
    minimum = tx.plan.bounds(group.name).minimum
    found = close_with(state, here, minimum, whole or tx.now >= first, whole or tx.now >= last)
    count = f"{len(here)} of {len(state.chosen)} have arrived"
    if found is not None:
        closed = sorted((a for a in arrivals if a.id.client in found), key=lambda a: a.id)
        weigh = state.weight
        members = (Member(a.id, weigh(a.id.client), a.version, a.step) for a in closed)
        return Close(tuple(members), count)
    out = state.chosen - group.invited
    if whole or tx.now >= last or (state.exact and out):
        missing = named(sorted(out or state.chosen - here))
        ids = sorted(arrival.id for arrival in arrivals)
        return Drop(tuple(ids), f"given up: {count}, not {missing}; nothing was opened")
    until = first if tx.now < first else last
    return Wait(until, f"{count}; waits for {named(sorted(state.chosen - here))}")


def is_chosen_round(tx: Transaction, group: GroupState) -> bool:
    """True if suspicion chose the clients of the open round, or of the cohort in progress."""
    return tx.plan.divides_cohorts and group.suspicion.chooses and bool(group.suspicion.chosen)


def has_burnt(tx: Transaction, group: GroupState) -> bool:
    """True if a committee's cohort was burnt for the version in the making."""
    return tx.plan.has_committee and bool(group.suspicion.burnt)


def clients_behind(tx: Transaction, group: GroupState) -> frozenset[str]:
    """Returns clients that sit out, but whose burnt updates were from an older version.

    They may train from the newest version. That makes another update, so that no update is in two
    sums, even if the burnt cohort was opened.
    """
    if not has_burnt(tx, group):
        return frozenset()
    sent = group.burnt_members.items()
    older = {client for client, member in sent if member.version < group.version}
    return frozenset(older & group.sitting_out - tx.federation.isolated.keys())


def objection(group: GroupState, receipt: Receipt) -> str:
    """Returns why a receipt is not the update that its client was asked for again; empty if it is.

    The burnt cohort may have been opened. A cohort that follows it must hold the same updates: else
    the difference of the two sums is of few clients, and holders refuse.
    """
    place = group.places[receipt.id.client]
    if Base(receipt.version, receipt.step) != place.base:
        return (
            f"asked was update {place.step} of version {place.version} once more, and this is "
            f"update {receipt.step} of version {receipt.version}"
        )
    if receipt.update != place.update:
        return f"{place.id} was another update of that version: only the same may follow it"
    # The old name is bound to the burnt cohort, and its key has sealed once.
    if receipt.id.sequence <= place.id.sequence:
        return f"{place.id} is over; seal it anew"
    return ""


AS_LONG = "times as long as others'"
"""Ends the reason why a client was left out whose updates are too long beside others'."""


def isolate(tx: Transaction, group: GroupState) -> None:
    state = group.suspicion
    proven = state.find_offenders(compares=False)
    for client in sorted(state.offenders) if tx.plan.divides_cohorts else ():
        stood = sum(client in each for each in state.evidence | state.likely)
        text = (
            f"{client} spoils cohorts{tx.plan.of(group.name)}: it stood in {stood} that came to "
            f"nothing, and no {COLLUDING} others account for all that did"
        )
        if client not in proven:
            # An offender that makes its sets short makes honest clients look long beside them.
            told = sum(why.endswith(AS_LONG) for why in tx.federation.isolated.values())
            if told >= COLLUDING:
                continue
            text += f"; its updates are more than {group.times:g} {AS_LONG}"
        tx.write(ClientIsolated(group.name, client, text))


def note_grown(tx: Transaction, group: GroupState, over: bool) -> bool:
    """Takes a longer length as usual if updates have grown; `over`: no set is left to try."""
    length = group.suspicion.grown(over, tx.federation.isolated.keys())
    if length is not None:
        reason = (
            "too many sets of clients were longer than usual, so nobody is suspected for it: the "
            "length of a short one is usual from now on"
        )
        tx.write(LengthsGrew(group.name, length, reason))
    return length is not None


def describe_suspects(group: GroupState) -> str:
    """Names the clients that may have spoilt the burnt cohorts of the version in the making."""
    state = group.suspicion
    least_known = min(
        state.suspect_sets, key=lambda names: (len(names), sorted(names)), default=None
    )
    names = frozenset().union(*state.burnt) if least_known is None else least_known
    return f"suspected: {', '.join(sorted(names))}"
