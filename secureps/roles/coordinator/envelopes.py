"""What is sealed for key holders: flaws in it, holders that are gone, and keys that are erased.

flaws     a holder that finds one in an envelope has the submission left out, if it is believed
holders   where too few are left of those that a group is sealed for, nobody opens what was sent
          for them, and it is given up. Their successors are due from the newest version on.
          Who has sealed that version already seals no other (`roles.member.committees`): it
          sits out until the next. If holders were asked to open one of that version, nobody
          knows what they made of it, nobody opens another, and the group is given up
keys      a key is needed while a submission that can still be opened is sealed for it, or one
          may come that was asked for in a round, or from a version, of before the next key. What
          holders erase all the same, after a day, opens no more: where too few of them are left,
          a submission is dropped as stale, and nobody is accused for it. Its version is then
          sealed anew for newer keys: a version is bound to a committee, and to no key
"""

from __future__ import annotations

from dataclasses import replace

from secureps.crypto.roster import Roster
from secureps.errors import Conflict, NotReady, UnknownParty, WrongVersion
from secureps.messages import coordinator_records as records
from secureps.messages.coordinator_records import CohortReopened, FlawNoted
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.orders import (
    EraseKeys,
    Examine,
    GroupVersion,
    KeyCommittee,
)
from secureps.messages.requests import Examined
from secureps.messages.submission import Receipt, SubmissionId, rooted
from secureps.policy.cohorts.suspicion import BELIEVED, believed, missable, told, unsupported
from secureps.roles.coordinator import opening, recovery, termination
from secureps.roles.coordinator.commit import REASON_LIMIT
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import named


def make_examine(tx: Transaction, receipt: Receipt) -> Examine:
    return Examine(tx.federation.incarnation, rooted(receipt))


