"""Groups without rounds after a burnt cohort: sets of its tree follow it, where nobody else can.

Whoever stood in it sits out until the next version, and others make that one. If too few others are
here, the sets that holders allow stand to the test (`policy.cohorts.suspicion`): one after
another, exactly the clients of a set seal the same updates anew, and these alone make the cohort,
with the weights that they had. Such a round is like any other (`RoundOpened`), and no rule is
asked while it lasts. What must not live here: which set is next (`roles.coordinator.suspects`),
the steps of a version (`roles.coordinator.commit`).
"""

from __future__ import annotations

from secureps.messages.coordinator_records import RoundGivenUp, RoundOpened, SubmissionWithdrawn
from secureps.messages.orders import Invite, SealAgain
from secureps.messages.requests import Withdraw
from secureps.policy.base import Base
from secureps.policy.cohorts.overlap import base_of
from secureps.policy.cohorts.suspicion import Choice
from secureps.policy.rules.rule import Arrival, Close, Drop, Wait
from secureps.roles.coordinator import commit, opening, suspects, synchronous
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.transaction import GOES_ON, Transaction


def under_way(group: GroupState) -> bool:
    """Whether a set stands to the test, or makes the cohort that is being opened."""
    return group.streaming and bool(group.suspicion.chosen)


def possible(turn: Transaction, group: GroupState) -> bool:
    """Whether holders allow anything after what was burnt for the version in the making."""
    return opening.wanted(turn.plan) and bool(group.suspicion.burnt)


def choice(turn: Transaction, group: GroupState) -> Choice:
    """Which set is next."""
    return suspects.choice(turn, group, turn.takers(group.name))


def begin(turn: Transaction, group: GroupState, chosen: Choice) -> None:
    """These seal again what they sent; what else they have sent came after that, and is over."""
    clients = tuple(sorted(chosen.clients))
    later = tuple(id for id in group.pending if id.client in chosen.clients)
    text = "its client seals again what it sent before, for a cohort that was burnt"
    turn.drop(group.name, later, text)
    turn.write(RoundOpened(group.name, group.round + 1, group.version, clients, chosen.reason))
    for client in clients:
        turn.order(client, make_order(turn, group, client))


def behind(turn: Transaction, group: GroupState) -> frozenset[str]:
    """Who sits out, and may train from the newest version: in a burnt cohort it was behind.

    That is another update: none is in two sums, whatever was opened.
    """
    if not possible(turn, group):
        return frozenset()
    sent = group.burnt_members.items()
    older = {client for client, member in sent if member.version < group.version}
    return frozenset(older & group.sitting_out - turn.federation.isolated.keys())


def make_order(turn: Transaction, group: GroupState, client: str) -> SealAgain:
    """The same update, under another sequence."""
    place, number = group.places[client], turn.federation.incarnation
    most = group.most_examples
    invite = Invite(number, group.name, group.round, place.version, 0.0, 0, place.step, most)
    return suspects.make_seal_again(turn, group, client, invite)


def decide(turn: Transaction, group: GroupState) -> Wait:
    """What becomes of the set: it makes the cohort whole, or is given up."""
    for client in sorted(group.invited & turn.federation.isolated.keys()):
        synchronous.declined(turn, group, client, "left out of this run")
    examined, waiting = opening.examined(turn, group)
    ready = {receipt.id for receipt in examined}
    here = [r for r in group.receipts.values() if r.id.client in group.suspicion.chosen]
    arrivals = tuple(Arrival(r.id, r.version, step=r.step) for r in here if r.id in ready)
    decision = suspects.decide(turn, group, arrivals)
    whole = {r.id.client for r in here} == group.suspicion.chosen
    if isinstance(decision, Drop) and whole and len(arrivals) < len(here):
        decision = Wait(None, "all have sent")
    match decision:
        case Close(members, reason):
            commit.close(turn, group, members, reason)
            return GOES_ON
        case Drop(_, reason):
            _give_up(turn, group, reason)
            return turn.again
        case Wait(until, reason):
            return Wait(until, f"{reason}; {waiting}" if waiting else reason)


def _give_up(turn: Transaction, group: GroupState, reason: str) -> None:
    ids = tuple(id for id in group.pending if id.client in group.suspicion.chosen)
    turn.drop(group.name, ids, reason)
    turn.write(RoundGivenUp(group.name, group.round, reason))


def withdrawn(turn: Transaction, group: GroupState, message: Withdraw, reason: str) -> None:
    """What a client sealed anew was refused on its way: its set is given up for this time."""
    id, place = message.id, group.places[message.id.client]
    same = Base(message.version, message.step) == base_of(place)
    if same and id.sequence > place.id.sequence and group.awaits(id.client):
        turn.write(SubmissionWithdrawn(group.name, id, reason))
        _give_up(turn, group, f"given up: what {id.client} sent was refused: {reason}")
