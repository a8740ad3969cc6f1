"""Handles the messages of clients: join, submit, decline, withdraw, retire.

`submit` checks a receipt, in this order, before it is journalled:

1  author   a client on the roster signed it
2  run      it is of this run, and of one of its groups
3  new      it is not known yet; the same receipt again changes nothing
4  plan     its sizes, shared key, declared size and privacy charge are those of the plan
5  asked    it was asked for: as the founding model, in a round, without rounds, or once more
"""

from __future__ import annotations

from dataclasses import replace

from secureps.config.plan import PrioritySection
from secureps.crypto.envelope import OVERHEAD
from secureps.crypto.roster import Roster
from secureps.crypto.sharing import parse_vector
from secureps.errors import (
    Conflict,
    Malformed,
    NotReady,
    Oversized,
    Refused,
    UnknownParty,
    WrongRun,
    WrongShape,
    WrongVersion,
)
from secureps.messages import coordinator_records as records
from secureps.messages import requests
from secureps.messages.encoding import DIGEST_BYTES
from secureps.messages.evaluation import Evaluated, VersionEvaluated, evaluated_bytes
from secureps.messages.orders import RosterChanged
from secureps.messages.submission import (
    FOUNDING,
    UPDATE,
    UPDATE_BYTES,
    Base,
    Receipt,
    SubmissionId,
    ciphertext_root,
    signing_bytes,
)
from secureps.model.layout import GroupLayout
from secureps.policy.checks.evaluation import check_metrics
from secureps.policy.plan import Plan, check_counted, joint_groups
from secureps.policy.rules.registry import LARGEST
from secureps.policy.spending import make_fact
from secureps.roles.coordinator import (
    commit,
    envelopes,
    founding,
    opening,
    recovery,
    termination,
    trailing,
)
from secureps.roles.coordinator.group import REASON_LIMIT, GroupState, Phase
from secureps.roles.coordinator.state import REVOKED
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import RosterFollower
from secureps.roles.pinned_run import LATER
from secureps.roles.validation import block_bytes, check_sequence
from secureps.wording import named, printable


def join(tx: Transaction, message: requests.Join) -> NotReady | requests.Proposal | None:
    """Takes a client in, with the groups that it contributes to; the first one founds the run.

    Returns:
        None if the client is in; a refusal if it holds a run and this coordinator none; the plan if
        the client has yet to send digests of the tensors that the plan freezes.

    Raises:
        WrongShape: the client's model is not the run's.
        PlanRefused: the plan cannot carry the client's model.
        Malformed: there is no such group.
        NotReady: the run cannot be founded yet, or the client joined anew too often.
    """
    client, schema, federation = message.client, message.schema, tx.federation
    if federation.pinned is None and (waits := founding.refuse_elsewhere(tx, client, message.run)):
        return waits
    if tx.plan.section.frozen and not schema.valued:
        tx.plan.layout(schema)  # raises PlanRefused
        tx.sessions.proposed.add(client)
        return requests.Proposal(tx.plan.text)
    if federation.pinned is None:
        founding.found(tx, schema)
    ours = federation.run.schema
    if schema.untied.digest != ours.untied.digest:
        text = f"{client}'s model differs from the run's: {ours.difference(schema)}"
        raise WrongShape(f"{text}; train the run's model")
    if unknown := set(message.groups) - set(tx.plan.groups):
        raise Malformed(f"{client}: no group is called {min(unknown)!r:.80}")
    known = federation.has_joined_for(client, message.groups)
    if client in federation.members and client not in federation.why_gone and known:
        return None
    _demand_constant(tx, client)
    tx.write(records.MemberJoined(client, message.groups))
    trains = client != tx.plan.evaluator
    if trains and not federation.founder and tx.settings.initial is None:
        tx.write(records.FounderChosen(client))
    return None


def _demand_constant(tx: Transaction, client: str) -> None:
    """Allows a client three joins in a lease's time; NotReady for more.

    Otherwise a client that changes its groups again and again would fill the journal.
    """
    times, lease = tx.federation.joined.get(client, ()), tx.plan.section.lease
    if len(times) == 3 and (left := times[0] + lease - tx.now) > 0:
        raise NotReady(
            f"{client} has said three times within {lease:g} s that it takes part, and for what: "
            f"it may say something else in {left:.0f} s",
            retry_after=left,
        )


