"""How a run comes to be: placed, pinned, and bound to plan, model, keys and roster.

The first model's schema decides (the plan's file of version 0, or the first client's); before
all shards and holders are up nothing is pinned. Where no file gives version 0, one client that is
here does.
"""

from __future__ import annotations

from contextlib import suppress

from secureps.errors import NotReady, WrongShape
from secureps.messages.coordinator_records import FounderChosen
from secureps.messages.orders import Configure
from secureps.messages.records import RunPinned
from secureps.messages.run import Placement, RunInfo
from secureps.messages.schema import Schema
from secureps.model.placement import place_groups
from secureps.roles.coordinator import commit, committees, recovery
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Say
from secureps.roles.pinned_run import PinnedRun

LATER = 1.0
"""Seconds after which a party that cannot be taken asks again, at first."""


def elsewhere(tx: Transaction, party: str, run: bytes) -> NotReady | None:
    """What a party hears that holds a run, of a coordinator that holds none; None if it is new.

    An empty folder may be a volume that is not mounted. A run that is founded over it would send
    everybody away from the one that they have, with all that cannot be made again.
    """
    if not run:
        tx.sessions.elsewhere.pop(party, None)
        return None
    return said_once(
        tx,
        party,
        f"{party} takes part in run {run.hex()[:16]}, and the coordinator's state folder holds no "
        "run: is a volume missing? Nothing is founded meanwhile. Bring that folder back as it was, "
        f"and start the coordinator again; or, for a new run, start {party} with another state "
        "folder, and keep the one that it has",
    )


def said_once(tx: Transaction, party: str, text: str) -> NotReady:
    """The refusal of a party that has to wait for an operator, who reads of it here, once."""
    if party not in tx.sessions.elsewhere:
        tx.step.effects.append(Say(text))
    tx.sessions.elsewhere[party] = tx.now
    return NotReady(text, LATER)


def _demand_nobody_elsewhere(tx: Transaction, settings: PinnedRun) -> None:
    """NotReady while servers, or half of all clients, were lately heard to hold a run.

    Fewer clients stop nothing: each of them could say so for ever.
    """
    lately = {p for p, at in tx.sessions.elsewhere.items() if tx.now - at < tx.plan.section.lease}
    clients = {certificate.name for certificate in settings.roster.clients()}
    if lately - clients or (lately and 2 * len(lately & clients) >= len(clients)):
        raise NotReady(
            f"the run is not founded: {', '.join(sorted(lately)[:5])} take part in one already, "
            "and the coordinator's state folder holds none; its log says what to do",
            LATER,
        )


def found(tx: Transaction, settings: PinnedRun, schema: Schema) -> None:
    """Pins the run of this model.

    Raises:
        NotReady: shards or holders are missing, or others hold a run already.
        PlanRefused: the plan cannot carry the model.
        WrongShape: it tells digests of other tensors than the plan freezes.
    """
    federation, plan, holders = tx.federation, tx.plan, tx.sessions.holders
    _demand_nobody_elsewhere(tx, settings)
    if len(federation.shards) < plan.section.shards:
        raise NotReady(
            f"the run waits for shards: {len(federation.shards)} of {plan.section.shards} are up"
        )
    if len(holders) < plan.holders:
        raise NotReady(f"the run waits for key holders: {len(holders)} of {plan.holders} are up")
    layout = plan.layout(schema)
    if schema.told != {spec.name for spec in layout.frozen or ()}:
        raise WrongShape("a model has digests of the tensors that the plan freezes, and no others")
    here = sorted(federation.shards.items())
    if plan.section.scaling is not None:  # the others are there to be added
        here = here[: plan.section.shards]
    shards = {name: s.weight for name, s in here}
    copies = plan.section.replicas
    held = place_groups({g.name: g.blocks for g in layout.all_groups}, shards, copies)
    placement = Placement.by_block(1, shards, held)
    roster = settings.roster
    run = RunInfo(plan.text, schema, layout.digest, roster.committee, roster.digest, settings.nonce)
    addresses = tuple(federation.shards[name] for name in shards)
    tx.write(RunPinned(run, placement, addresses))
    committees.form(tx, settings)
    for party in sorted(tx.watchers):
        if party in shards or party in holders or tx.spare(party):
            tx.order(party, make_configure(tx))
    for group in federation.groups.values():
        if plan.given(group.name):
            commit.found(tx, group, None)


def make_configure(tx: Transaction) -> Configure:
    """Which run this is, and where its shards are now."""
    pinned = tx.federation.pinned
    assert pinned is not None
    number, addresses = tx.federation.incarnation, tx.federation.addresses
    return Configure(number, pinned.run, pinned.placement, addresses)


def moved(tx: Transaction) -> None:
    """A shard is elsewhere, or serves for the first time: who dials it hears of it."""
    if (pinned := tx.federation.pinned) is None:
        return
    configure = make_configure(tx)
    peers = pinned.placement.shards if pinned.placement.replicas is not None else ()
    for party in (*tx.federation.members, *tx.holders, *peers):
        tx.order(party, configure)


def found_from_file(tx: Transaction, settings: PinnedRun) -> None:
    """The same from the plan's file, as soon as everybody is up."""
    if settings.initial is None or tx.federation.pinned is not None:
        return
    with suppress(NotReady):  # whoever comes back, or comes new, asks again
        found(tx, settings, settings.initial)


def choose_founder(tx: Transaction) -> None:
    """Has a client that is here send the models that are founded with a client's.

    A model of which a shard lacks blocks is given up when its client's lease is over, if somebody
    else is here: else nobody would train for as long as that client stays away.
    """
    federation, groups = tx.federation, tx.federation.groups.values()
    awaited = [g for g in groups if g.phase is Phase.FOUNDING and not tx.plan.given(g.name)]
    here = next(filter(tx.trains, federation.members), None) if awaited else None
    if here is None:
        return
    wanted = []
    for group in awaited:
        asked = tx.sessions.asked.intersection(group.receipts)
        gone = tuple(id for id in asked if not tx.trains(id.client))
        tx.drop(group.name, gone, "a shard lost its blocks, and its client is away")
        if gone or (not group.receipts and not tx.trains(federation.founder)):
            wanted.append(group)
    if wanted and not tx.trains(federation.founder):
        tx.write(FounderChosen(here))
    for group in wanted:
        tx.order(federation.founder, recovery.make_invite(tx, group, federation.founder))
