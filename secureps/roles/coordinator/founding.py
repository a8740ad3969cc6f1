"""Founds the run, and registers its servers.

A run is founded for the model of the plan's file of version 0, or else of the first client, once
all shards and holders are up.

Each party's journal can be lost, or come back as an older copy. So what a server remembers is
compared with this journal when it registers. A coordinator without its journal founds no second
run over the first; one that is behind its shards makes no version twice; and a key holder that
forgot what it opened opens nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

from secureps.errors import (
    DamagedStore,
    Malformed,
    NotReady,
    Refused,
    UnknownParty,
    WrongRun,
    WrongShape,
)
from secureps.messages.coordinator_records import FounderChosen, ShardLocated
from secureps.messages.records import Incarnated, RunPinned
from secureps.messages.requests import Noted, Register
from secureps.messages.run import COORDINATOR, Placement, RunInfo, Schema, ShardAddress, wrong_run
from secureps.messages.submission import cohort_digest
from secureps.model.placement import place_groups
from secureps.roles.coordinator import commit, opening, reign
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.state import MOST_AHEAD
from secureps.roles.coordinator.transaction import Transaction, refuse_once
from secureps.roles.machine import Halt
from secureps.roles.pinned_run import LATER


def refuse_elsewhere(tx: Transaction, party: str, run: bytes) -> NotReady | None:
    """Refuses a party that holds a run while this coordinator holds none; None if it is new.

    An empty state folder may be a volume that is not mounted. A new run would send all parties away
    from the run that they have.
    """
    if not run:
        tx.sessions.elsewhere.pop(party, None)
        return None
    return refuse_once(
        tx,
        party,
        f"{party} takes part in run {run.hex()[:16]}, and the coordinator's state folder holds no "
        "run: is a volume missing? Nothing is founded meanwhile. Bring that folder back as it was, "
        f"and start the coordinator again; or, for a new run, start {party} with another state "
        "folder, and keep the one that it has",
    )


def _demand_nobody_elsewhere(tx: Transaction) -> None:
    """NotReady while servers, or half of all clients, have lately said that they hold a run.

    Fewer clients do not stop the founding, because each could say so without end.
    """
    lately = {p for p, at in tx.sessions.elsewhere.items() if tx.now - at < tx.plan.section.lease}
    clients = tx.settings.roster.names("client")
    if lately - clients or (lately and 2 * len(lately & clients) >= len(clients)):
        raise NotReady(
            f"the run is not founded: {', '.join(sorted(lately)[:5])} take part in one already, "
            "and the coordinator's state folder holds none; its log says what to do",
            LATER,
        )


def found(tx: Transaction, schema: Schema) -> None:
    """Pins the run of this model.

    Raises:
        NotReady: shards or holders are missing, or others hold a run already.
        PlanRefused: the plan cannot carry the model.
        WrongShape: the model has digests of other tensors than the plan freezes.
    """
    federation, plan, holders = tx.federation, tx.plan, tx.sessions.holders
    _demand_nobody_elsewhere(tx)
    if len(federation.shards) < plan.section.shards:
        raise NotReady(
            f"the run waits for shards: {len(federation.shards)} of {plan.section.shards} are up"
        )
    if len(holders) < plan.holders:
        raise NotReady(f"the run waits for key holders: {len(holders)} of {plan.holders} are up")
    layout = plan.layout(schema)
    if schema.valued != {spec.name for spec in layout.frozen or ()}:
        raise WrongShape("a model has digests of the tensors that the plan freezes, and no others")
    here = sorted(federation.shards.items())
    if plan.section.scaling is not None:  # scaling adds the others later
        here = here[: plan.section.shards]
    shards = {name: s.weight for name, s in here}
    copies = plan.section.replicas
    held = place_groups({g.name: g.blocks for g in layout.all_groups}, shards, copies)
    placement = Placement.by_block(1, shards, held)
    roster, nonce = tx.settings.roster, tx.settings.nonce
    run = RunInfo(plan.text, schema, layout.digest, roster.committee, roster.digest, nonce)
    addresses = tuple(federation.shards[name] for name in shards)
    tx.write(RunPinned(run, placement, addresses))
    opening.form_committee(tx)
    for party in sorted(tx.watchers):
        if party in shards or party in holders or tx.is_spare(party):
            tx.order(party, tx.make_configure())
    for group in federation.groups.values():
        if plan.is_given(group.name):
            commit.found(tx, group, None)


def choose_founder(tx: Transaction) -> None:
    """Has a client that is here send the models that no file gives.

    If a shard lacks blocks of a model whose client's lease is over, another client that is here
    sends its own: else no client could train while that one stays away.
    """
    federation, groups = tx.federation, tx.federation.groups.values()
    awaited = [g for g in groups if g.phase is Phase.FOUNDING and not tx.plan.is_given(g.name)]
    here = next(filter(tx.is_trainer, federation.members), None) if awaited else None
    if here is None:
        return
    wanted = []
    for group in awaited:
        asked = tx.sessions.asked.intersection(group.receipts)
        gone = tuple(id for id in asked if not tx.is_trainer(id.client))
        tx.drop(group.name, gone, "a shard lost its blocks, and its client is away")
        if gone or (not group.receipts and not tx.is_trainer(federation.founder)):
            wanted.append(group)
    if wanted and not tx.is_trainer(federation.founder):
        tx.write(FounderChosen(here))
    for group in wanted:
        tx.order(federation.founder, tx.make_invite(group, federation.founder))


LONGEST_ADDRESS = 300
"""Most letters of HOST:PORT; a host's name has 253 at most."""


