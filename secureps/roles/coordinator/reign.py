"""Whether this coordinator rules: its standby may have taken over, or may yet do so.

A coordinator that nobody follows rules. While a standby follows, the coordinator acts on nothing
that the standby lacks, and so loses nothing when the standby takes over. Two cases are left: the
standby is away, or it has taken over, by command, and this process is it. Then the fence decides.

    The coordinator begins a new incarnation, and orders nothing before all shards and as many
    key holders as open a cohort obey it, durably. It asks one shard after another, by their
    names, and then the key holders. Then it journals that nobody follows it, and rules.

Two never rule at once. Both would need all the shards that they have in common, and a shard obeys
the newest incarnation alone and tells everybody which one that is. Both ask the same shard first.
The second one meets an incarnation that its journal does not know, and ends, before it has asked
any other shard. So exactly one goes on: the standby only if the coordinator has not gone on without
it. Once a coordinator has passed the fence, every shard tells the other one so.

A shard whose disk is lost has forgotten whom it obeyed, and so is asked last: another one knows. If
all shards have lost theirs, the key holders know: any two sets that are large enough have an honest
one in common. A key holder alone is not believed, for it may lie; it counts as away.
"""

from __future__ import annotations

from secureps.errors import Fenced, NotReady
from secureps.messages import requests
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import LINE
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator.transaction import Transaction, said_once
from secureps.roles.machine import Call, Event, Halt
from secureps.roles.pinned_run import LATER
from secureps.wording import named

ALWAYS = (
    requests.Register,
    requests.Heartbeat,
    requests.Trouble,
    requests.Telemetry,
    requests.AskRun,
    requests.AskStatus,
)
"""What is heard of a coordinator that does not rule yet: nothing of it is acknowledged."""

SUPERSEDED = (
    "another coordinator has taken over this run: this one is obeyed no more, and nothing that it "
    "did since counts"
)
STALE = "the coordinator went on without this standby, and has what this one does not have"


def begin(tx: Transaction, elsewhere: bool) -> None:
    """Prepares a start after which another coordinator may rule, and asks that one if it does."""
    if not tx.federation.reigns.follower:
        return
    if tx.federation.pinned is None:
        tx.write(StandbyFollows(b""))  # no standby takes over before there is a run
    elif elsewhere:
        own, run = tx.federation.incarnation, tx.federation.run.id
        ask = requests.Register(COORDINATOR, "", 1.0, own, run)
        tx.step.effects.append(Call(COORDINATOR, ask))


def rules(tx: Transaction) -> bool:
    """Whether no other coordinator rules, or can begin to without having everything."""
    return not tx.federation.reigns.follower or tx.sessions.followed


def waits(tx: Transaction) -> str:
    """Says whose obedience this coordinator waits for before it rules; empty once it rules."""
    if rules(tx):
        return ""
    lacking, few = _shards(tx), tx.plan.threshold - len(_obeying_holders(tx))
    if few > 0:
        lacking.append("one more key holder" if few == 1 else f"{few} more key holders")
    return f"waits for {named(lacking)} to obey it, for another one could rule"


def follow(tx: Transaction) -> None:
    """Journals that a standby which has everything follows, if this coordinator rules then.

    The follower on record makes it rule. Another standby does not, for the one on record may have
    taken over.
    """
    standby, sessions, reigns = tx.sessions.caught_up, tx.sessions, tx.federation.reigns
    if not standby or not (rules(tx) or reigns.may_take_over(standby)):
        return
    sessions.caught_up = b""
    if sessions.followed and not reigns.left and not reigns.came:
        sessions.confirmed = True
        return
    sessions.followed = True
    tx.write(StandbyFollows(standby))


def pass_fence(tx: Transaction) -> None:
    """Journals that this coordinator goes on alone, once all who have to obey it do."""
    if not rules(tx) and not _shards(tx) and len(_obeying_holders(tx)) >= tx.plan.threshold:
        tx.write(StandbyFollows(b""))


