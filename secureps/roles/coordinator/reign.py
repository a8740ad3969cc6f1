"""Whether this coordinator rules: where a standby has followed it, another one may.

Until it does, it acknowledges nothing and gives no order but the one that names it, and the CA's
roster before that. It rules

    followed   while a standby follows that has all of it: nobody else has as much
    alone      when all shards and enough key holders obey its incarnation, durably
    as heir    when one shard and enough key holders do, if it has taken over and was followed by
               nobody since

Two never rule at once: a party obeys the newer, and says what it obeyed before it is given any
order. Who is alone needs every shard: one that obeys an heir is enough to tell the heir that nobody
ruled alone, and to keep anybody from it. So an heir goes on with the shards that it reaches, and
the others obey it when they come. A shard whose disk is empty obeyed it knows not whom: it is told
nothing before this one rules without it. What must not live here: how a standby takes over
(`roles.coordinator.standby`).
"""

from __future__ import annotations

from collections.abc import Iterator

from secureps.errors import Fenced, NotReady, Unreachable
from secureps.messages import requests
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator import founding
from secureps.roles.coordinator.reigns import blank
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Call, Event, Halt
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
    'did since counts. Leave it off; or name the other one in its file, standby = "HOST:PORT", and '
    "start it again: it becomes that one's standby"
)
LOOK = 0.5
"""Seconds until a shard with an empty disk asks again, at its other coordinator if it knows one."""
EMPTY = " (its disk is empty, and does not say who ruled; once the standby is back, that one does)"
STALE = (
    "the coordinator went on without this standby, and has what this one does not have: start it "
    "again as a standby, with a new state folder"
)


def begin(tx: Transaction, elsewhere: bool) -> None:
    """A start: no standby follows this process yet; where there is one, it hears who rules.

    Args:
        elsewhere: the address of another coordinator is known.
    """
    reigns, pinned = tx.federation.reigns, tx.federation.pinned
    if reigns.follower:
        tx.write(StandbyFollows(b""))
    if reigns.shared and elsewhere:
        run = b"" if pinned is None else pinned.run.id
        _ask(tx, run)


def _ask(tx: Transaction, run: bytes) -> None:
    """Asks the other coordinator whether this one is over: Fenced says so.

    Once at a time: it may ask here again and again, and be reached from here by nobody.
    """
    if tx.sessions.asks_other:
        return
    tx.sessions.asks_other = True
    own = requests.Register(COORDINATOR, "", 1.0, tx.federation.incarnation, run)
    tx.step.effects.append(Call(COORDINATOR, own))


def followed(tx: Transaction, standby: bytes) -> None:
    """A standby has all of the journal, and is waited for from now on."""
    tx.sessions.caught_up = standby
    confirm(tx)


def confirm(tx: Transaction) -> None:
    """Writes down that a standby follows; one that is not the last one only once this one rules.

    The last one may have taken over meanwhile; then this one never rules, and no other takes over
    from it.
    """
    standby = tx.sessions.caught_up
    if standby and (standby == tx.federation.reigns.last or rules(tx)):
        tx.sessions.caught_up = b""
        tx.write(StandbyFollows(standby))


def rules(tx: Transaction) -> bool:
    """Whether this one rules: nobody else does, or can from now on without having all of it."""
    return not waits(tx)


def waits(tx: Transaction) -> str:
    """Whose obedience this one waits for before it rules, in words; empty once it rules."""
    reigns, pinned = tx.federation.reigns, tx.federation.pinned
    if not reigns.shared or pinned is None or reigns.follower:
        return ""
    obey = {party for party, seen in tx.sessions.obeyed.items() if seen == reigns.incarnation}
    placed, few = pinned.placement.shards, tx.plan.threshold - len(obey.intersection(tx.holders))
    empty = _blank(tx)
    lacking = [s + EMPTY if s in empty else s for s in _shared(tx) if s not in obey]
    if reigns.heir:
        known = "a shard whose disk is not empty" if empty else "a shard"
        lacking = [] if obey.intersection(placed) else [known]
    if few > 0:
        lacking.append("one more key holder" if few == 1 else f"{few} more key holders")
    return f"waits for {named(lacking)} to obey it, for another one could rule" if lacking else ""