def register(tx: Transaction, event: Register) -> Noted | NotReady:
    """Registers a shard or key holder; NotReady if an operator must restore a state folder first.

    A shard that is new on a run's roster, or was drained, registers and holds no blocks.

    Raises:
        UnknownParty: the shard has left this run, because it was away.
        Malformed: the weight or address is none, a group has two newest cohorts, or no
            coordinator can have had that incarnation.
        WrongRun: the server holds another run than this one.
        Refused: the holder's ledger lacks cohorts that it opened.
        Fenced: the sender is another coordinator, and this one rules.
    """
    party, federation, moved = event.party, tx.federation, False
    # A damaged server must not end this coordinator.
    if not federation.reigns.is_possible(event.seen):
        raise Malformed(
            f"{party} says that it obeyed incarnation {event.seen}; this coordinator has come to "
            f"{federation.incarnation}, and no start is {MOST_AHEAD} further"
        )
    if away := reign.meet(tx, event):
        return away
    if party == COORDINATOR:
        return Noted()
    role, initial = tx.settings.roster.find(party).role, tx.settings.initial
    if len(event.advertise) > LONGEST_ADDRESS:
        raise Malformed(f"{party}: an address has {LONGEST_ADDRESS} letters, no more")
    if role == "shard" and not (math.isfinite(event.weight) and event.weight > 0):
        raise Malformed(f"{party}: a shard's weight is finite and > 0, not {event.weight}")
    if len({held.group for held in event.held}) < len(event.held):  # each costs a digest
        raise Malformed(f"{party}: a group has one newest cohort of which there are sums")
    if elsewhere := _refuse_outsider(tx, event, role):
        return elsewhere
    check = _refuse_shard_ahead if role == "shard" else _refuse_holder
    if federation.pinned is not None and (apart := check(tx, event)):
        return apart
    if role == "shard":
        tx.sessions.reached[party] = _whole_groups(tx, event)
        address = ShardAddress(party, event.advertise, event.weight)
        moved = federation.shards.get(party) != address
        unsafe = event.unsafe and tx.plan.noisy_shards
        if moved or (unsafe and party not in federation.unsafe):
            tx.write(ShardLocated(address, unsafe))
    else:
        tx.sessions.holders.add(party)
    if party not in tx.sessions.watchers:  # once subscribed, a party reports its troubles again
        tx.sessions.trouble(party, "")
    own = federation.incarnation
    if event.seen > own or (event.seen == own and party not in tx.sessions.told):
        tx.write(Incarnated(event.seen + 1))  # its record was lost with our journal's end
    tx.sessions.obeyed[party] = max(event.seen, tx.sessions.obeyed.get(party, 0))
    if moved and tx.is_spare(party):
        text = f"{party} is here, and holds no blocks: secureps shards add {party} moves some to it"
        tx.step.say(text)
    elif moved and federation.pinned is not None and reign.is_ruling(tx):
        tx.tell_placement()
    if initial is not None and federation.pinned is None:
        with suppress(NotReady):  # the next server that registers tries again
            found(tx, initial)
    return Noted()


