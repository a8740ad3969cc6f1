"""What becomes of a group when too few are left of the key holders that it is sealed for.

Nobody opens what was sent for them: it is given up, nothing of it was opened. Their successors
are due from the newest version on then, not from the next. Who has sealed an update of that version
already seals no other (`roles.member.committees`): it declines, and sits out until the next. If
holders were asked to open one of that version, nobody knows what they made of it, and nobody
opens another: the group is given up.
"""

from __future__ import annotations

from dataclasses import replace

from secureps.messages import coordinator_records as records
from secureps.messages.evaluation import EVALUATION
from secureps.messages.orders import GroupVersion, KeyCommittee, SealFor
from secureps.roles.coordinator import committees, synchronous, termination
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.wording import named


def settle(tx: Transaction, group: GroupState) -> None:
    """Gives up what nobody opens any more, once there are successors; else nothing changes."""
    *earlier, newest = tx.federation.committees or (None,)
    lost = {c.committee: c for c in earlier if c is not None and not committees.able(tx, c)}
    # It is asked at every event: nobody looks through all receipts while nobody is lost.
    if newest is None or not lost or newest.committee in lost or not committees.able(tx, newest):
        return
    cohort = group.cohort
    if group.phase is Phase.HOLDING and cohort is not None and cohort.committee in lost:
        tx.write(records.CohortReopened(group.name, group.number, ()))  # nobody was asked yet
    between = group.phase is Phase.WAITING and not termination.over(tx, group)
    if group.version < 0 or not (between or group.phase is Phase.COLLECTING):
        return
    due = committees.at(tx, group.name, group.version)
    _give_up(tx, group, lost)
    if due.committee not in lost:
        return
    asked = (m.version for burnt in group.spoilt for m in burnt.members)
    if max(asked, default=-1) < group.version:
        _begin(tx, group, newest)
    elif group.name != EVALUATION:  # an evaluation that came to nothing is skipped
        text = f"{_why(tx, due)}, and they were asked to open updates of version {group.version}"
        termination.give_up(tx, group, f"{text}{tx.plan.of(group.name)}: nobody opens others of it")


def _give_up(tx: Transaction, group: GroupState, lost: dict[bytes, KeyCommittee]) -> None:
    """What was sent for these is dropped; with the round, where there are rounds."""
    ids = tuple(r.id for r in group.receipts.values() if r.committee in lost and group.drops(r.id))
    if group.streaming:
        sealed = {group.receipts[id].committee or b"" for id in ids}
        for committee in sorted(sealed):
            own = tuple(id for id in ids if group.receipts[id].committee == committee)
            tx.drop(group.name, own, _why(tx, lost[committee]))
    elif group.phase is Phase.COLLECTING:
        due = committees.at(tx, group.name, group.version)
        if due.committee in lost:
            synchronous.give_up(tx, group, f"given up: {_why(tx, due)}")


def _begin(tx: Transaction, group: GroupState, newest: KeyCommittee) -> None:
    """They are due from the newest version of this group on, whoever sealed it already."""
    sent = group.open_stream.sent.items() if group.streaming else ()
    for client in sorted(client for client, base in sent if base.version >= group.version):
        reason = "it has sealed the newest version for other key holders"
        synchronous.declined(tx, group, client, reason, sits_out=True)
    others = (at for at in newest.since if at.group != group.name)
    formed = replace(newest, since=(*others, GroupVersion(group.name, group.version)))
    tx.write(records.CommitteeFormed(formed))
    tx.tell_clients(SealFor(tx.federation.incarnation, formed))


def _why(tx: Transaction, committee: KeyCommittee) -> str:
    gone = [holder for holder in committee.holders if holder not in tx.holders]
    return (
        f"{named(gone)} are on the roster no more, and fewer than {tx.plan.threshold} of the "
        f"{len(committee.holders)} key holders that it is sealed for are left"
    )
