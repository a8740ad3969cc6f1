"""Envelopes for key holders: flaws in them, holders that are gone, and keys that are erased.

flaws     if a holder finds a flaw in an envelope and is believed, the submission is left out
holders   if too few of a committee are left, its submissions cannot be opened and are given up.
          From the newest version on, updates are sealed for the successors. A client that has
          sealed that version already must not seal it again (`roles.member.committees`), so it
          sits out until the next version. If the old holders were asked to open a cohort of that
          version, they may have opened it: no other is opened, and the group is given up
keys      a key is needed while a submission that can still be opened is sealed for it, or may
          still come because it was asked for before the next key. Holders erase an old key after
          a day even if it is needed. If too few holders of a submission's keys are left, the
          submission is dropped as stale, and its client, which is not accused, seals the version
          anew for newer keys
"""

from __future__ import annotations

from dataclasses import replace

from secureps.errors import Conflict, NotReady, UnknownParty, WrongVersion
from secureps.messages import coordinator_records as records
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.orders import EraseKeys, Examine, KeyCommittee
from secureps.messages.requests import Examined
from secureps.messages.run import GroupVersion
from secureps.messages.submission import Receipt, SubmissionId, shorten
from secureps.policy.cohorts.suspicion import (
    BELIEVED,
    accusation,
    believes,
    count_spare,
    tally_doubts,
)
from secureps.roles.coordinator import opening, termination
from secureps.roles.coordinator.group import REASON_LIMIT, GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import named


def make_examine(tx: Transaction, receipt: Receipt) -> Examine:
    return Examine(tx.federation.incarnation, shorten(receipt))


