"""Whole runs with members that spoil cohorts: these are found and left out, and others go on."""

import dataclasses
from functools import partial
from pathlib import Path

import pytest

from secureps.errors import Refused
from secureps.messages import coordinator_records, member_records, records, requests
from secureps.messages.coordinator_records import RoundGivenUp
from secureps.messages.requests import OpenRefused
from secureps.messages.submission import signing_bytes
from secureps.roles.coordinator import scheduler
from secureps.roles.coordinator.group import Phase
from secureps.run.simulate.simulation import Simulation
from secureps.run.up.folder import client_names
from secureps.service.log_lines import LogLines
from tests.kits.cheats import (
    cheats,
    cohorts,
    holders_allow_all,
    journalled,
    lies,
    small_error,
    spoil_one,
    spoils,
    until,
)
from tests.kits.committee_parties import CommitteeWorld
from tests.kits.federations import small_federation, small_plan, status_of
from tests.kits.roles_kit import Due
from tests.kits.shoppers import ENDS, shopping, sparse_plan
from tests.kits.stream_parties import stream_plan

MINIMUM = 4


def federation(folder: Path, versions: int = 8) -> Simulation:
    """Ten clients are waited for; three of four holders open what they send.

    A version halves the suspects: after version 1, four tell one of ten apart (10, 5, 3, 2, 1). A
    run of five would end before whoever waits for what follows sees it.
    """
    rule = {"minimum": MINIMUM, "extensions": 1}
    plan = small_plan("rlwe", rule, versions=versions, clients=10, capacity=16)
    return small_federation(plan, folder, clients=10)


def spoilt(folder: Path) -> Simulation:
    """Version 1 is made, and from now on client-05 spoils every cohort that it is in."""
    simulation = federation(folder)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    spoils(simulation, "client-05", times=99)
    return simulation


@pytest.mark.slow
def test_it_is_named_and_told_why(tmp_path: Path) -> None:
    simulation = spoilt(tmp_path)
    simulation.run(lambda: bool(simulation.coordinator.federation.isolated))
    (record,) = journalled(simulation, coordinator_records.ClientIsolated)
    assert record.reason == (
        "client-05 spoils cohorts: one did not open, and all others in it stood in cohorts that did"
    )
    narrator = LogLines()
    for each in journalled(simulation, records.RunPinned):
        narrator.hear(each)
    assert narrator.line(record) == f"client-05 is left out of the run: {record.reason}"
    say = partial(simulation.coordinator.handle, simulation.loop.now())
    states = {member.name: member.state for member in status_of(simulation).members}
    assert [name for name, state in states.items() if state == "left out"] == ["client-05"]
    sent = [r.receipt for r in journalled(simulation, member_records.Sealed, "client-05")][-1]
    again = dataclasses.replace(sent, id=dataclasses.replace(sent.id, sequence=99))
    key = simulation._kit.identities["client-05"]
    signed = dataclasses.replace(again, signature=key.sign(*signing_bytes(again)))
    with pytest.raises(Refused, match="left out of this run: client-05 spoils cohorts"):
        say("client-05", requests.Submit(signed))


@pytest.mark.slow
def test_holders_that_lie_have_nobody_left_out(tmp_path: Path) -> None:
    """Three answers of four holders do not prove that they are right."""
    simulation = federation(tmp_path, versions=3)
    until(simulation, Phase.COLLECTING)
    simulation.kill("holder-3")
    lies(simulation, "holder-1", small_error, times=1)
    simulation.run()
    assert simulation.versions() == {"all": 3}
    (record,) = journalled(simulation, coordinator_records.CohortBurnt)
    assert not record.spoilt
    assert [len(each.members) for each in cohorts(simulation)] == [10, 10, 5, 10]
    assert simulation.coordinator.federation.isolated == {}
    holders_allow_all(simulation, MINIMUM)


@pytest.mark.slow
def test_a_flaw_that_is_found_before_holders_are_asked_is_found_in_time(tmp_path: Path) -> None:
    simulation = federation(tmp_path, versions=3)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    cheats(simulation, "client-05", spoil_one)
    simulation.kill("holder-2")
    until(simulation, Phase.HOLDING)
    simulation.kill("shard-1")
    simulation.start("holder-2")
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.CohortReopened)))
    simulation.start("shard-1")
    simulation.run()
    assert simulation.versions() == {"all": 3}
    assert journalled(simulation, OpenRefused) == []
    assert [len(each.members) for each in cohorts(simulation)] == [10, 10, 9, 10]
    assert journalled(simulation, coordinator_records.CohortBurnt) == []


