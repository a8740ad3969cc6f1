"""Clients that take part, and what they say of it: join, decline, withdraw, retire."""

from __future__ import annotations

from dataclasses import replace

from secureps.crypto.roster import Roster
from secureps.errors import (
    Conflict,
    Malformed,
    NotReady,
    UnknownParty,
    WrongRun,
    WrongShape,
    WrongVersion,
)
from secureps.messages import coordinator_records as records
from secureps.messages.evaluation import EVALUATION, Evaluated, VersionEvaluated, evaluated_bytes
from secureps.messages.orders import RosterChanged
from secureps.messages.requests import FAILED, Decline, Join, Proposal, Retire, Subscribe, Withdraw
from secureps.messages.submission import Base, SubmissionId
from secureps.policy.checks.evaluation import check_metrics
from secureps.roles.coordinator import (
    commit,
    evaluation,
    founding,
    opening,
    recovery,
    scheduler,
    termination,
)
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.state import REVOKED
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Say
from secureps.roles.pinned_run import PinnedRun
from secureps.roles.roster_follower import RosterFollower
from secureps.roles.validation import check_sequence
from secureps.wording import named, printable


def join(tx: Transaction, settings: PinnedRun, message: Join) -> NotReady | Proposal | None:
    """Takes a client in, or the groups that it newly contributes to; the first founds the run.

    Returns:
        the refusal if it holds a run, and this coordinator none; the plan, if it has yet to tell
        digests of the tensors that the plan freezes; None if it is in.

    Raises:
        WrongShape: the run trains another model than its own.
        PlanRefused: the plan cannot carry its model.
        Malformed: there is no such group, or no such number of examples.
        NotReady: the run cannot be founded yet, or it changed its mind too often.
    """
    client, schema, federation = message.client, message.schema, tx.federation
    if federation.pinned is None and (waits := founding.elsewhere(tx, client, message.run)):
        return waits
    if tx.plan.section.frozen and not schema.told:
        tx.plan.layout(schema)  # a plan that cannot carry its model is refused here
        return Proposal(tx.plan.text)
    if federation.pinned is None:
        founding.found(tx, settings, schema)
    ours = federation.run.schema
    if schema.untied.digest != ours.untied.digest:
        text = f"{client}'s model differs from the run's: {ours.difference(schema)}"
        raise WrongShape(f"{text}; train the run's model")
    if unknown := set(message.groups) - set(tx.plan.groups):
        raise Malformed(f"{client}: no group is called {sorted(unknown)[0]!r:.80}")
    known = federation.joined_for(client, message.groups)
    if client in federation.members and client not in federation.why_gone and known:
        return None
    _demand_constant(tx, client)
    tx.write(records.MemberJoined(client, message.groups))
    trains = client != tx.plan.evaluator
    if trains and not federation.founder and settings.initial is None:
        tx.write(records.FounderChosen(client))
    return None


def _demand_constant(tx: Transaction, client: str) -> None:
    """Allows a client three records in a lease's time: it joins, knows its groups, has counted.

    Otherwise a client that says one thing and then another would fill the journal.
    """
    times, lease = tx.federation.joined.get(client, ()), tx.plan.section.lease
    if len(times) == 3 and (left := times[0] + lease - tx.now) > 0:
        raise NotReady(
            f"{client} has said three times within {lease:g} s that it takes part, and for what: "
            f"it may say something else in {left:.0f} s",
            retry_after=left,
        )


def demand_known(tx: Transaction, follower: RosterFollower, client: str) -> None:
    """NotReady while a client that came onto the roster in this run cannot take part yet.

    Holders would refuse its cohort, and shards that have not heard of it would refuse its blocks.
    """
    pinned = tx.federation.pinned
    if pinned is None or not follower.is_new(client, pinned.run.roster):
        return
    follower.demand_known(client, pinned.run.roster, tx.plan.section.newcomers_wait)
    epoch, known = follower.roster.enrolment(client).epoch, tx.sessions.epochs
    if behind := [shard for shard in pinned.placement.shards if known.get(shard, 0) < epoch]:
        raise NotReady(f"{client} is new on the roster, and {named(behind)} yet to hear of it", 1.0)


def revoke(tx: Transaction, roster: Roster) -> None:
    """Leaves out clients that have joined and are on the roster no more, of open rounds too."""
    for client in tx.federation.members:
        if client not in roster and tx.federation.isolated.get(client) != REVOKED:
            tx.sessions.leave(client)
            tx.write(records.ClientRevoked(client))
            for group in tx.federation.groups.values():
                if group.phase is Phase.HOLDING and client in group.weights:
                    # No holder was asked yet; by the new roster they refuse it.
                    tx.write(records.CohortReopened(group.name, group.number, ()))


def announce(tx: Transaction, text: str) -> None:
    for party in sorted(tx.watchers):
        tx.order(party, RosterChanged(tx.federation.incarnation, text))


def tell_roster(tx: Transaction, follower: RosterFollower, known: Subscribe) -> None:
    """Sends newer rosters to a party that still follows an older one.

    A party that was away may not have followed a roster whose key holders are still sealed for:
    that one comes first.
    """
    roster = follower.roster
    for committee in opening.used_committees(tx):
        if committee.committee != roster.committee and follower.number_of(committee.committee) >= 0:
            _tell(tx, known.party, follower.committee(committee.committee).roster)
    newest = (roster.number, roster.expires)
    if newest != (known.epoch, known.expires) and known.epoch <= roster.number:
        _tell(tx, known.party, roster)


def _tell(tx: Transaction, party: str, roster: Roster) -> None:
    tx.order(party, RosterChanged(tx.federation.incarnation, roster.text))