def demand_known(tx: Transaction, follower: RosterFollower, client: str) -> None:
    """NotReady while a client that is new on the roster cannot take part yet.

    Before that, holders would refuse its cohort, and shards with an older roster its blocks.
    """
    pinned = tx.federation.pinned
    if pinned is None or not follower.is_new(client, pinned.run.roster):
        return
    follower.demand_known(client, pinned.run.roster, tx.plan.section.newcomers_wait)
    epoch, known = follower.roster.enrolment(client).epoch, tx.sessions.epochs
    if behind := [shard for shard in pinned.placement.shards if known.get(shard, 0) < epoch]:
        raise NotReady(f"{client} is new on the roster, and {named(behind)} yet to hear of it", 1.0)


def revoke(tx: Transaction) -> None:
    """Leaves out members that are not on the roster any more, also from open rounds."""
    for client in tx.federation.members:
        if client not in tx.settings.roster and tx.federation.isolated.get(client) != REVOKED:
            tx.sessions.leave(client)
            tx.write(records.ClientRevoked(client))
            for group in tx.federation.groups.values():
                if group.phase is Phase.HOLDING and client in group.weights:
                    # By the new roster holders would refuse this cohort. None was asked yet.
                    tx.write(records.CohortReopened(group.name, group.number, ()))


def announce(tx: Transaction, text: str) -> None:
    for party in sorted(tx.watchers):
        tx.order(party, RosterChanged(tx.federation.incarnation, text))


def tell_roster(tx: Transaction, follower: RosterFollower, known: requests.Subscribe) -> None:
    """Sends newer rosters to a party that still follows an older one.

    First come rosters whose key holders updates are still sealed for, because a party that was away
    may have missed them.
    """
    roster = follower.roster
    for committee in opening.used_committees(tx):
        if committee.committee != roster.committee and follower.number_of(committee.committee) >= 0:
            _send_roster(tx, known.party, follower.newest_with(committee.committee))
    newest = (roster.number, roster.expires)
    if newest != (known.epoch, known.expires) and known.epoch <= roster.number:
        _send_roster(tx, known.party, roster)


def _send_roster(tx: Transaction, party: str, roster: Roster) -> None:
    tx.order(party, RosterChanged(tx.federation.incarnation, roster.text))


def decline(tx: Transaction, message: requests.Decline) -> None:
    """Notes that an invited client takes no part in a round, unless it has contributed already.

    A client that declines a version of the model sits out until the next one: anything that it sent
    now might be a second update from this version, or be sealed for other key holders. A designated
    evaluator declines a version instead of a round.
    """
    if message.party == tx.plan.evaluator:  # the evaluator is invited to no group
        trailing.skip_declined(tx, message.round, shorten(message.reason))
        return
    group, client = tx.group(message.group), message.party
    open_now = group.phase is Phase.COLLECTING and group.round == message.round
    here = client in group.open_receipts.clients
    if open_now and client in group.invited and not here:
        again = not group.rounds and client in group.places  # the client sits out already
        sits_out = not (group.trails or again)
        termination.take_decline(tx, group, client, shorten(message.reason), sits_out)
    elif not group.rounds and group.awaits(client):
        if Base(message.version, message.step) < group.members.training[client]:
            return  # it declines an older request than the current one
        if message.version < group.version:  # the client does not know the newest one yet
            tx.order(client, tx.make_invite(group, client))
        else:
            termination.take_decline(tx, group, client, shorten(message.reason), sits_out=True)


def withdraw(tx: Transaction, message: requests.Withdraw) -> None:
    """Notes that a shard or the coordinator refused a client's update, so it will not come."""
    id = message.id
    check_sequence(id)
    group = tx.federation.groups.get(id.group)
    if id.client != message.party or group is None or tx.plan.bounds(group.name).rounds:
        raise Malformed(f"{id} is no submission of {message.party} to a group without rounds")
    news = id.sequence >= tx.federation.next.get((id.client, id.group), 0)
    if group.takes_updates and (news or id in group.members.returning):
        _ask_anew(tx, group, message, shorten(message.reason))