def _shared(tx: Transaction) -> tuple[str, ...]:
    """The shards that another coordinator may have been obeyed by."""
    assert tx.federation.pinned is not None
    placed = tx.federation.pinned.placement.shards
    return tuple(dict.fromkeys((*placed, *tx.federation.reigns.unshared)))


def _blank(tx: Transaction) -> frozenset[str]:
    """Those of them whose disks are empty."""
    assert tx.federation.pinned is not None
    if tx.federation.reigns.sole:
        return frozenset()
    placed = tx.federation.pinned.placement.shards
    return blank(_shared(tx), tx.sessions.obeyed, placed, tx.sessions.first)


def looks_elsewhere(tx: Transaction, party: str) -> Unreachable | None:
    """What a shard hears whose disk is empty before this one rules: it asks the other coordinator.

    Whatever it is told it obeys, durably, and says that alone from then on. If each of two
    coordinators kept some of the shards, neither would hear of all that their disks are empty.
    """
    if tx.federation.pinned is None or rules(tx) or party not in _blank(tx):
        return None
    return Unreachable(f"the coordinator {waits(tx)}", LOOK)


def demand_ruling(tx: Transaction, sender: str, event: Event) -> None:
    """NotReady to whoever needs a coordinator that rules, until this one does."""
    if isinstance(event, ALWAYS) or not (waiting := waits(tx)):
        return
    if isinstance(event, requests.Subscribe) and sender in tx.sessions.obeyed:
        if elsewhere := looks_elsewhere(tx, sender):
            raise elsewhere
        return
    raise NotReady(f"the coordinator {waiting}", founding.LATER)


def name_itself(tx: Transaction, event: requests.Subscribe) -> bool:
    """Where it does not rule yet, has a party obey it, and takes its subscription up later."""
    if rules(tx):
        return False
    tx.sessions.unruled[event.party] = event
    tx.order(event.party, founding.make_configure(tx))
    return True


def waiting(tx: Transaction) -> tuple[requests.Subscribe, ...]:
    """Subscriptions that can be taken up, once it rules."""
    if not tx.sessions.unruled or not rules(tx):
        return ()
    found = tuple(tx.sessions.unruled.values())
    tx.sessions.unruled.clear()
    return found


def ruled_before(tx: Transaction, event: requests.Register) -> NotReady | None:
    """Of a party that obeys another coordinator this one ends, or does not count the party.

    Shards are the coordinator's own operator's: one of them is believed. A holder's word alone ends
    nothing.

    Raises:
        Fenced: it is another coordinator, and this one rules.
    """
    party, reigns = event.party, tx.federation.reigns
    if party == COORDINATOR:
        return _other(tx, event)
    pinned = tx.federation.pinned
    if pinned is not None and event.run not in (b"", pinned.run.id):
        return None  # whom it obeyed in another run says nothing of this one, which refuses it
    lost = reigns.shared and party in tx.holders and event.seen > reigns.incarnation
    if not (reigns.foreign(event.seen) or lost):
        return None
    if event.seen < reigns.incarnation and _has_shard(tx):
        return None  # it obeyed one that never ruled, nor will
    tx.sessions.obeyed.pop(party, None)
    if party in tx.holders:
        needed = reigns.foreign(event.seen) and _has_all(tx) and not rules(tx)
        return None if needed else _away(tx, party)  # `begin_again` takes it up
    tx.step.effects.append(Halt(_why(tx, event.seen), Fenced))
    return NotReady(f"{party} obeys another coordinator", founding.LATER)


