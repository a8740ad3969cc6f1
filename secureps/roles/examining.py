"""What holders of a committee find in the envelopes of a submission, and what comes of it.

What must not live here: how a cohort is opened (`roles.quorum`, `roles.commit`).
"""

from __future__ import annotations

from secureps.messages.orders import Examine
from secureps.messages.records import CohortReopened, FlawFoundLate, ReceiptExamined
from secureps.messages.requests import Examined
from secureps.messages.submission import Receipt, rooted
from secureps.roles import quorum, rounds
from secureps.roles.commit import REASON_LIMIT
from secureps.roles.group_state import GroupState, Phase
from secureps.roles.turn import Turn


def make_examine(turn: Turn, receipt: Receipt) -> Examine:
    """The same for every holder."""
    return Examine(turn.federation.incarnation, rooted(receipt))


def examine(turn: Turn, receipt: Receipt) -> None:
    """A receipt has come: every holder of a committee is asked to look into its envelope."""
    if not quorum.wanted(turn.plan):
        return
    for holder in turn.holders:
        turn.order(holder, make_examine(turn, receipt))


def looked_into(turn: Turn, group: GroupState, answer: Examined) -> None:
    """A holder has; with a flaw the submission is dropped, before anything is opened.

    No holder was asked to open a cohort that is only held: it is closed anew. Once holders are
    asked it is too late (this one will refuse its share), and the client is remembered.
    """
    id, flaw = answer.id, answer.flaw[:REASON_LIMIT]
    if answer.holder in group.inbox.examined.get(id, ()):
        return
    if flaw and group.phase is Phase.HOLDING and group.closed_over(id):
        turn.write(CohortReopened(group.name, group.number, ()))
    if id in group.receipts and (not flaw or group.drops(id)):
        turn.write(ReceiptExamined(group.name, id, answer.holder, flaw))
        if flaw:
            turn.tell_fates((id,))
            turn.discard((id,))
            if not group.streaming:
                reason = turn.federation.fates[id].reason
                rounds.end_if_too_few(turn, group, id.client, reason)
    elif flaw and id.client not in group.suspicion.flawed:
        fate = turn.federation.fates.get(id)
        if id in group.receipts or (fate is not None and fate.outcome != "dropped"):
            turn.write(FlawFoundLate(group.name, id, answer.holder, flaw))