def _ask_anew(tx: Transaction, group: GroupState, message: requests.Withdraw, reason: str) -> None:
    """Asks a client for another update, because the one that it sent was refused in transit.

    An update that was to come again is dropped. The round of a set is given up if the update that
    one of its clients sealed anew is refused.
    """
    id, base = message.id, Base(message.version, message.step)
    if id.client in group.invited:
        place = group.places[id.client]
        same = base == place.base and id.sequence > place.id.sequence
        if same and group.awaits(id.client):
            tx.write(replace(message, reason=reason))
            termination.give_up_round(
                tx, group, f"given up: what {id.client} sent was refused: {reason}"
            )
        return
    asked = group.members.training.get(id.client)
    if id in group.members.returning:
        tx.drop(group.name, (id,), f"its blocks were refused when they came again: {reason}")
    elif asked is not None and asked <= base:
        tx.write(replace(message, reason=reason))


def take_lost(tx: Transaction, client: str, ids: tuple[SubmissionId, ...]) -> None:
    """Notes submissions that a client was to send again and no longer has.

    In an open round the client trains once more instead, because nothing of the lost update was
    opened. A founding model that not all shards have is replaced by another one.
    """
    here, federation = tx.sessions, tx.federation
    pending = federation.pending(client)
    known = pending & here.asked.intersection(ids)
    here.lost[client] = (here.lost.get(client, frozenset()) & pending) | known
    here.gone &= {id for id in here.gone if federation.is_pending(id)}
    here.gone |= known
    for group in [federation.groups[name] for name in {id.group for id in known}]:
        if group.is_opening:
            commit.hold_again(tx, group)
        elif group.phase is Phase.FOUNDING:
            tx.drop(group.name, tuple(known), "a shard lost its blocks, and so did its client")
            tx.order(federation.founder, tx.make_invite(group, federation.founder))
        elif group.rounds and group.awaits(client):
            tx.order(client, tx.make_invite(group, client))


def retire(tx: Transaction, message: requests.Retire) -> None:
    """Notes that a member leaves or rests, and lets rounds go on without it.

    Raises:
        NotReady: the client leaves a run, and this coordinator has none.
        UnknownParty: it has not joined.
    """
    client, reason = message.client, shorten(message.reason)
    shown = tx.federation.pinned is not None or client in tx.sessions.proposed
    if not (shown or message.returns):
        # This folder may be a volume that is not mounted. The coordinator that has the run would
        # never hear of it, and wait for this client for ever.
        raise NotReady(f"{client} leaves a run, and none is founded here yet", LATER)
    tx.sessions.leave(client)
    if client not in tx.federation.members:
        if not reason:
            raise UnknownParty(f"{client} has not joined, and cannot retire")
        if client not in tx.sessions.refused:  # it refused the plan, so it never joined
            tx.sessions.refused.add(client)
            tx.step.say(f"{client} takes no part: {reason}")
        return
    if client in tx.federation.why_gone and (client in tx.federation.retired or message.returns):
        return
    tx.write(replace(message, reason=reason))
    for group in tx.federation.groups.values():
        asked = group.phase is Phase.COLLECTING and client in group.invited
        if asked and client not in group.open_receipts.clients:
            what = "rests for a while" if message.returns else "takes part no more"
            what = reason if reason.startswith(requests.FAILED) else what
            termination.take_decline(tx, group, client, what)


def take_evaluation(tx: Transaction, message: Evaluated) -> None:
    """Journals the designated evaluator's metrics of a version, once."""
    section = tx.plan.section.evaluation
    if section is None or message.party != tx.plan.evaluator:
        raise UnknownParty(f"{message.party} is not the evaluator that the plan names")
    check_metrics(section, message.metrics)
    author = tx.settings.roster.find(message.party)
    author.identity.verify(*evaluated_bytes(message), message.signature)
    if message.run != tx.federation.run.id:
        raise WrongRun("this evaluation is of another run; join this one first")
    if message.examples < 1:
        raise Malformed(f"an evaluation on {message.examples} examples: at least 1")
    state = tx.federation.trail
    result = VersionEvaluated(message.version, message.metrics, message.party, message.examples)
    known = state.results.get(message.version)
    if known is not None:
        if known != result:
            raise Conflict(f"version {message.version} was evaluated already, to other values")
        return
    now, groups = tx.evaluation_due(), tx.federation.model_groups
    # Before version 0 nothing is due, and the groups have no digests.
    if not now or message.version != now or message.model != tuple(g.digest for g in groups):
        wanted = f"version {now} is to be evaluated" if now else "none is to be evaluated"
        raise WrongVersion(f"not version {message.version} as you have it; {wanted} now")
    termination.take_evaluation(tx, result)