def begin_again(tx: Transaction, event: requests.Register) -> NotReady | None:
    """A party obeys as high a number: one above it is begun.

    It is of a start whose record is lost, or of another coordinator, who will never rule.
    """
    foreign = tx.federation.reigns.foreign(event.seen)
    above = (event.seen // REIGN + 1) * REIGN if foreign else event.seen + 1
    return None if _raised(tx, event.party, above) else _away(tx, event.party)


def _raised(tx: Transaction, party: str, number: int) -> bool:
    """Begins a higher incarnation, which all servers hear of: those that obey the one before too.

    A holder has that done once: else its lies would keep a coordinator from ruling for ever.
    """
    if not tx.federation.reigns.shared:
        tx.write(Incarnated(number))
        return True
    if party in tx.sessions.raised:
        return False
    if party in tx.holders:
        tx.sessions.raised.add(party)
    tx.write(Incarnated(number))
    if tx.federation.pinned is not None:
        for server in (*tx.holders, *tx.federation.shards):
            tx.order(server, founding.make_configure(tx))
    return True


def _away(tx: Transaction, holder: str) -> NotReady:
    text = f"{holder} obeys another coordinator, or lies: until it obeys this one it is away"
    return founding.said_once(tx, holder, text)


def _has_shard(tx: Transaction) -> bool:
    """Whether this one rules or a shard obeys it: then no lower one ever rules, nor has.

    The first shard that obeyed it had obeyed no other one, for it would have said so, and obeys no
    lower one any more. A lower one that could rule without that shard would be an heir, of a
    coordinator that has ruled alone since: all shards would say so.
    """
    return rules(tx) or any(_obeying(tx))


def _has_all(tx: Transaction) -> bool:
    """Whether all shards do: then no higher one ever has a first shard either.

    Nobody has followed this process, who could have one.
    """
    return not tx.federation.reigns.follower and all(_obeying(tx))


def _obeying(tx: Transaction) -> Iterator[bool]:
    own, pinned = tx.federation.incarnation, tx.federation.pinned
    shards = () if pinned is None else pinned.placement.shards
    return (tx.sessions.obeyed.get(shard) == own for shard in shards)


def obeys(tx: Transaction, party: str, seen: int) -> None:
    """Notes what a server obeys; one that came to another number is told which it is.

    Calls overtake each other: what it said before it obeyed may come after.
    """
    tx.sessions.first.setdefault(party, seen)
    tx.sessions.obeyed[party] = max(seen, tx.sessions.obeyed.get(party, 0))
    if tx.federation.pinned is not None and seen < tx.federation.incarnation:
        tx.order(party, founding.make_configure(tx))


def _other(tx: Transaction, event: requests.Register) -> NotReady | None:
    """Another coordinator is up: this one ends if it was followed by that one, which has all of it.

    Else who rules says so, and so does the higher one that a shard obeys, or the lower one that all
    shards obey, though key holders may obey the other one alone; and that one, which hears it,
    ends. Before a run is founded that is who began later.
    """
    reigns, pinned = tx.federation.reigns, tx.federation.pinned
    # The one that followed begins a higher reign: a lower one, started again, ends nobody.
    higher = event.seen > reigns.incarnation
    over = higher and reigns.foreign(event.seen) and bool(reigns.follower)
    if pinned is None:
        over = higher
    if over:
        tx.step.effects.append(Halt(SUPERSEDED, Fenced))
        return None
    lower = event.seen < reigns.incarnation
    if rules(tx) or (lower and _has_shard(tx)) or (higher and _has_all(tx)):
        raise Fenced(SUPERSEDED)
    if not lower and pinned is not None:  # that one may have a shard, and knows
        _ask(tx, pinned.run.id)
    return NotReady("it is not decided yet which coordinator rules", founding.LATER)


def _why(tx: Transaction, seen: int) -> str:
    return SUPERSEDED if seen > tx.federation.incarnation else STALE