def examine(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    """Asks every holder of a receipt's committee to look into its envelope.

    Where no cohort waits for that, holders find flaws while they open the cohort.
    """
    if not opening.wanted(tx.plan) or not opening.looked_at(group, receipt.id.client):
        return
    order = make_examine(tx, receipt)
    for holder in opening.holders_of(tx, receipt.committee):
        tx.order(holder, order)


def _examine_all(tx: Transaction, group: GroupState, client: str) -> None:
    """Has holders look into what a client sent before a flaw was found in its envelope."""
    known = tx.federation.committees  # what came may be sealed for one before the newest
    for holder in dict.fromkeys(h for each in known for h in each.holders):
        for receipt in opening.unexamined(tx, group, holder):
            if receipt.id.client == client:
                tx.order(holder, make_examine(tx, receipt))


def looked_into(tx: Transaction, group: GroupState, answer: Examined) -> None:
    """Journals what a holder found in an envelope; a flaw drops the submission if it can.

    No holder was asked to open a cohort that is only held: it is closed anew. Once holders are
    asked it is too late (this one will refuse its share). Then, or if the holder is not believed,
    the flaw is noted, and the client remembered; so is what others find in a dropped submission.

    Raises:
        Conflict: the holder was shown another receipt of this name.
        UnknownParty: the submission is not sealed for this holder, which has no envelope of it.
    """
    id, flaw, open_receipts = answer.id, answer.flaw[:REASON_LIMIT], group.open_receipts
    # A founding model has no envelopes: only a holder that lies says anything of one.
    if group.phase is Phase.FOUNDING or answer.holder in open_receipts.examined.get(id, ()):
        return
    if (receipt := open_receipts.receipts.get(id)) is not None:
        if answer.about != tx.federation.settled.receipts[id]:
            raise Conflict(f"{answer.holder} answers for another receipt of {id}")
        if answer.holder not in opening.holders_of(tx, receipt.committee):
            raise UnknownParty(f"{id} is not sealed for {answer.holder}: it cannot look into it")
    if not flaw:
        if id in open_receipts.receipts:
            tx.write(answer)
        return
    doubt = _disbelieved(tx, group, id, answer.holder)
    alone = len(opening.left(tx, group, id) - {answer.holder}) < tx.plan.threshold
    if (alone or not doubt) and group.phase is Phase.HOLDING and group.closed_over(id):
        tx.write(CohortReopened(group.name, group.number, ()))
    if not doubt and group.drops(id):
        _leave_out(tx, group, id, answer.holder, flaw)
    elif _is_new(tx, group, answer):
        late = "too late to leave it out" if tx.federation.stands(id) else "left out already"
        looked_at = opening.looked_at(group, id.client)
        tx.write(FlawNoted(group.name, id, answer.holder, flaw, doubt or late))
        if not looked_at and opening.looked_at(group, id.client):
            _examine_all(tx, group, id.client)


def leave_out_doubted(tx: Transaction, group: GroupState) -> None:
    """Leaves out submissions that stayed in despite a flaw, and that too few can open now.

    Others of its key holders were to open it, and are on the roster no more. A holder that accuses
    more clients than it is believed of has nobody left out: what it does not open waits.
    """
    for id in sorted(opening.unopenable(tx, group)):
        holders = group.open_receipts.doubted.get(id, frozenset())
        taken = [h for h in sorted(holders) if not _disbelieved(tx, group, id, h)]
        if taken and group.drops(id):
            flaw = "it does not open, and too few others are left to open it"
            _leave_out(tx, group, id, taken[0], flaw)


def stuck(tx: Transaction, group: GroupState) -> str:
    """What waits because a holder that is not believed is needed; empty if nothing does."""
    waiting = opening.unopenable(tx, group)
    if not waiting:
        return ""
    by = sorted(frozenset[str]().union(*(group.open_receipts.doubted[id] for id in waiting)))
    accused = unsupported(tx.federation.accused, _spare(tx, len(tx.holders)))
    says = "; ".join(f"{holder} {told(accused[holder])}" for holder in by)
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
    """Whether a flaw that changes nothing now was not noted before."""
    id = answer.id
    if id in group.open_receipts.receipts:
        return answer.holder not in group.open_receipts.doubted.get(id, ())
    known = tx.federation.known(id)
    return known and answer.holder not in tx.federation.accused.get(id.client, ())


def _disbelieved(tx: Transaction, group: GroupState, id: SubmissionId, holder: str) -> str:
    """Why a holder is not believed; empty if it is.

    The version must not lack members on the word of a few holders while others can open it.
    """
    left = len(opening.left(tx, group, id))
    spare = _spare(tx, left)
    by = tx.federation.accused.get(id.client, frozenset()) | {holder}
    accused = {**tx.federation.accused, id.client: by}
    able = group.invited
    if not group.rounds:
        able = tx.takers(group.name).union(group.open_receipts.clients) - group.sitting_out
    spared = left <= tx.plan.threshold or len(able) > tx.plan.bounds(group.name).minimum
    if believed(accused, id.client, holder, spare, BELIEVED if spared else 0):
        return ""
    return f"not believed: {holder} {told(unsupported(accused, spare)[holder])}"


def _spare(tx: Transaction, left: int) -> int:
    return missable(left, tx.plan.holders, tx.plan.threshold)


def give_up_lost(tx: Transaction, group: GroupState) -> None:
    """Gives up what nobody opens any more, once there are successors."""
    *earlier, newest = tx.federation.committees or (None,)
    lost = {c.committee: c for c in earlier if c is not None and not opening.is_able(tx, c)}
    # It is asked at every event: nobody looks through all receipts while nobody is lost.
    if newest is None or not lost or newest.committee in lost or not opening.is_able(tx, newest):
        return
    cohort = group.cohort
    if group.phase is Phase.HOLDING and cohort is not None and cohort.committee in lost:
        tx.write(records.CohortReopened(group.name, group.number, ()))  # nobody was asked yet
    between = group.phase is Phase.WAITING and not termination.over(tx, group)
    if group.version < 0 or not (between or group.phase is Phase.COLLECTING):
        return
    due = opening.committee_at(tx, group.name, group.version)
    _give_up(tx, group, lost)
    if due.committee not in lost:
        return
    asked = (m.version for burnt in group.spoilt for m in burnt.members)
    if max(asked, default=-1) < group.version:
        _begin(tx, group, newest)
    elif not group.trails:  # what came to nothing there is skipped
        text = f"{_why(tx, due)}, and they were asked to open updates of version {group.version}"
        termination.give_up(tx, group, f"{text}{tx.plan.of(group.name)}: nobody opens others of it")


def _give_up(tx: Transaction, group: GroupState, lost: dict[bytes, KeyCommittee]) -> None:
    """Drops what was sent for these holders; with the round, where there are rounds."""
    ids = tuple(r.id for r in group.receipts.values() if r.committee in lost and group.drops(r.id))
    if not group.rounds:
        sealed = {group.receipts[id].committee or b"" for id in ids}
        for committee in sorted(sealed):
            own = tuple(id for id in ids if group.receipts[id].committee == committee)
            tx.drop(group.name, own, _why(tx, lost[committee]))
    elif group.phase is Phase.COLLECTING:
        due = opening.committee_at(tx, group.name, group.version)
        if due.committee in lost:
            termination.give_up_round(tx, group, f"given up: {_why(tx, due)}")


def _begin(tx: Transaction, group: GroupState, newest: KeyCommittee) -> None:
    """Has the newest version of this group sealed for the newest holders."""
    sent = group.members.sent.items()
    for client in sorted(client for client, base in sent if base.version >= group.version):
        reason = "it has sealed the newest version for other key holders"
        termination.declined(tx, group, client, reason, sits_out=True)
    others = (at for at in newest.since if at.group != group.name)
    formed = replace(newest, since=(*others, GroupVersion(group.name, group.version)))
    tx.write(formed)
    tx.tell_clients(opening.make_seal_for(tx, formed))


def _why(tx: Transaction, committee: KeyCommittee) -> str:
    gone = [holder for holder in committee.holders if holder not in tx.holders]
    return (
        f"{named(gone)} are on the roster no more, and fewer than {tx.plan.threshold} of the "
        f"{len(committee.holders)} key holders that it is sealed for are left"
    )


SETTLING = (
    EnvelopeKeyAnnounced,
    records.RoundOpened,
    records.RoundGivenUp,
    records.VersionCommitted,
    records.CohortBurnt,
    records.SubmissionsDropped,
    records.StreamEnded,
)
"""Records after which fewer keys may be needed than before."""


AT_ONCE = 64
"""Announcements of a holder that neither cohorts nor time have to account for."""

BETWEEN = 60.0
"""Seconds that account for two of them, where a key serves no shorter time."""


def announced(tx: Transaction, roster: Roster, told: EnvelopeKeyAnnounced) -> None:
    """A holder says which key is its newest, and which are erased.

    Raises:
        NotReady: it has said so more often than its keys can have served.
        Otherwise as `AnnouncedKeys.is_news`.
    """
    number = tx.federation.keys.number(told.holder)
    if not tx.federation.keys.is_news(told, tx.federation.run.id, roster):
        return
    _demand_few(tx, told.holder)
    tx.write(told)
    if told.number > number:
        tx.tell_clients(opening.make_seal_for(tx, tx.federation.committees[-1]))
    for group in tx.federation.groups.values():
        drop_stale(tx, group)


def _demand_few(tx: Transaction, holder: str) -> None:
    """Two announcements of each key: that it is there, and that those before are erased.

    Otherwise a holder that announces one key after another would fill the journals of all clients.
    """
    seconds = min(BETWEEN, tx.plan.section.cipher.envelope_seconds)
    cohorts = sum(group.number + 1 for group in tx.federation.groups.values())
    if tx.federation.keys.count(holder) >= AT_ONCE + 2 * (cohorts + int(tx.now / seconds)):
        text = f"{holder} has announced more keys than can have served: the next ones wait"
        raise NotReady(text, retry_after=seconds)


def check_keys(tx: Transaction, receipt: Receipt) -> None:
    """WrongVersion if too few holders have the keys that a receipt is sealed for.

    Were it journalled and dropped, it would be asked for again without end.
    """
    if _stale(tx, receipt):
        raise WrongVersion(f"{receipt.id}, sealed for keys {receipt.keys}: {_stale_text(tx)}")


def drop_stale(tx: Transaction, group: GroupState) -> None:
    """Drops what too few holders have keys for, and asks for it once more.

    The members of a closed cohort stay: its holders answer, or refuse.
    """
    if not opening.wanted(tx.plan):
        return
    stale = [r for r in group.receipts.values() if _stale(tx, r) and group.drops(r.id)]
    if not stale:
        return
    tx.drop(group.name, tuple(receipt.id for receipt in stale), _stale_text(tx))
    for client in {receipt.id.client: None for receipt in stale}:
        if group.rounds and group.awaits(client):
            tx.order(client, recovery.make_invite(tx, group, client))


def _stale_text(tx: Transaction) -> str:
    have = f"fewer than {tx.plan.threshold} key holders have announced, and not erased"
    return f"{have}, the keys that it is sealed for"


def _stale(tx: Transaction, receipt: Receipt) -> bool:
    keys = tx.federation.keys
    able = sum(
        max(keys.least(holder), tx.federation.released(holder)) <= number <= keys.number(holder)
        for holder, number in zip(opening.holders_of(tx, receipt.committee), receipt.keys)
    )
    return bool(receipt.keys) and able < tx.plan.threshold


def release(tx: Transaction) -> None:
    """Tells holders which keys nobody needs any more, once something was settled."""
    if not any(isinstance(record, SETTLING) for record in tx.step.records):
        return
    federation = tx.federation
    for holder in tx.holders:
        released, newest = federation.released(holder), federation.keys.number(holder)
        groups = federation.groups.values()
        if released >= newest or any(group.members.returning for group in groups):
            continue
        below = min(newest, _needed(tx, holder))
        if below > released:
            tx.write(records.KeysReleased(holder, below))
            tx.order(holder, make_erase(tx, holder))


def make_erase(tx: Transaction, holder: str) -> EraseKeys:
    return EraseKeys(tx.federation.incarnation, tx.federation.released(holder))


def _needed(tx: Transaction, holder: str) -> int:
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