def _whole_groups(tx: Transaction, event: Register) -> frozenset[str]:
    """Returns the groups of which the registering shard has the newest version or the one before.

    A shard that is further behind takes the version from other shards, and registers again.
    """
    groups = tx.federation.groups
    known = {at.group: at.version for at in event.reached}
    return frozenset(g for g, at in known.items() if g in groups and at >= groups[g].version - 1)


def _refuse_outsider(tx: Transaction, event: Register, role: str) -> NotReady | None:
    """Refuses a server that left this run, or takes part in another one."""
    party, pinned = event.party, tx.federation.pinned
    if pinned is None:
        return refuse_elsewhere(tx, party, event.run)
    reason = tx.federation.moving.left.get(party, "")
    admitted = {*tx.federation.moving.removed, *tx.federation.reigns.left}
    if role == "shard" and reason and party not in admitted:
        raise UnknownParty(
            f"{party} has left this run: {reason}; whatever it has of the run does not count any "
            f"more. secureps shards add {party} takes it in again, with nothing"
        )
    if event.run not in (b"", pinned.run.id):
        raise WrongRun(wrong_run(party, event.run, pinned.run.id))
    return None


def _refuse_shard_ahead(tx: Transaction, event: Register) -> NotReady | None:
    """Ends this coordinator if a shard knows more than its journal, or contradicts it.

    Shards do only what was journalled here first, so the journal must be an older copy. Shards
    belong to this operator, so no other party can end a coordinator in this way.
    """
    ahead = next(_describe_newer(tx, event), "")
    if not ahead:
        return None
    text = (
        f"{ahead}: it is an older copy; bring back the newest one, or begin a new run from the "
        "last checkpoint"
    )
    tx.step.effects.append(Halt(text, DamagedStore))
    return NotReady(text, LATER)


def _describe_newer(tx: Transaction, event: Register) -> Iterator[str]:
    """Describes what a shard has that the journal here lacks or contradicts."""
    groups, coming = tx.federation.groups, tx.federation.coming
    known = (coming or tx.federation.placement).epoch
    for at in event.reached:
        if at.group in groups and at.version > groups[at.group].version:
            yield (
                f"the coordinator's journal ends at version {groups[at.group].version} of "
                f"{at.group}, and {event.party} has committed {at.version}"
            )
    if (event.epoch, not event.coming) > (known, coming is None):
        begun = "" if coming is None else " (not in force)"
        yield (
            f"the coordinator's journal ends at placement {known}{begun} of the blocks, "
            f"and {event.party} goes by placement {event.epoch}"
        )
    for held in event.held:
        if (group := groups.get(held.group)) is None:
            continue
        if held.number > group.number:
            yield (
                f"the coordinator's journal ends at cohort {group.number} of {held.group}, and "
                f"{event.party} has the sums of cohort {held.number}"
            )
        closed = (c for c in (*group.spoilt, group.cohort) if c is not None)
        same = (c for c in closed if c.number == held.number)
        if any(cohort_digest(tx.federation.run.id, cohort) != held.digest for cohort in same):
            yield (
                f"the coordinator's journal has another cohort {held.number} of {held.group} than "
                f"the one that {event.party} has sums of"
            )


def _refuse_holder(tx: Transaction, event: Register) -> NotReady | None:
    """Refuses a holder that forgot what it opened; a holder that is ahead counts as away.

    A single holder may lie, so it cannot end this coordinator.
    """
    party, federation = event.party, tx.federation
    reached = {at.group: at.version for at in event.reached}
    for (holder, group), cohort in federation.answered.items():
        if holder != party or reached.get(group, -1) >= cohort:
            continue
        if not reached:
            raise Refused(
                f"{party} comes with an empty ledger to a run whose sums it has opened: "
                "start it with the state folder that it had; if that is gone, restore no copy, "
                "and leave it off"
            )
        raise Refused(
            f"{party}'s ledger ends at cohort {reached.get(group, -1)} of {group}, and it has "
            f"answered for cohort {cohort}: it is an older copy, and would open again what it "
            "opened before; bring back the newest one, or stay out of this run"
        )
    for name, cohort in reached.items():
        state = federation.groups.get(name)
        if state is None or cohort <= state.number:
            continue
        text = (
            f"{party} has opened cohort {cohort} of {name}, and the coordinator's journal ends at "
            f"cohort {state.number}: the journal is an older copy, or {party} lies; until one of "
            f"them comes back as it was, {party} counts as away"
        )
        return refuse_once(tx, party, text)
    tx.sessions.elsewhere.pop(party, None)
    return None