def examine(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    """Asks every holder of a receipt's committee to examine its envelope.

    If cohorts do not wait for that, holders find flaws while they open the cohort.
    """
    if not tx.plan.has_committee or not opening.is_examined_first(group, receipt.id.client):
        return
    order = make_examine(tx, receipt)
    for holder in opening.holders_of(tx, receipt.committee):
        tx.order(holder, order)


def _examine_all(tx: Transaction, group: GroupState, client: str) -> None:
    """Has holders examine what a client sent before a flaw was found in one of its envelopes."""
    known = tx.federation.committees  # some may be sealed for an older committee
    for holder in dict.fromkeys(h for each in known for h in each.holders):
        for receipt in opening.unexamined(tx, group, holder):
            if receipt.id.client == client:
                tx.order(holder, make_examine(tx, receipt))


def take_examination(tx: Transaction, group: GroupState, answer: Examined) -> None:
    """Journals what a holder found in an envelope, and drops a flawed submission if it can.

    A cohort that shards only hold closes anew without the submission, because no holder was asked
    to open it. Once holders were asked it is too late. Then, or if the holder is not believed, only
    the flaw is noted. The turn is quiet if the answer lets no further submission into a cohort.
    """
    id, flaw, open_receipts = answer.id, answer.flaw[:REASON_LIMIT], group.open_receipts
    # A founding model has no envelopes, so a holder that reports on one lies.
    if group.phase is Phase.FOUNDING or answer.holder in open_receipts.examined.get(id, ()):
        return
    if (receipt := open_receipts.receipts.get(id)) is not None:
        if answer.about != tx.federation.settled.receipts[id]:
            raise Conflict(f"{answer.holder} answers for another receipt of {id}")
        if answer.holder not in opening.holders_of(tx, receipt.committee):
            raise UnknownParty(f"{id} is not sealed for {answer.holder}: it cannot look into it")
    if not flaw:
        before = open_receipts.changes
        if id in open_receipts.receipts:
            tx.write(answer)
        # If an envelope of a client had a flaw before, all holders examine its submissions first.
        tx.quiet = open_receipts.changes == before and not group.suspicion.flawed
        return
    doubt = _why_disbelieved(tx, group, id, answer.holder)
    alone = len(opening.remaining_holders(tx, group, id) - {answer.holder}) < tx.plan.threshold
    if (alone or not doubt) and group.phase is Phase.HOLDING and group.is_closed_over(id):
        tx.write(records.CohortReopened(group.name, group.number, ()))
    if not doubt and group.can_drop(id):
        _leave_out(tx, group, id, answer.holder, flaw)
    elif _is_new(tx, group, answer):
        late = "too late to leave it out" if tx.federation.is_kept(id) else "left out already"
        looked_at = opening.is_examined_first(group, id.client)
        tx.write(records.FlawNoted(group.name, id, answer.holder, flaw, doubt or late))
        if not looked_at and opening.is_examined_first(group, id.client):
            _examine_all(tx, group, id.client)


def leave_out_doubted(tx: Transaction, group: GroupState) -> None:
    """Leaves out submissions that stayed in despite a flaw, and that too few holders can open now.

    The holders that were to open them are not on the roster any more. Submissions that only a
    disbelieved holder could open wait.
    """
    for id in sorted(opening.unopenable(tx, group)):
        holders = group.open_receipts.doubted.get(id, frozenset())
        taken = [h for h in sorted(holders) if not _why_disbelieved(tx, group, id, h)]
        if taken and group.can_drop(id):
            flaw = "it does not open, and too few others are left to open it"
            _leave_out(tx, group, id, taken[0], flaw)


def describe_stuck(tx: Transaction, group: GroupState) -> str:
    """Describes submissions that wait for a holder that is not believed; empty if none do."""
    waiting = opening.unopenable(tx, group)
    if not waiting:
        return ""
    by = sorted(frozenset[str]().union(*(group.open_receipts.doubted[id] for id in waiting)))
    accused = tally_doubts(tx.federation.accused, _spare(tx, len(tx.holders)))
    says = "; ".join(f"{holder} {accusation(accused[holder])}" for holder in by)
    updates = f"{len(waiting)} update{'s' * (len(waiting) > 1)}"
    return (
        f"{updates} cannot be opened without {named(by)}: {says}. Replace it, or whoever was taken "
        "off the roster"
    )


def _leave_out(
    tx: Transaction, group: GroupState, id: SubmissionId, holder: str, flaw: str
) -> None:
    tx.write(Examined(holder, id, flaw, tx.federation.settled.receipts[id]))
    tx.settle((id,))
    if group.rounds:
        termination.end_if_too_few(tx, group, {id.client: tx.federation.fates[id].reason})


def _is_new(tx: Transaction, group: GroupState, answer: Examined) -> bool:
    id = answer.id
    if id in group.open_receipts.receipts:
        return answer.holder not in group.open_receipts.doubted.get(id, ())
    known = tx.federation.is_known(id)
    return known and answer.holder not in tx.federation.accused.get(id.client, ())


def _why_disbelieved(tx: Transaction, group: GroupState, id: SubmissionId, holder: str) -> str:
    """Returns why a holder is not believed; empty if it is.

    While other holders can open the version, a few holders must not take members from it.
    """
    left = len(opening.remaining_holders(tx, group, id))
    spare = _spare(tx, left)
    by = tx.federation.accused.get(id.client, frozenset()) | {holder}
    accused = {**tx.federation.accused, id.client: by}
    able = group.invited
    if not group.rounds:
        able = tx.takers(group.name).union(group.open_receipts.clients) - group.sitting_out
    spared = left <= tx.plan.threshold or len(able) > tx.plan.bounds(group.name).minimum
    if believes(accused, id.client, holder, spare, BELIEVED if spared else 0):
        return ""
    return f"not believed: {holder} {accusation(tally_doubts(accused, spare)[holder])}"


def _spare(tx: Transaction, left: int) -> int:
    return count_spare(left, tx.plan.holders, tx.plan.threshold)


def give_up_lost(tx: Transaction, group: GroupState) -> None:
    """Gives up submissions whose key holders are gone, once there are successors."""
    *earlier, newest = tx.federation.committees or (None,)
    lost = {c.committee: c for c in earlier if c is not None and not opening.is_able(tx, c)}
    # Every event asks this, so receipts are only looked through if holders are gone.
    if newest is None or not lost or newest.committee in lost or not opening.is_able(tx, newest):
        return
    cohort = group.cohort
    if group.phase is Phase.HOLDING and cohort is not None and cohort.committee in lost:
        tx.write(records.CohortReopened(group.name, group.number, ()))  # no holder was asked yet
    between = group.phase is Phase.WAITING and not tx.is_over(group)
    if group.version < 0 or not (between or group.phase is Phase.COLLECTING):
        return
    due = opening.committee_at(tx, group.name, group.version)
    _drop_lost(tx, group, lost)
    if due.committee not in lost:
        return
    asked = (m.version for cohort in group.spoilt for m in cohort.members)
    if max(asked, default=-1) < group.version:
        _seal_for_newest(tx, group, newest)
    elif not group.trails:  # a trailing group (metrics) skips a failed round, and the run goes on
        burnt = f"updates of version {group.version}{tx.plan.of(group.name)}"
        text = f"{_describe_loss(tx, due)}, and they were asked to open {burnt}"
        termination.give_up(tx, group, f"{text}: nobody opens other updates of this version")


def _drop_lost(tx: Transaction, group: GroupState, lost: dict[bytes, KeyCommittee]) -> None:
    """Drops submissions for these holders; in a group with rounds, the whole round."""
    ids = tuple(
        r.id for r in group.receipts.values() if r.committee in lost and group.can_drop(r.id)
    )
    if not group.rounds:
        sealed = {group.receipts[id].committee or b"" for id in ids}
        for committee in sorted(sealed):
            own = tuple(id for id in ids if group.receipts[id].committee == committee)
            tx.drop(group.name, own, _describe_loss(tx, lost[committee]))
    elif group.phase is Phase.COLLECTING:
        due = opening.committee_at(tx, group.name, group.version)
        if due.committee in lost:
            termination.give_up_round(tx, group, f"given up: {_describe_loss(tx, due)}")


def _seal_for_newest(tx: Transaction, group: GroupState, newest: KeyCommittee) -> None:
    sent = group.members.sent.items()
    for client in sorted(client for client, base in sent if base.version >= group.version):
        reason = "it has sealed the newest version for other key holders"
        termination.take_decline(tx, group, client, reason, sits_out=True)
    others = (at for at in newest.since if at.group != group.name)
    formed = replace(newest, since=(*others, GroupVersion(group.name, group.version)))
    tx.write(formed)
    tx.tell_clients(opening.make_seal_for(tx, formed))


def _describe_loss(tx: Transaction, committee: KeyCommittee) -> str:
    gone = [holder for holder in committee.holders if holder not in tx.holders]
    return (
        f"{named(gone)} are on the roster no more, and fewer than {tx.plan.threshold} of the "
        f"{len(committee.holders)} key holders that it is sealed for are left"
    )


AT_ONCE = 64
"""Announcements that every holder may make; more are allowed by cohorts and time."""

BETWEEN = 60.0
"""Seconds for which two more announcements are allowed."""


def take_key(tx: Transaction, told: EnvelopeKeyAnnounced) -> None:
    """Takes a holder's announcement of its newest key, and of the keys that it erased.

    Raises:
        NotReady: the holder announces more often than its keys can have served.
        Otherwise as `AnnouncedKeys.is_news`.
    """
    number = tx.federation.keys.number(told.holder)
    if not tx.federation.keys.is_news(told, tx.federation.run.id, tx.settings.roster):
        return
    _demand_few(tx, told.holder)
    tx.write(told)
    if told.number > number:
        tx.tell_clients(opening.make_seal_for(tx, tx.federation.committees[-1]))
    for group in tx.federation.groups.values():
        drop_stale(tx, group)


def _demand_few(tx: Transaction, holder: str) -> None:
    """NotReady beyond two announcements of each key: that it exists, and that others are erased.

    Otherwise a holder that announces one key after another would fill the journals of all clients.
    """
    cohorts = sum(group.number + 1 for group in tx.federation.groups.values())
    if tx.federation.keys.count(holder) >= AT_ONCE + 2 * (cohorts + int(tx.now / BETWEEN)):
        text = f"{holder} has announced more keys than can have served: the next ones wait"
        raise NotReady(text, retry_after=BETWEEN)


def check_keys(tx: Transaction, receipt: Receipt) -> None:
    """Raises WrongVersion if too few holders have the keys that a receipt is sealed for.

    If the receipt were journalled and dropped, the coordinator would ask for it again endlessly.
    """
    if _is_stale(tx, receipt):
        raise WrongVersion(f"{receipt.id}, sealed for keys {receipt.keys}: {_stale_text(tx)}")


def drop_stale(tx: Transaction, group: GroupState) -> None:
    """Drops submissions for whose keys too few holders are left, and asks for them once more.

    The members of a closed cohort stay: its holders answer, or refuse.
    """
    if not tx.plan.has_committee:
        return
    stale = [r for r in group.receipts.values() if _is_stale(tx, r) and group.can_drop(r.id)]
    if not stale:
        return
    tx.drop(group.name, tuple(receipt.id for receipt in stale), _stale_text(tx))
    for client in {receipt.id.client: None for receipt in stale}:
        if group.rounds and group.awaits(client):
            tx.order(client, tx.make_invite(group, client))


def _stale_text(tx: Transaction) -> str:
    have = f"fewer than {tx.plan.threshold} key holders have announced, and not erased"
    return f"{have}, the keys that it is sealed for"


def _is_stale(tx: Transaction, receipt: Receipt) -> bool:
    keys = tx.federation.keys
    able = sum(
        max(keys.least(holder), tx.federation.least_usable_key(holder))
        <= number
        <= keys.number(holder)
        for holder, number in zip(opening.holders_of(tx, receipt.committee), receipt.keys)
    )
    return bool(receipt.keys) and able < tx.plan.threshold


def release(tx: Transaction) -> None:
    """Tells holders which keys are not needed any more."""
    federation = tx.federation
    for holder in tx.holders:
        released, newest = federation.least_usable_key(holder), federation.keys.number(holder)
        groups = federation.groups.values()
        if released >= newest or any(group.members.returning for group in groups):
            continue
        below = min(newest, _least_needed(tx, holder))
        if below > released:
            tx.write(records.KeysReleased(holder, below))
            tx.order(holder, make_erase(tx, holder))


def make_erase(tx: Transaction, holder: str) -> EraseKeys:
    return EraseKeys(tx.federation.incarnation, tx.federation.least_usable_key(holder))


def _least_needed(tx: Transaction, holder: str) -> int:
    groups = tx.federation.groups
    sealed = (
        number
        for group in groups.values()
        for receipt in group.receipts.values()
        for whose, number in zip(opening.holders_of(tx, receipt.committee), receipt.keys)
        if whose == holder
    )
    asked = (
        number
        for number, stood in tx.federation.replaced.get(holder, {}).items()
        if any(groups[group].still_asks(*at) for group, at in stood.items())
    )
    return min((*sealed, *asked), default=tx.federation.keys.number(holder))
