"""A receipt at the coordinator's door: whose it is, for what, and whether it is wanted now.

What must not live here: what the plan makes of a receipt (`roles.admission`), and what follows
from one (`roles.commit`).
"""

from __future__ import annotations

from secureps.crypto.identity import Roster
from secureps.errors import Conflict, Malformed, WrongRun, WrongVersion
from secureps.messages.encoding import canonical, digest
from secureps.messages.records import Received
from secureps.messages.submission import FOUNDING, Receipt, signing_bytes
from secureps.roles import commit
from secureps.roles.admission import check_receipt
from secureps.roles.federation import GroupState, Phase
from secureps.roles.turn import Turn


def submit(turn: Turn, roster: Roster, receipt: Receipt) -> None:
    """Journals a receipt, once; the same again changes nothing.

    Raises:
        UnknownParty, BadSignature: nobody on the roster signed it.
        WrongRun, WrongVersion: it was made for something else than what is open.
        Conflict: another receipt is known for it, or for this client and version.
        Malformed: the plan makes no such receipt.
    """
    id = receipt.id
    roster.find(id.client).identity.verify(*signing_bytes(receipt), receipt.signature)
    group = _group(turn, receipt)
    if turn.federation.known(id):
        if turn.federation.receipts[id] != digest("secureps-receipt-known", canonical(receipt)):
            raise Conflict(f"{id} is known with another receipt; begin a new sequence")
        if id in group.receipts:
            commit.came_again(turn, group, receipt)
        return
    assert turn.layout is not None
    check_receipt(turn.plan, turn.layout.group(group.name), receipt)
    if receipt.purpose == FOUNDING:
        _demand_founder(turn, group, receipt)
        turn.write(Received(receipt))
        commit.found(turn, group, receipt)
        return
    _demand_wanted(group, receipt)
    turn.write(Received(receipt))
    if receipt.fact is not None:
        turn.write(receipt.fact)


def _group(turn: Turn, receipt: Receipt) -> GroupState:
    pinned = turn.federation.pinned
    if pinned is None or receipt.run != pinned.run.id:
        raise WrongRun(f"{receipt.id} was made for another run; join this one first")
    group = turn.federation.groups.get(receipt.id.group)
    if group is None:
        raise Malformed(f"no group is called {receipt.id.group!r}")
    return group


def _demand_founder(turn: Turn, group: GroupState, receipt: Receipt) -> None:
    client = receipt.id.client
    if group.phase is not Phase.FOUNDING or client != turn.federation.founder:
        raise WrongVersion(f"the founding model of {group.name} is not asked from {client}")
    if group.receipts:
        raise WrongVersion(f"the founding model of {group.name} is here already")


def _demand_wanted(group: GroupState, receipt: Receipt) -> None:
    id, coming = receipt.id, group.version + 1
    if group.phase is not Phase.COLLECTING:
        raise WrongVersion(
            f"{group.name} takes no updates now ({group.reason}); pull and wait to be invited"
        )
    if receipt.version != group.version or receipt.base != group.digest:
        raise WrongVersion(
            f"{id} was trained on version {receipt.version}, the open base is "
            f"{group.version}; pull and train again"
        )
    if id.client not in group.invited:
        raise WrongVersion(f"{id.client} is not invited to version {coming}")
    if any(other.client == id.client for other in group.receipts):
        raise Conflict(f"{id.client} has contributed to version {coming} already")
