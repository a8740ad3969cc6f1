"""How a run comes to be: placed, pinned, and bound to plan, model, keys and roster.

The first model's schema decides (the plan's file of version 0, or the first client's); before
all shards and holders are up nothing is pinned. What must not live here: the values of version
0, which shards make (`roles.commit.found`).
"""

from __future__ import annotations

from collections.abc import Collection

from secureps.errors import NotReady
from secureps.messages.orders import Configure
from secureps.messages.records import RunPinned
from secureps.messages.run import GroupPlacement, Placement, RunInfo
from secureps.messages.schema import Schema
from secureps.model.placement import place_group
from secureps.roles import commit
from secureps.roles.charter import Charter
from secureps.roles.turn import Turn


def found(turn: Turn, charter: Charter, holders: Collection[str], schema: Schema) -> None:
    """Pins the run of this model; `holders` are those that registered.

    Raises:
        NotReady: shards or holders are missing.
        PlanRefused: the plan cannot carry the model.
    """
    federation, plan = turn.federation, turn.plan
    if len(federation.shards) < plan.section.shards:
        raise NotReady(
            f"the run waits for shards: {len(federation.shards)} of {plan.section.shards} are up"
        )
    if len(holders) < plan.holders:
        raise NotReady(f"the run waits for key holders: {len(holders)} of {plan.holders} are up")
    layout = plan.layout(schema)
    shards = {name: s.weight for name, s in sorted(federation.shards.items())}
    placement = Placement(
        1,
        tuple(shards),
        tuple(
            GroupPlacement(g.name, place_group(g.name, g.blocks, shards)) for g in layout.all_groups
        ),
    )
    run = RunInfo(
        plan.text, schema, layout.digest, charter.holders, charter.roster.digest, charter.nonce
    )
    addresses = tuple(federation.shards[name] for name in shards)
    turn.write(RunPinned(run, placement, addresses))
    for party in sorted(turn.watchers):
        if party in shards or party in holders:
            turn.order(party, Configure(federation.incarnation, run, placement, addresses))
    for group in federation.groups.values():
        if plan.given(group.name):
            commit.found(turn, group, None)


def found_from_file(turn: Turn, charter: Charter, holders: Collection[str]) -> None:
    """The same from the plan's file, as soon as everybody is up."""
    federation = turn.federation
    if charter.initial is None or federation.pinned is not None:
        return
    if len(federation.shards) < turn.plan.section.shards or len(holders) < turn.plan.holders:
        return
    found(turn, charter, holders, charter.initial)