def shorten(reason: str) -> str:
    """Makes another party's words printable, and cuts them to the length that is kept."""
    return printable(reason[:REASON_LIMIT])


# --- submissions -------------------------------------------------------------------


def submit(tx: Transaction, message: requests.Submit) -> None:
    """Journals a receipt, once; the same again changes nothing."""
    # A forged receipt would contribute, spend or use up a sequence in another client's name.
    receipt = message.receipt
    author = tx.settings.roster.find(receipt.id.client)
    author.identity.verify(*signing_bytes(receipt), receipt.signature)
    # A receipt that was signed for one run must not be replayed in another.
    if receipt.run != tx.federation.run.id:
        raise WrongRun(f"{receipt.id} was made for another run; join this one first")
    group = tx.group(receipt.id.group)
    if _is_known(tx, receipt):
        if receipt.id in group.receipts:
            commit.resume_steps(tx, group, receipt)
        return
    check_receipt(tx.plan, tx.layout.group(group.name), receipt)
    if receipt.purpose == FOUNDING:
        _check_founder(tx, group, receipt)
        tx.write(message)
        commit.found(tx, group, receipt)
        return
    # A client that spoils cohorts would burn every one, and all others pay for it in privacy.
    if (client := receipt.id.client) in tx.federation.isolated:
        raise Refused(f"left out of this run: {tx.federation.isolated[client]}")
    if receipt.committee is not None:
        opening.check_committee(tx, receipt)
        envelopes.check_keys(tx, receipt)
    _check_asked(tx, group, receipt)
    check_counted(tx.plan.group(group.name), receipt.id, receipt.examples)
    _tell_growth(tx, receipt)
    tx.write(message)
    tx.sessions.asked.discard(receipt.id)
    if receipt.fact is not None:
        tx.write(receipt.fact)
    envelopes.examine(tx, group, receipt)
    # A round's rule sees the update once holders have examined it; their answers move the group.
    tx.quiet = group.rounds and receipt.id not in group.open_receipts.ready


def _tell_growth(tx: Transaction, receipt: Receipt) -> None:
    """Says if a client's public number grew tenfold, since it counts that much more in the mean."""
    client, now = receipt.id.client, receipt.examples
    before = tx.sessions.counted.setdefault((client, receipt.id.group), now)
    if now >= 10 * before > 0:
        tx.sessions.counted[client, receipt.id.group] = now
        text = f"{client} counts by {now} examples, and counted by {before} before: ask why"
        tx.step.say(f"{tx.plan.head(receipt.id.group)}{text}")


def _is_known(tx: Transaction, receipt: Receipt) -> bool:
    """True if a submission was received or settled; Conflict if with another receipt."""
    id = receipt.id
    known = tx.federation.settled.receipts.get(id)
    # Another receipt under the same name would replace the one that shards and holders have seen.
    # The root stands for the blocks' digests, which are not signed and may be changed in transit.
    if known is not None and (
        known != receipt.digest
        or receipt.root != ciphertext_root(receipt.blocks, receipt.correction)
    ):
        raise Conflict(f"{id} is known with another receipt; begin a new sequence")
    # An honest client knows that this is settled, and reuses its name for nothing else.
    if known is None and tx.federation.settled.is_over(id):
        raise Conflict(f"{id} is over since long; begin a new sequence")
    return tx.federation.is_known(id)


# --- the plan ---------------------------------------------------------------------


