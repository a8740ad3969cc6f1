"""Runs without rounds in which too few stood outside a spoilt cohort: sets of it follow."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import Conflict, Refused, WrongVersion
from secureps.messages import records, requests
from secureps.messages.submission import signing_bytes
from secureps.policy.hiding import both_open
from secureps.roles.group_state import Phase
from secureps.run.simulation import Simulation
from tests.cheats import cheats, journalled, spoil_all, spoils
from tests.federations import same
from tests.shoppers import ENDS, shopping, sparse_plan
from tests.streams import SSP, stream, stream_plan

BUFFERED = {"name": "buffered", "buffer": 6, "minimum": 3, "max_staleness": 4, "deadline": 30.0}
PRIORITY = {"name": "priority", "buffer": 6, "pool": 6, "minimum": 3, "max_staleness": 4}
LOCKSTEP = {"name": "ssp", "slack": 0, "minimum": 3, "deadline": 40.0}


def begun(folder: Path, rule: dict[str, Any], count: int, versions: int = 12) -> Simulation:
    """Version 1 is made, and from now on client-02 spoils whatever it is in."""
    simulation = stream(stream_plan("rlwe", rule, versions=versions), folder, count)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    spoils(simulation, "client-02", times=99)
    return simulation


def group_of(simulation: Simulation) -> Any:
    return simulation.coordinator.federation.groups["all"]


def stands(simulation: Simulation, phase: Phase = Phase.COLLECTING) -> Any:
    """A set of a burnt cohort stands to the test."""
    group = group_of(simulation)
    simulation.run(lambda: bool(group.suspicion.chosen) and group.phase is phase)
    return group


def cohorts(simulation: Simulation, group: str = "all") -> list[Any]:
    closed = [record.cohort for record in journalled(simulation, records.CohortClosed)]
    return [cohort for cohort in closed if cohort.group == group]


def clients(cohort: Any) -> set[str]:
    return {member.id.client for member in cohort.members}


def holders_allow_all(simulation: Simulation, minimum: int = 3, group: str = "all") -> None:
    """Whatever was closed may be opened beside all the rest, and no holder ever refused."""
    pinned = simulation.coordinator.federation.pinned
    assert pinned is not None
    for one, other in itertools.combinations(cohorts(simulation, group), 2):
        assert both_open(pinned.run.id, one, other, minimum)
    assert journalled(simulation, records.HolderRefused) == []


def found(simulation: Simulation, versions: int = 12) -> None:
    """The run goes to its end, without the offender and with everybody else."""
    federation = simulation.coordinator.federation
    assert federation.finished == f"all {versions} versions are made"
    assert set(federation.isolated) == {"client-02"}
    assert set(federation.included) >= federation.members.keys() - {"client-02"}
    holders_allow_all(simulation)


@pytest.mark.parametrize(
    ("rule", "count"),
    [({**SSP, "minimum": 3}, 6), (LOCKSTEP, 6), (BUFFERED, 7), (PRIORITY, 7)],
    ids=["ssp", "lockstep", "buffered", "priority"],
)
def test_an_offender_among_few_is_found_and_the_stream_goes_on(
    rule: dict[str, Any], count: int, tmp_path: Path
) -> None:
    simulation = begun(tmp_path, rule, count)
    simulation.run()
    found(simulation)
    (left_out,) = journalled(simulation, records.ClientIsolated)
    assert "one did not open, and all others in it stood in cohorts" in left_out.reason
    burnt = journalled(simulation, records.CohortBurnt)
    assert 1 < len(burnt) <= 2 * (1 + math.ceil(math.log2(count)))
    sets = [set(record.invited) for record in journalled(simulation, records.RoundOpened)]
    assert sets
    assert all(each in [clients(cohort) for cohort in cohorts(simulation)] for each in sets)


def test_an_offender_of_a_small_row_block_is_found_too(tmp_path: Path) -> None:
    """Six touch it, and all of them stand in every cohort."""
    tastes = [[0, 1], [0, 1], [0, 1], [0, 1], [0, 1], [0, 1, 2], [0, 2, 3], [2, 3]]
    simulation, _ = shopping(sparse_plan("rlwe", LOCKSTEP), tmp_path, tastes=tastes)
    spoils(simulation, "client-03", times=99, group="table.1")
    simulation.run()
    assert simulation.versions() == {**ENDS, "table.2": 5}
    assert set(simulation.coordinator.federation.isolated) == {"client-03"}
    holders_allow_all(simulation, 3, "table.1")


def test_what_is_sealed_anew_is_the_same_update(tmp_path: Path) -> None:
    """A cohort that cannot be cut is tried whole: what it makes is what it would have made."""
    models = []
    for times in (0, 1):
        rule = {**BUFFERED, "minimum": 4}
        simulation = stream(stream_plan("rlwe", rule), tmp_path / str(times), 6)
        simulation.run(lambda: simulation.versions() == {"all": 1})  # noqa: B023
        spoils(simulation, "client-02", times)
        simulation.run(lambda: simulation.versions() == {"all": 2})  # noqa: B023
        assert len(journalled(simulation, records.CohortBurnt)) == times
        models.append(simulation.model())
        last = cohorts(simulation)[1:]
        assert len(last) == 1 + times
        assert len({tuple((m.id.client, m.version, m.step) for m in c.members) for c in last}) == 1
        assert simulation.coordinator.federation.isolated == {}
    assert same(models[0], models[1])


def test_a_cohort_that_cannot_be_cut_is_tried_three_times(tmp_path: Path) -> None:
    """Five of six stood in it: then nobody waits for a version that never comes."""
    simulation = begun(tmp_path, {**BUFFERED, "buffer": 5}, 6)
    simulation.run()
    federation = simulation.coordinator.federation
    burnt = cohorts(simulation)[-3:]
    out = sorted(clients(burnt[0]))
    assert [clients(cohort) for cohort in burnt] == [set(out)] * 3
    assert federation.finished == (
        f"fewer than 3 clients are left for version {burnt[0].version}: "
        f"{', '.join(out[:3])} and 2 more sit out until the next version; no other set of clients "
        f"may make this version; suspected: {', '.join(out)}"
    )
    assert federation.checkpoints[-1].complete
    holders_allow_all(simulation)


@pytest.mark.parametrize("phase", [Phase.COLLECTING, Phase.HOLDING, Phase.OPENING])
def test_a_coordinator_that_is_killed_meanwhile_decides_the_same(
    phase: Phase, tmp_path: Path
) -> None:
    simulation, kills = begun(tmp_path, LOCKSTEP, 6), 0
    while not simulation.coordinator.federation.isolated:
        known = stands(simulation, phase)
        number = simulation.coordinator.federation.incarnation
        simulation.kill("coordinator")
        simulation.start("coordinator")
        simulation.run(lambda: simulation.coordinator.federation.incarnation > number)  # noqa: B023
        again, kills = group_of(simulation), kills + 1
        assert (again.suspicion, again.invited) == (known.suspicion, known.invited)
        assert (again.places, again.pool.again) == (known.places, known.pool.again)
        chosen = known.suspicion.chosen
        simulation.run(lambda: group_of(simulation).suspicion.chosen != chosen)  # noqa: B023
    assert kills > 1
    simulation.run()
    found(simulation)


def asked(simulation: Simulation) -> tuple[Any, str]:
    """A set without the offender stands to the test, and one of it has yet to send."""
    group = group_of(simulation)
    simulation.run(
        lambda: (
            bool(group.suspicion.chosen)
            and "client-02" not in group.suspicion.chosen
            and group.phase is Phase.COLLECTING
        )
    )
    return group, min(client for client in group.suspicion.chosen if group.awaits(client))


def given_up(simulation: Simulation) -> str:
    simulation.run(lambda: bool(journalled(simulation, records.RoundGivenUp)))
    return str(journalled(simulation, records.RoundGivenUp)[0].reason)


def test_who_is_silent_does_not_hold_up_the_other_half(tmp_path: Path) -> None:
    """It keeps its lease: after a deadline the set is given up, and another one asked."""
    simulation = begun(tmp_path, LOCKSTEP, 6)
    group = stands(simulation)
    chosen = group.suspicion.chosen
    silent = min(client for client in chosen - {"client-02"} if group.awaits(client))
    machine: Any = simulation.parties[silent].machine
    machine._seal_again = lambda step: False
    reason = given_up(simulation)
    assert reason == f"given up: 2 of 3 have arrived, not {silent}; nothing was opened"
    assert not stands(simulation).suspicion.chosen & chosen
    del machine._seal_again
    simulation.run()
    found(simulation)


def test_who_lost_its_update_makes_the_same_again_from_the_newest_version(tmp_path: Path) -> None:
    simulation = begun(tmp_path, LOCKSTEP, 6)
    _, lost = asked(simulation)
    simulation.kill(lost)
    simulation.start(lost)
    simulation.run()
    assert journalled(simulation, records.MemberDeclined) == []
    found(simulation)


def test_who_lost_an_update_from_an_older_version_is_in_no_set(tmp_path: Path) -> None:
    simulation = begun(tmp_path, {**SSP, "minimum": 3}, 6)
    group = stands(simulation)
    lost = next(c for c in sorted(group.invited) if group.places[c].version < group.version)
    simulation.kill(lost)
    simulation.start(lost)
    assert f"not {lost}; nothing was opened" in given_up(simulation)
    (declined,) = journalled(simulation, records.MemberDeclined)
    assert (declined.client, declined.reason) == (lost, "what it sent is not here any more")
    assert lost not in group.places
    simulation.run()
    holders_allow_all(simulation)


def test_a_flaw_in_what_is_sealed_anew_gives_the_set_up(tmp_path: Path) -> None:
    simulation = begun(tmp_path, LOCKSTEP, 6)
    _, cheat = asked(simulation)
    cheats(simulation, cheat, spoil_all)
    assert f"not {cheat}; nothing was opened" in given_up(simulation)
    simulation.run()
    found(simulation)


def test_blocks_that_are_lost_meanwhile_come_again(tmp_path: Path) -> None:
    simulation = begun(tmp_path, LOCKSTEP, 6)
    group = stands(simulation, Phase.HOLDING)
    chosen, clocks = group.suspicion.chosen, dict(group.pool.clocks)
    simulation.kill("shard-0")
    spool = simulation._stores["shard-0"].spool
    for key in spool.keys("update"):
        spool.delete(key)
    simulation.start("shard-0")
    simulation.run(lambda: bool(journalled(simulation, records.CohortReopened)))
    assert group.suspicion.chosen == chosen
    assert group.pool.returning
    assert group.pool.clocks == clocks, "what is sealed anew counts for no clock"
    simulation.run()
    found(simulation)


def test_a_refusal_gives_the_set_up_for_once(tmp_path: Path) -> None:
    simulation = begun(tmp_path, LOCKSTEP, 6)
    _, victim = asked(simulation)
    machine: Any = simulation.parties["shard-0"].machine
    right, left = machine.inspect, [1]

    def inspect(sender: str, message: Any) -> Any:
        if sender == victim and isinstance(message, requests.PutBlock) and left[0]:
            left[0] -= 1
            raise Refused("no room")
        return right(sender, message)

    machine.inspect = inspect
    assert given_up(simulation) == f"given up: what {victim} sent was refused: no room"
    simulation.run()
    found(simulation)


def test_only_the_same_update_is_taken_and_only_once(tmp_path: Path) -> None:
    simulation = begun(tmp_path, SSP | {"minimum": 3}, 6)
    group = stands(simulation)
    received = journalled(simulation, records.Received)
    kept = {record.receipt.id: record.receipt for record in received}

    def sends(client: str, **changes: Any) -> None:
        old = kept[group.places[client].id]
        id = dataclasses.replace(old.id, sequence=old.id.sequence + 50)
        receipt = dataclasses.replace(old, **({"id": id} | changes))
        signature = simulation._kit.identities[client].sign(*signing_bytes(receipt))
        signed = dataclasses.replace(receipt, signature=signature)
        simulation.coordinator.handle(simulation.loop.now(), client, requests.Submit(signed))

    client = min(group.invited)
    place = group.places[client]
    wanted = f"asked was update {place.step} of version .* once more"
    with pytest.raises(WrongVersion, match=wanted):
        sends(client, version=group.version, step=0)
    with pytest.raises(WrongVersion, match="its base is another model"):
        sends(client, base=bytes(32))
    sends(client)
    with pytest.raises(Conflict, match="has sent that once more already"):
        sends(client, id=dataclasses.replace(place.id, sequence=place.id.sequence + 51))
    outside = min(set(group.places) - group.invited)
    with pytest.raises(WrongVersion, match=r"asked was update|was not asked for an"):
        sends(outside)


def test_keys_are_kept_until_nobody_can_ask(tmp_path: Path) -> None:
    simulation = begun(tmp_path, LOCKSTEP, 6)
    hands: Any = simulation.parties["client-00"].hands
    machine: Any = simulation.parties["client-00"].machine
    for version in range(2, 12):
        simulation.run(lambda: simulation.versions() == {"all": version})  # noqa: B023
        simulation.run(lambda: not machine._out.moving)
        assert len(hands._sealer._kept) <= 3
        assert set(hands._sealer._kept) <= set(hands._outbox.keys("update"))
