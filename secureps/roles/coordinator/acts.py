"""What an operator has the coordinator do: pause and go on, a checkpoint now, who is left out.

An act that is done already changes nothing, so that it may be said again. What must not live here:
what follows from one that is on record (`roles.coordinator.acted`).
"""

from __future__ import annotations

from secureps.errors import Malformed, Refused, UnknownParty
from secureps.messages.acts import OF_A_CLIENT, Act, Deed
from secureps.roles.coordinator import checkpointing, membership, synchronous
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.transaction import Transaction


def do(tx: Transaction, act: Act) -> None:
    """Does what an operator says, if it is not so already.

    Raises:
        Malformed: there is no such act, or it names a client where none is due, or none.
        UnknownParty: no client of this run has that name.
        Refused: the run is over, or could make no version without that client, or it was left out
            for another reason than an operator's.
    """
    what = _deed(act)
    act = Act(what.value, act.client, membership.said(act.reason))
    known, out = tx.federation.acted, tx.federation.isolated
    if tx.federation.finished:
        raise Refused(f"the run is over: {tx.federation.finished}")
    match what:
        case Deed.PAUSE if not known.paused:
            tx.write(act)
        case Deed.GO_ON if known.paused:
            tx.write(act)
        case Deed.CHECKPOINT if not known.checkpoint and checkpointing.newer(tx):
            tx.write(act)
        case Deed.LEAVE_OUT if act.client not in out:
            _leave_out(tx, act)
        case Deed.TAKE_BACK if act.client in known.out:
            tx.write(act)
        case Deed.TAKE_BACK if act.client in out:
            raise Refused(f"{act.client} was not left out by an operator: {out[act.client]}")
        case Deed.LEAVE_OUT | Deed.TAKE_BACK if act.client not in tx.clients:
            raise UnknownParty(f"no client that trains in this run is called {act.client!r:.80}")
        case _:
            pass  # it is so already


def _deed(act: Act) -> Deed:
    try:
        what = Deed(act.what)
    except ValueError:
        names = ", ".join(deed.value for deed in Deed)
        raise Malformed(f"{act.what!r:.40} is no act: it is one of {names}") from None
    if (what in OF_A_CLIENT) != bool(act.client):
        whom = "a client: name one" if what in OF_A_CLIENT else "no client: name none"
        raise Malformed(f"{what.value} is of {whom}")
    return what


def _leave_out(tx: Transaction, act: Act) -> None:
    """From now on, and out of open rounds; what is in a closed cohort stays there."""
    federation, client = tx.federation, act.client
    if client not in tx.clients:
        raise UnknownParty(f"no client that trains in this run is called {client!r:.80}")
    left = tx.clients - federation.isolated.keys() - federation.retired - {client}
    for group in federation.groups.values():
        least = tx.plan.bounds(group.name).minimum
        if len(left) < least:
            cohort = f"a cohort{tx.plan.of(group.name)} needs {least}"
            raise Refused(f"without {client} {len(left)} clients are left, and {cohort}")
    tx.write(act)
    for group in federation.groups.values():
        if group.phase is Phase.COLLECTING and client in group.invited:
            if group.streaming:
                synchronous.declined(tx, group, client, "left out of this run")
            else:
                synchronous.leave_out(tx, group)