def check_receipt(plan: Plan, layout: GroupLayout, receipt: Receipt) -> None:
    """Accepts a receipt that this plan can have made."""
    id, purpose = receipt.id, receipt.purpose
    # Blocks of key holders have a purpose of their own, and are no submissions.
    if purpose not in (UPDATE, FOUNDING):
        raise Malformed(f"{id}: no receipt is for {purpose!r}")
    check_sequence(id)
    # A client further ahead than the rule allows would have more updates summed than others.
    ahead = plan.bounds(id.group).ahead
    if not 0 <= receipt.step <= ahead:
        raise Malformed(
            f"{id}: update {receipt.step} of one version, by the plan's rule the last is {ahead}"
        )
    # Shards, and the whole cohort, would wait for blocks that do not exist.
    blocks = range(layout.blocks)
    if len(receipt.blocks) != len(blocks) or any(len(d) != DIGEST_BYTES for d in receipt.blocks):
        raise Malformed(f"{id}: the group has {len(blocks)} blocks, each one digest")
    # Only the root is signed: shards and holders must mean the same payloads.
    if receipt.root != ciphertext_root(receipt.blocks, receipt.correction):
        raise Malformed(f"{id}: its root is not that of its blocks' digests and its correction")
    size = sum(block_bytes(plan, layout, purpose, block) for block in blocks)
    if receipt.size != size:
        raise Malformed(f"{id}: {receipt.size} bytes, the plan makes {size}")
    # Without a name of its own an update could be summed twice, sealed under two keys.
    beside = DIGEST_BYTES if len(joint_groups(plan, id.group)) > 1 else 0
    wanted = (UPDATE_BYTES, beside) if purpose == UPDATE else (0, 0)
    if (len(receipt.update), len(receipt.beside)) != wanted:
        raise Malformed(f"{id}: its update's name and the groups beside it take {wanted}")
    _check_magnitude(plan, receipt)
    _check_shared_key(plan, layout, receipt)
    _check_fact(plan, layout, receipt)


def _check_magnitude(plan: Plan, receipt: Receipt) -> None:
    """Malformed unless a size is declared where the plan's rule asks for one, and within bounds."""
    rule, given = plan.group(receipt.id.group).rule, receipt.magnitude
    asks = isinstance(rule, PrioritySection) and rule.score == "magnitude"
    if not (asks and receipt.purpose == UPDATE):
        # A size tells something of the data that this plan did not announce.
        if given is not None:
            raise Malformed(f"{receipt.id}: it declares a size, and nobody asks for one")
    # An update with a size beyond the bounds would go before all others, however long they wait.
    elif given is None or not 0 <= given <= LARGEST:
        raise Malformed(f"{receipt.id}: it declares a size of 0 to {LARGEST}, not {given}")


def _check_shared_key(plan: Plan, layout: GroupLayout, receipt: Receipt) -> None:
    """Checks counts and sizes of a receipt's shares of its one-time key; holders check the rest."""
    id, correction = receipt.id, receipt.correction
    if not plan.has_committee or receipt.purpose != UPDATE:
        # Fields that no party reads would be journalled and sent on, at any length.
        said = (receipt.envelopes, receipt.commitments, receipt.keys, correction, receipt.committee)
        if said != ((), (), (), None, None):
            raise Malformed(f"{id}: it has no key to share, and no envelopes or commitments to it")
        return
    if receipt.committee is None or len(receipt.committee) != DIGEST_BYTES:
        raise Malformed(f"{id}: it does not say for which key holders it is sealed")
    committee = plan.unnamed_committee
    subsets, size = len(committee.subsets), committee.seed_bytes + OVERHEAD
    # If a holder lacked its share of one key, the whole cohort would burn when it is opened.
    if len(receipt.envelopes) != plan.holders or len(receipt.commitments) != subsets:
        raise Malformed(
            f"{id}: {plan.holders} key holders want as many envelopes and {subsets} commitments, "
            f"not {len(receipt.envelopes)} and {len(receipt.commitments)}"
        )
    if len(receipt.keys) != plan.holders:
        raise Malformed(f"{id}: it names {len(receipt.keys)} keys of {plan.holders} holders")
    if any(len(commitment) != DIGEST_BYTES for commitment in receipt.commitments):
        raise Malformed(f"{id}: a commitment has {DIGEST_BYTES} bytes")
    for sealed in receipt.envelopes:
        if len(sealed) != size:
            kind = Oversized if len(sealed) > size else Malformed
            raise kind(f"{id}: an envelope has {size} bytes, not {len(sealed)}")
    if correction is None:
        raise Malformed(f"{id}: the correction of its key is missing")
    parse_vector(correction, plan.key_length(layout))


