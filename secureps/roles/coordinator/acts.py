"""What an operator has the coordinator do: pause, a checkpoint, who is left out, no scaling.

An act that is done already changes nothing, so that it may be said again.
"""

from __future__ import annotations

from secureps.errors import Malformed, Refused, UnknownParty
from secureps.messages.acts import OF_A_CLIENT, Act, Deed, ShardDeed
from secureps.roles.coordinator import checkpointing, membership, resharding, termination
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.state import BY_ITSELF
from secureps.roles.coordinator.transaction import Transaction


def do(tx: Transaction, act: Act) -> None:
    """Does what an operator says, unless it is done already.

    Raises:
        Malformed: there is no such act, or it names a party where none is due, or none.
        UnknownParty: no client of this run has that name.
        Refused: the run is over, or could make no version without that client, or it was left out
            for another reason than an operator's.
    """
    what = _deed(act)
    act = Act(what.value, act.party, membership.said(act.reason))
    known, out = tx.federation, tx.federation.isolated
    if act.reason.startswith(BY_ITSELF):  # else an audit, and who is drained, would be misled
        raise Malformed(
            f'a reason that begins with "{BY_ITSELF}" is the coordinator\'s own, of what follows '
            "from the load: say it another way"
        )
    if known.finished:
        raise Refused(f"the run is over: {known.finished}")
    match what:
        case Deed.PAUSE if not known.paused:
            tx.write(act)
        case Deed.GO_ON if known.paused:
            tx.write(act)
        case Deed.SCALING_OFF | Deed.SCALING_ON if tx.plan.section.scaling is None:
            raise Refused(
                "this run's plan has no [scaling]: nothing follows the load, and there is nothing "
                "to switch off"
            )
        case Deed.SCALING_OFF if not known.scaled.off:
            tx.write(act)
        case Deed.SCALING_ON if known.scaled.off:
            tx.write(act)
        case Deed.CHECKPOINT if not known.wants_checkpoint and checkpointing.newer(tx):
            tx.write(act)
        case Deed.LEAVE_OUT if act.party not in out:
            _leave_out(tx, act)
        case Deed.TAKE_BACK if act.party in known.left_out:
            tx.write(act)
        case Deed.TAKE_BACK if act.party in out:
            raise Refused(f"{act.party} was not left out by an operator: {out[act.party]}")
        case Deed.LEAVE_OUT | Deed.TAKE_BACK if act.party not in tx.clients:
            raise UnknownParty(f"no client that trains in this run is called {act.party!r:.80}")
        case ShardDeed():
            resharding.act(tx, act)
            drained = what is ShardDeed.DRAIN and act.party not in known.scaled.drained
            if drained and tx.plan.section.scaling is not None:
                tx.write(act)  # the load has drained it: by this word it comes back by another one
        case _:
            pass  # it is so already


def _deed(act: Act) -> Deed | ShardDeed:
    known: dict[str, Deed | ShardDeed] = {deed.value: deed for deed in (*Deed, *ShardDeed)}
    if (what := known.get(act.what)) is None:
        raise Malformed(f"{act.what!r:.40} is no act: it is one of {', '.join(known)}")
    role = "shard" if isinstance(what, ShardDeed) else "client" if what in OF_A_CLIENT else ""
    if bool(role) != bool(act.party):
        whom = f"a {role}: name one" if role else "no client: name none"
        raise Malformed(f"{what.value} is of {whom}")
    return what


def _leave_out(tx: Transaction, act: Act) -> None:
    federation, client = tx.federation, act.party
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
            termination.leave_out(tx, group)
