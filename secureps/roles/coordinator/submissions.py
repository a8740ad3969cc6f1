"""All that is asked of a receipt before it is journalled: in one place, in order.

1  who      a client on the roster signed it
2  what     it is of this run, and of a group of it
3  again    it is not known yet; the same changes nothing
4  plan     its sizes, shared key, declared size and privacy charge are those of the plan
5  now      it was asked for: as the founding model, in a round, without rounds, or once more
"""

from __future__ import annotations

from secureps.config.plan import PrioritySection
from secureps.crypto.cipher import Opening
from secureps.crypto.envelope import OVERHEAD
from secureps.crypto.roster import Roster
from secureps.crypto.sharing import parse_vector
from secureps.errors import Conflict, Malformed, Oversized, Refused, WrongRun, WrongVersion
from secureps.messages.encoding import DIGEST_BYTES
from secureps.messages.requests import Submit
from secureps.messages.submission import (
    FOUNDING,
    UPDATE,
    UPDATE_BYTES,
    Base,
    Receipt,
    ciphertext_root,
    signing_bytes,
)
from secureps.model.layout import GroupLayout
from secureps.policy.counting import check_counted
from secureps.policy.groups import together
from secureps.policy.plan import Plan
from secureps.policy.rules.buffered import LARGEST
from secureps.policy.spending import fact
from secureps.roles.coordinator import commit, envelopes, opening, recovery
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.validation import block_bytes, check_sequence


def submit(tx: Transaction, roster: Roster, receipt: Receipt) -> None:
    """Journals a receipt, once; the same again changes nothing.

    Raises:
        UnknownParty, Unsigned: nobody on the roster signed it.
        WrongRun, WrongVersion: it was made for something else than what is open.
        Conflict: another receipt is known for it, or for this client and version.
        Malformed, Oversized: the plan makes no such receipt.
        Refused: the client is left out of this run.
    """
    # Nobody contributes, spends or uses up a sequence in another client's name.
    roster.find(receipt.id.client).identity.verify(*signing_bytes(receipt), receipt.signature)
    group = _group(tx, receipt)
    if _is_known(tx, receipt):
        if receipt.id in group.receipts:
            commit.came_again(tx, group, receipt)
        return
    check_receipt(tx.plan, tx.layout.group(group.name), receipt)
    if receipt.purpose == FOUNDING:
        _check_founder(tx, group, receipt)
        tx.write(Submit(receipt))
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
    tx.write(Submit(receipt))
    tx.sessions.asked.discard(receipt.id)
    if receipt.fact is not None:
        tx.write(receipt.fact)
    envelopes.examine(tx, group, receipt)


def _group(tx: Transaction, receipt: Receipt) -> GroupState:
    # What was signed for one run is replayed in no other.
    if receipt.run != tx.federation.run.id:
        raise WrongRun(f"{receipt.id} was made for another run; join this one first")
    return tx.group(receipt.id.group)


def _is_known(tx: Transaction, receipt: Receipt) -> bool:
    """Whether a submission was received, or is over; Conflict if with another receipt."""
    id = receipt.id
    known = tx.federation.settled.receipts.get(id)
    # Another under the same name would take the place of what shards and holders have seen. The
    # root stands for the blocks, which are not signed: who changes them on the way is found too.
    if known is not None and (
        known != receipt.digest
        or receipt.root != ciphertext_root(receipt.blocks, receipt.correction)
    ):
        raise Conflict(f"{id} is known with another receipt; begin a new sequence")
    # Nobody sends what it was told is settled but with another receipt under the same name.
    if known is None and tx.federation.settled.is_over(id):
        raise Conflict(f"{id} is over since long; begin a new sequence")
    return tx.federation.known(id)


# --- the plan ---------------------------------------------------------------------


def check_receipt(plan: Plan, layout: GroupLayout, receipt: Receipt) -> None:
    """Accepts a receipt that this plan can have made.

    Raises:
        Malformed: its purpose, sequence, step, number of blocks, size, charge, shared key, what
            names its update, or what it declares of the update's size is another one.
        Oversized: an envelope or the correction is too long.
    """
    id, purpose = receipt.id, receipt.purpose
    # A holder's block is not a submission, whoever signs a receipt for it.
    if purpose not in (UPDATE, FOUNDING):
        raise Malformed(f"{id}: no receipt is for {purpose!r}")
    check_sequence(id)
    # Who runs further ahead than the rule allows has more updates of a version summed than others.
    ahead = plan.bounds(id.group).ahead
    if not 0 <= receipt.step <= ahead:
        raise Malformed(
            f"{id}: update {receipt.step} of one version, by the plan's rule the last is {ahead}"
        )
    # Shards would wait for blocks that nobody can send, and the cohort with them.
    blocks = range(layout.blocks)
    if len(receipt.blocks) != len(blocks) or any(len(d) != DIGEST_BYTES for d in receipt.blocks):
        raise Malformed(f"{id}: the group has {len(blocks)} blocks, each one digest")
    # The digests are not signed, the root is: shards and holders must speak of the same payloads.
    if receipt.root != ciphertext_root(receipt.blocks, receipt.correction):
        raise Malformed(f"{id}: its root is not that of its blocks' digests and its correction")
    size = sum(block_bytes(plan, layout, purpose, block) for block in blocks)
    if receipt.size != size:
        raise Malformed(f"{id}: {receipt.size} bytes, the plan makes {size}")
    # Without a name of its own an update could be summed twice, sealed under two keys.
    beside = DIGEST_BYTES if len(together(plan, id.group)) > 1 else 0
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
        # It would tell of the data what no plan has announced.
        if given is not None:
            raise Malformed(f"{receipt.id}: it declares a size, and nobody asks for one")
    # One beyond the bounds would come before all others for ever, however long these have waited.
    elif given is None or not 0 <= given <= LARGEST:
        raise Malformed(f"{receipt.id}: it declares a size of 0 to {LARGEST}, not {given}")