def decline(tx: Transaction, message: Decline) -> None:
    """An invited client takes no part in a round; once it has contributed, that stands.

    A designated evaluator says the version instead of a round. Of a model's version a client that
    declines sits out until the next: what it could send would be another update than it sent from
    this version before, or from the same model under another version, or for other key holders.

    Raises:
        Malformed: there is no such group.
    """
    if message.group == EVALUATION and message.party == tx.plan.evaluator:
        evaluation.declined(tx, message.round, said(message.reason))
        return
    group, client = tx.federation.groups.get(message.group), message.party
    if group is None:
        raise Malformed(f"no group is called {message.group!r:.80}")
    open_now = group.phase is Phase.COLLECTING and group.round == message.round
    here = client in group.open_receipts.clients
    if open_now and client in group.invited and not here:
        again = not group.rounds and client in group.places  # it sits out already
        sits_out = group.name != EVALUATION and not again
        termination.declined(tx, group, client, said(message.reason), sits_out)
    elif not group.rounds and group.awaits(client):
        if Base(message.version, message.step) < group.members.training[client]:
            return  # it was asked for that before, and for this since
        if message.version < group.version:  # it has not heard of the newest yet
            tx.order(client, recovery.make_invite(tx, group, client))
        else:
            termination.declined(tx, group, client, said(message.reason), sits_out=True)


def withdraw(tx: Transaction, message: Withdraw) -> None:
    """What a client was asked for was refused on its way; of what was accepted it says nothing.

    Raises:
        Malformed: it is not the client's own, or of no group without rounds, or of no sequence.
    """
    id = message.id
    check_sequence(id)
    group = tx.federation.groups.get(id.group)
    if id.client != message.party or group is None or tx.plan.bounds(group.name).rounds:
        raise Malformed(f"{id} is no submission of {message.party} to a group without rounds")
    news = id.sequence >= tx.federation.next.get((id.client, id.group), 0)
    if group.takes_updates and (news or id in group.members.returning):
        scheduler.withdrawn(tx, group, message, said(message.reason))


def gone(tx: Transaction, client: str, ids: tuple[SubmissionId, ...]) -> None:
    """A client says that it no longer has what it was to send again.

    In an open round it trains once more instead: of what it lost nothing was opened. A founding
    model that not all shards have is replaced by another one.
    """
    here, federation = tx.sessions, tx.federation
    pending = federation.pending(client)
    known = pending & here.asked.intersection(ids)
    here.lost[client] = (here.lost.get(client, frozenset()) & pending) | known
    here.gone &= {id for id in here.gone if federation.waits(id)}
    here.gone |= known
    for group in [federation.groups[name] for name in {id.group for id in known}]:
        if group.phase in (Phase.OPENING, Phase.PREPARING):
            commit.hold_again(tx, group)
        elif group.phase is Phase.FOUNDING:
            tx.drop(group.name, tuple(known), "a shard lost its blocks, and so did its client")
            tx.order(federation.founder, recovery.make_invite(tx, group, federation.founder))
        elif group.rounds and group.awaits(client):
            tx.order(client, recovery.make_invite(tx, group, client))


def retire(tx: Transaction, message: Retire) -> None:
    """A member takes part no more, and rounds go on without it.

    Raises:
        UnknownParty: it never joined, and gives no reason why it does not.
    """
    client, reason = message.client, said(message.reason)
    if client not in tx.federation.members:
        if not reason:
            raise UnknownParty(f"{client} has not joined, and cannot retire")
        if client not in tx.sessions.refused:  # it was shown a plan before it joined
            tx.sessions.refused.add(client)
            tx.step.effects.append(Say(f"{client} takes no part: {reason}"))
        return
    if client in tx.federation.why_gone and (client in tx.federation.retired or message.returns):
        return
    tx.write(replace(message, reason=reason))
    for group in tx.federation.groups.values():
        asked = group.phase is Phase.COLLECTING and client in group.invited
        if asked and client not in group.open_receipts.clients:
            what = "rests for a while" if message.returns else "takes part no more"
            what = reason if reason.startswith(FAILED) else what
            termination.declined(tx, group, client, what)


def evaluated(tx: Transaction, roster: Roster, message: Evaluated) -> None:
    """Journals what the designated evaluator says of a version, once.

    Raises:
        UnknownParty, Unsigned: the plan's evaluator did not sign it.
        WrongRun, WrongVersion: it is not of the version that is to be evaluated now.
        Conflict: it said something else of this version.
        Malformed, NotFinite: its metrics are not the plan's, or no numbers.
    """
    section = tx.plan.section.evaluation
    if section is None or not tx.plan.evaluator or message.party != tx.plan.evaluator:
        raise UnknownParty(f"{message.party} is not the evaluator that the plan names")
    check_metrics(section, message.metrics)
    roster.find(message.party).identity.verify(*evaluated_bytes(message), message.signature)
    if message.run != tx.federation.run.id:
        raise WrongRun("this evaluation is of another run; join this one first")
    if message.examples < 1:
        raise Malformed(f"an evaluation on {message.examples} examples: at least 1")
    state = tx.federation.evaluations
    result = VersionEvaluated(message.version, message.metrics, message.party, message.examples)
    known = state.results.get(message.version)
    if known is not None:
        if known != result:
            raise Conflict(f"version {message.version} was evaluated already, to other values")
        return
    now, groups = evaluation.due(tx), tx.federation.model_groups
    # Before version 0 no evaluation is due, and the groups have no digests.
    if not now or message.version != now or message.model != tuple(g.digest for g in groups):
        wanted = f"version {now} is to be evaluated" if now else "none is to be evaluated"
        raise WrongVersion(f"not version {message.version} as you have it; {wanted} now")
    termination.judged(tx, result)


def said(reason: str) -> str:
    """The words of another party as they are kept."""
    return printable(reason[: commit.REASON_LIMIT])