def _check_fact(plan: Plan, layout: GroupLayout, receipt: Receipt) -> None:
    """Malformed unless the charge or release is what the plan makes for this submission.

    The ledger believes it: a smaller charge, or one in another's name, would count too little.
    """
    id, given = receipt.id, receipt.fact
    planned = None
    if receipt.purpose == UPDATE:
        planned = make_fact(plan, id.client, id.group, layout.sent, receipt.version, receipt.step)
    if planned is None:
        if given is not None:
            raise Malformed(f"{id}: a charge where nothing is private")
        return
    wanted = (id.client, id.group, receipt.version)
    if given is None or (given.party, given.group, given.version) != wanted:
        raise Malformed(f"{id}: the privacy charge is missing or for another submission")
    if given != planned or (receipt.charge is not None and receipt.release is not None):
        raise Malformed(f"{id}: the privacy charge differs from the plan")


# --- now --------------------------------------------------------------------------


def _check_founder(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    # Version 0 is in the clear and is everybody's model, so one client gives it, once.
    client, given = receipt.id.client, tx.plan.is_given(group.name)
    if given or group.phase is not Phase.FOUNDING or client != tx.federation.founder:
        raise WrongVersion(f"the founding model of {group.name} is not asked from {client}")
    if group.receipts:
        raise WrongVersion(f"the founding model of {group.name} is here already")


def _check_asked(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    """Accepts an update that was asked for, from the base that was asked for.

    Without rounds, a newer base is accepted too. An update whose blocks were lost comes once more
    as it was.
    """
    id, coming = receipt.id, group.version + 1
    # Once a round's cohort is closed, holders are shown no other members.
    if not group.takes_updates:
        raise WrongVersion(
            f"{group.name} takes no updates now ({group.reason}); pull and wait to be invited"
        )
    # No client counts twice in a mean, also not with a lost update and the one sent in its place.
    if id.client in group.invited and id.client in group.open_receipts.clients:
        raise Conflict(f"{id.client} has contributed to version {coming} already")
    if id in group.members.returning:
        return
    again = id.client in group.invited and tx.is_asked_again(group, id.client)
    if again and (wrong := recovery.objection(group, receipt)):
        raise WrongVersion(f"{id}: {wrong}")
    _check_base(tx, group, receipt)
    # An update that was not asked for would be summed more often than rule and ledger allow.
    if not tx.federation.takes_part(id.client, group.name):
        raise WrongVersion(f"{id.client} takes no part in {group.name}: it joined for other groups")
    if not group.awaits(id.client):
        what = f"invited to version {coming}"
        if not group.rounds:
            what = f"asked for an update of {group.name} now; wait"
        raise WrongVersion(f"{id.client} was not {what}")
    _check_step(tx, group, receipt)


def _check_base(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    id, newest = receipt.id, receipt.version == group.version
    base = tx.federation.base(group) if newest else group.history.get(receipt.version)
    # A late or replayed update of an older model must not be summed with updates of this one.
    if group.rounds and not (newest and receipt.base == base):
        raise WrongVersion(
            f"{id} was trained on version {receipt.version}, the open base is "
            f"{group.version}; pull and train again"
        )
    # Holders refuse a cohort in which one version is two models.
    if receipt.base != base:
        raise WrongVersion(f"{id}: its base is no version {receipt.version} of {group.name}")


def _check_step(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    id, base = receipt.id, Base(receipt.version, receipt.step)
    if group.rounds:
        if base != tx.round_base(group):
            text = f"{id} has metrics of another version of the model than was asked for"
            raise WrongVersion(text)
        return
    asked = group.members.training[id.client]
    # Two sums with the same step of a version hold one update twice: their difference may show it.
    if base < asked or base.step != (asked.step if base.version == asked.version else 0):
        raise WrongVersion(
            f"{id}: asked was update {asked.step} of version {asked.version}, or the first of a "
            f"newer version, and this is update {base.step} of version {base.version}"
        )