def asked(tx: Transaction) -> tuple[requests.Subscribe, ...]:
    """Returns the subscriptions of those who are to be told of this incarnation now."""
    if rules(tx):
        return ()
    sessions, own = tx.sessions, tx.federation.incarnation
    turn = _shards(tx)[:1] or tx.holders
    asks = [p for p in turn if p in sessions.waiting and sessions.told_of.get(p) != own]
    sessions.told_of |= dict.fromkeys(asks, own)
    return tuple(sessions.waiting[party] for party in asks)


def _shards(tx: Transaction) -> list[str]:
    """The shards that do not obey this incarnation yet, in the order in which they are asked."""
    obeyed, came = tx.sessions.obeyed, tx.federation.reigns.came
    lacking = [s for s in _every(tx) if obeyed.get(s) != tx.federation.incarnation]
    return sorted(lacking, key=lambda shard: (obeyed.get(shard) == 0, shard in came, shard))


def _every(tx: Transaction) -> set[str]:
    """All shards that another coordinator may ask, also those that left since."""
    return {*tx.federation.placement.shards, *tx.federation.reigns.left}


def _has_first(tx: Transaction) -> bool:
    """Whether the shard that either coordinator asks first obeys this one: no other one rules."""
    first = min(_every(tx).difference(tx.federation.reigns.came), default="")
    return tx.sessions.obeyed.get(first) == tx.federation.incarnation


def _asked_nobody(tx: Transaction) -> bool:
    """Whether nobody can have obeyed an incarnation that the follower does not know."""
    line = tx.federation.incarnation // LINE
    first = tx.federation.incarnation <= tx.federation.reigns.known.get(line, 0) + 1
    return tx.sessions.confirmed or (first and not tx.sessions.told)


def _obeying_holders(tx: Transaction) -> list[str]:
    return [h for h in tx.holders if tx.sessions.obeyed.get(h) == tx.federation.incarnation]


def demand_ruling(tx: Transaction, sender: str, event: Event) -> None:
    """NotReady to a party that needs a ruling coordinator, until this one rules."""
    if rules(tx) or isinstance(event, ALWAYS):
        return
    if isinstance(event, requests.Subscribe) and sender in tx.sessions.obeyed:
        return
    raise NotReady(f"the coordinator {waits(tx)}", LATER)


def meet(tx: Transaction, event: requests.Register) -> NotReady | None:
    """Ends this coordinator if a shard obeys one that is not on record here.

    Shards are the coordinator's own operator's, and are believed. A key holder that says so counts
    as away.

    Raises:
        Fenced: the sender is another coordinator, and this one rules.
    """
    if event.party == COORDINATOR:
        return _meet_other(tx, event)
    reigns, pinned = tx.federation.reigns, tx.federation.pinned
    if pinned is not None and event.run not in (b"", pinned.run.id):
        return None  # what it obeyed in another run says nothing of this one, which refuses it
    higher, holder = event.seen > reigns.incarnation, event.party in tx.holders
    if reigns.foreign(event.seen):
        if rules(tx) and not higher:
            return None  # it obeyed one that never ruled, nor will
    elif not (holder and higher and not rules(tx)):
        return None
    tx.sessions.obeyed.pop(event.party, None)
    if holder:
        until = "until it obeys this one it is away"
        text = f"{event.party} obeys another coordinator, or lies: {until}"
        return said_once(tx, event.party, text)
    tx.step.effects.append(Halt(SUPERSEDED if higher else STALE, Fenced))
    return NotReady(f"{event.party} obeys another coordinator", LATER)


def _meet_other(tx: Transaction, event: requests.Register) -> NotReady | None:
    """Ends this coordinator if the other one followed it and has taken over, or ends the other.

    It stays if a shard may have obeyed it under an incarnation that ends the other one: both would
    end. A coordinator without a run ends: the other one asks only if it has one.
    """
    followed = tx.federation.reigns.taken_over(event.seen)
    if tx.federation.pinned is None or (followed and _asked_nobody(tx)):
        tx.step.effects.append(Halt(SUPERSEDED, Fenced))
        return None
    if rules(tx) or _has_first(tx):
        raise Fenced(SUPERSEDED)
    return NotReady("it is not decided yet which coordinator rules", LATER)


def obeys(tx: Transaction, party: str, seen: int) -> None:
    tx.sessions.obeyed[party] = max(seen, tx.sessions.obeyed.get(party, 0))
