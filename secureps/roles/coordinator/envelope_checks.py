"""What holders of a committee find in the envelopes of a submission, and what comes of it."""

from __future__ import annotations

from secureps.errors import Conflict
from secureps.messages.coordinator_records import CohortReopened, FlawNoted, ReceiptExamined
from secureps.messages.orders import Examine
from secureps.messages.requests import Examined
from secureps.messages.submission import Receipt, SubmissionId, rooted
from secureps.policy.cohorts.accusations import (
    BELIEVED,
    believed,
    missable,
    told,
    unsupported,
)
from secureps.roles.coordinator import committees, opening, synchronous
from secureps.roles.coordinator.commit import REASON_LIMIT
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import named


def make_examine(tx: Transaction, receipt: Receipt) -> Examine:
    """The same for every holder."""
    return Examine(tx.federation.incarnation, rooted(receipt))


def examine(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    """A receipt has come: every holder of a committee is asked to look into its envelope.

    Where nobody waits for that they find what is wrong with it while they open its cohort.
    """
    if not opening.wanted(tx.plan) or not opening.looked_at(group, receipt.id.client):
        return
    order = make_examine(tx, receipt)
    for holder in committees.holders(tx, receipt.committee):
        tx.order(holder, order)


def _examine_all(tx: Transaction, group: GroupState, client: str) -> None:
    """What came of a client before a flaw was found is looked into now: it is kept back."""
    known = tx.federation.committees  # what came may be sealed for one before the newest
    for holder in dict.fromkeys(h for each in known for h in each.holders):
        for receipt in opening.unexamined(tx, group, holder):
            if receipt.id.client == client:
                tx.order(holder, make_examine(tx, receipt))


def looked_into(tx: Transaction, group: GroupState, answer: Examined) -> None:
    """A holder has; with a flaw the submission is dropped, before anything is opened.

    No holder was asked to open a cohort that is only held: it is closed anew. Once holders are
    asked it is too late (this one will refuse its share). Then, or if the holder is not believed,
    it is noted, and the client remembered; so is what others find in a submission that is dropped.

    Raises:
        Conflict: the holder was shown another receipt of this name.
    """
    id, flaw, open_receipts = answer.id, answer.flaw[:REASON_LIMIT], group.open_receipts
    if answer.holder in open_receipts.examined.get(id, ()):
        return
    if id in open_receipts.receipts and answer.about != tx.federation.settled.receipts[id]:
        raise Conflict(f"{answer.holder} answers for another receipt of {id}")
    if not flaw:
        if id in open_receipts.receipts:
            tx.write(ReceiptExamined(group.name, id, answer.holder, ""))
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


def settle(tx: Transaction, group: GroupState) -> None:
    """Leaves out what stayed in although a holder found a flaw, if nobody can open it any more.

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
    """What waits because a holder that is not believed cannot be missed; empty: nothing does."""
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
    tx.write(ReceiptExamined(group.name, id, holder, flaw))
    tx.settle((id,))
    if not group.streaming:
        synchronous.end_if_too_few(tx, group, {id.client: tx.federation.fates[id].reason})


def _is_new(tx: Transaction, group: GroupState, answer: Examined) -> bool:
    """Whether a flaw that changes nothing now was not told before: of what is here, or of whom."""
    id = answer.id
    if id in group.open_receipts.receipts:
        return answer.holder not in group.open_receipts.doubted.get(id, ())
    known = tx.federation.known(id)
    return known and answer.holder not in tx.federation.accused.get(id.client, ())


def _disbelieved(tx: Transaction, group: GroupState, id: SubmissionId, holder: str) -> str:
    """Why a holder is not believed; empty if it is.

    Without the client the version must not lack members for the word of a few holders, while
    others can open what it sent.
    """
    left = len(opening.left(tx, group, id))
    spare = _spare(tx, left)
    by = tx.federation.accused.get(id.client, frozenset()) | {holder}
    accused = {**tx.federation.accused, id.client: by}
    able = group.invited
    if group.streaming:
        able = tx.takers(group.name).union(group.open_receipts.clients) - group.sitting_out
    spared = left <= tx.plan.threshold or len(able) > tx.plan.bounds(group.name).minimum
    if believed(accused, id.client, holder, spare, BELIEVED if spared else 0):
        return ""
    return f"not believed: {holder} {told(unsupported(accused, spare)[holder])}"


def _spare(tx: Transaction, left: int) -> int:
    return missable(left, tx.plan.holders, tx.plan.threshold)