def test_a_flaw_that_is_found_after_the_version_is_remembered_once(tmp_path: Path) -> None:
    simulation = federation(tmp_path, versions=3)
    until(simulation, Phase.COLLECTING)
    fates = simulation.coordinator.federation.fates
    id = next(id for id, fate in fates.items() if fate.version == 1)
    say = partial(simulation.coordinator.handle, simulation.loop.now())
    late = "too late to leave it out"
    for holder in ("holder-0", "holder-1"):
        for wanted in (1, 0):
            step = say(holder, requests.Examined(holder, id, "a flaw", b""))
            assert (
                step.records
                == [coordinator_records.FlawNoted("all", id, holder, "a flaw", late)] * wanted
            )
    assert simulation.coordinator.federation.groups["all"].suspicion.flawed == {id.client}


@pytest.mark.slow
def test_a_flaw_in_an_exact_round_gives_it_up_at_once(tmp_path: Path) -> None:
    simulation = spoilt(tmp_path)
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.CohortBurnt)))
    group = simulation.coordinator.federation.groups["all"]
    asked = group.suspicion.chosen
    cheat = min(asked - {"client-05"})
    cheats(simulation, cheat, spoil_one)
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.RoundGivenUp)))
    (given_up,) = journalled(simulation, coordinator_records.RoundGivenUp)
    assert f"not {cheat}; nothing was opened" in given_up.reason
    simulation.run()
    assert simulation.versions() == {"all": 8}
    assert set(simulation.coordinator.federation.isolated) == {"client-05"}
    holders_allow_all(simulation, MINIMUM)


def test_too_few_that_are_left_end_the_run(tmp_path: Path) -> None:
    simulation = federation(tmp_path)
    until(simulation, Phase.COLLECTING)
    tx = simulation.coordinator._tx(simulation.loop.now())
    names = client_names(10)
    for client in names[:6]:
        tx.write(coordinator_records.ClientIsolated("all", client, "it spoils cohorts"))
    scheduler.advance(tx)
    assert tx.federation.ending == ""
    tx.write(coordinator_records.ClientIsolated("all", names[6], "it spoils cohorts"))
    scheduler.advance(tx)  # the round is given up
    scheduler.advance(tx)
    left = "takes part no more: left out of this run (client-00, client-01, client-02 and 4 more)"
    assert tx.federation.ending == f"too few clients are left for version 2 of all: {left}"


@pytest.mark.slow
def test_a_row_block_that_nobody_else_touches_is_given_up_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    """Enough other clients are here, but they have nothing to send for it."""
    plan = sparse_plan("rlwe", {"quorum": 3, "minimum": 3, "deadline": 20.0})
    simulation, _ = shopping(plan, tmp_path)
    spoils(simulation, "client-03", times=99, group="table.1")
    simulation.run()
    (record,) = journalled(simulation, coordinator_records.GroupResigned)
    assert (record.group, record.reason) == (
        "table.1",
        "3 cohorts in succession came to nothing at version 0 of table.1, and every one was "
        "charged: no 3 of 4 answers open it: 4 answers fit together; no other set of clients may "
        "make this version; suspected: client-00, client-01, client-02, client-03, client-04",
    )
    assert LogLines().line(record) == f"table.1 is given up: {record.reason}"
    assert simulation.versions() == {**ENDS, "table.1": 0}
    left = f"{record.reason}: it stays at 0"
    assert simulation.coordinator.federation.finished == (
        "all versions are made (5 of table, 3 of tower), but of table.3: too few members touch it; "
        f"of table.1: {left}"
    )
    assert f"table.1: {left}" in simulation.reasons()


@pytest.mark.parametrize("late", ["client", "holders"])
def test_a_set_is_given_up_for_a_client_that_is_late_and_waits_for_holders(late: str) -> None:
    """Updates that came in time count, even if key holders examine them late."""
    rule = {"name": "buffered", "buffer": 5, "minimum": 3, "max_staleness": 4, "deadline": 30.0}
    world = CommitteeWorld(stream_plan(rule, "rlwe"), offenders={"c0"})
    world.found()
    world.play()
    while not world.group().suspicion.chosen:
        world.deliver(world.due[0])
    world.offenders = frozenset()

    def stays(due: Due) -> bool:
        return isinstance(due.reply, requests.Examined) or (late == "client" and due.sender == "c4")

    while coming := [due for due in world.due if not stays(due)]:
        world.deliver(coming[0])
    world.wait(29.0)
    assert world.group().round == 1
    world.wait(2.0)
    given_up = [each for _, step in world.log for each in step if type(each) is RoundGivenUp]
    if late == "client":
        assert [each.reason for each in given_up] == [
            "given up: 0 of 5 have arrived, not c0, c1, c2 and 2 more; nothing was opened"
        ]
        return
    assert not given_up
    assert world.group().reason.startswith(
        "the deadline is over; 5 updates came, to be examined by key holders"
    )
    while world.due:
        world.deliver(world.due[0])
    assert world.group().version == 1