def _check_shared_key(plan: Plan, layout: GroupLayout, receipt: Receipt) -> None:
    """Checks counts and sizes of what a receipt says of its one-time key.

    What is sealed in it, holders check.

    Raises:
        Malformed, Oversized: there is more or less than the plan's committee wants.
    """
    id, correction = receipt.id, receipt.correction
    shared = plan.opening is Opening.COMMITTEE
    if not shared or receipt.purpose != UPDATE:
        # What nobody reads would be journalled and sent on all the same, at any length.
        said = (receipt.envelopes, receipt.commitments, receipt.keys, correction, receipt.committee)
        if said != ((), (), (), None, None):
            raise Malformed(f"{id}: it has no key to share, and no envelopes or commitments to it")
        return
    if receipt.committee is None or len(receipt.committee) != DIGEST_BYTES:
        raise Malformed(f"{id}: it does not say for which key holders it is sealed")
    committee = plan.unnamed_committee
    subsets, size = len(committee.subsets), committee.seed_bytes + OVERHEAD
    # A key that a holder cannot have its share of burns the whole cohort when that is opened.
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

    The ledger believes it: with less than was spent, or in another's name, it would count too
    little for somebody.
    """
    id, given = receipt.id, receipt.fact
    planned = None
    if receipt.purpose == UPDATE:
        planned = fact(plan, id.client, id.group, layout.sent, receipt.version, receipt.step)
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
    # Version 0 lies in the clear and is everybody's: one client gives it, and once.
    client, given = receipt.id.client, tx.plan.given(group.name)
    if given or group.phase is not Phase.FOUNDING or client != tx.federation.founder:
        raise WrongVersion(f"the founding model of {group.name} is not asked from {client}")
    if group.receipts:
        raise WrongVersion(f"the founding model of {group.name} is here already")


def _check_asked(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    """Accepts an update that was asked for, from the base that was asked for.

    Without rounds, from a newer one too; and one whose blocks were lost comes once more as it was.
    """
    id, coming = receipt.id, group.version + 1
    # Once a round's cohort is closed its members are fixed: holders are shown no other.
    if not group.takes_updates:
        raise WrongVersion(
            f"{group.name} takes no updates now ({group.reason}); pull and wait to be invited"
        )
    # No client counts twice in a mean: not with what was lost and what it has sent instead, either.
    if id.client in group.invited and id.client in group.open_receipts.clients:
        raise Conflict(f"{id.client} has contributed to version {coming} already")
    if id in group.members.returning:
        return
    again = id.client in group.invited and recovery.sends_again(tx, group, id.client)
    if again and (wrong := recovery.objection(group, receipt)):
        raise WrongVersion(f"{id}: {wrong}")
    _check_base(tx, group, receipt)
    # Who was not asked would be summed more often than the rule and the ledger allow.
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
    # A late or replayed update of an older model would be summed with those of this one.
    if group.rounds and not (newest and receipt.base == base):
        raise WrongVersion(
            f"{id} was trained on version {receipt.version}, the open base is "
            f"{group.version}; pull and train again"
        )
    # Holders refuse a cohort in which a version is said to be two models.
    if receipt.base != base:
        raise WrongVersion(f"{id}: its base is no version {receipt.version} of {group.name}")


def _check_step(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    id, base = receipt.id, Base(receipt.version, receipt.step)
    if group.rounds:
        if base != recovery.round_base(tx, group):
            text = f"{id} has metrics of another version of the model than was asked for"
            raise WrongVersion(text)
        return
    asked = group.members.training[id.client]
    # The same step of a version twice would be one update in two sums: their difference tells it.
    if base < asked or base.step != (asked.step if base.version == asked.version else 0):
        raise WrongVersion(
            f"{id}: asked was update {asked.step} of version {asked.version}, or the first of a "
            f"newer version, and this is update {base.step} of version {base.version}"
        )
