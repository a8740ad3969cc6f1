"""Without rounds a run ends in the same bits, and a compacted journal in the same state."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.suite import cipher
from secureps.errors import Conflict, InternalError, Refused, WrongVersion
from secureps.messages import coordinator_records, member_records, requests
from secureps.messages.coordinator_records import CohortClosed
from secureps.messages.requests import Submit
from secureps.messages.submission import BlockHeader, Outcome, signing_bytes
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import Prune
from secureps.roles.member.tasks import Reseal
from secureps.run.simulate.simulation import Simulation
from secureps.service.log_lines import LogLines
from tests.kits.cheats import clients_of, cohorts, holders_allow_all, journalled, spoils
from tests.kits.committee_parties import CommitteeWorld
from tests.kits.federations import FEWER, OF_RECORDS, same, small_federation, small_plan, unharmed
from tests.kits.folding import differing
from tests.kits.stream_parties import stream_plan as plan_by_rote
from tests.kits.streams import ASYNC, SSP, stream, stream_plan


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "ssp", "slack": 0, "minimum": 6},
        {"name": "buffered", "buffer": 6, "minimum": 6, "max_staleness": 0},
    ],
    ids=["ssp with s = 0", "FedBuff of all"],
)
def test_without_staleness_it_is_the_synchronous_model(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    simulation = stream(stream_plan("plain", rule), tmp_path)
    simulation.run()
    assert same(simulation.model(), unharmed()[0])


CODEC = [{"name": "support", "one_in": 4}, "rotate"]


def test_every_update_is_a_version_of_the_classical_server_whatever_its_support(
    tmp_path: Path,
) -> None:
    group = {"clip": 3.0, "range": 1.0, "most_examples": 32, "rule": ASYNC, "codec": CODEC}
    simulation = stream(stream_plan("plain", ASYNC, versions=20, group=[group]), tmp_path)
    simulation.run()
    assert simulation.versions() == {"all": 20}
    assert [len(c.cohort.members) for c in journalled(simulation, CohortClosed)] == [1] * 20
    settled = [
        record
        for name in simulation._stores
        if name.startswith("client")
        for record in journalled(simulation, member_records.SubmissionSettled, name)
    ]
    dropped = [record for record in settled if record.outcome == Outcome.DROPPED]
    assert len(dropped) <= 6  # those that were being made when the run ended


RULES: dict[str, dict[str, Any]] = {
    "ssp": {"name": "ssp", "slack": 2},
    "buffered": {"name": "buffered", "buffer": 5, "max_staleness": 4, "deadline": 1e6},
    "priority": {
        "name": "priority",
        "buffer": 5,
        "pool": 6,
        "max_staleness": 4,
        "ageing": 1000.0,
        "deadline": 1e6,
    },
}
ROUNDS: dict[str, dict[str, Any]] = {
    "plain": {"cipher": "plain", "checkpoint_every": 2},
    "bfv": {"cipher": "bfv"},
    "committee": {"cipher": "rlwe-2-of-3", "checkpoint_every": 1, **OF_RECORDS},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROUNDS)
def test_a_fold_stands_for_rows_of_rounds(kind: str, tmp_path: Path) -> None:
    plan = small_plan(**ROUNDS[kind], clients=FEWER)
    simulation = small_federation(plan, tmp_path, clients=FEWER)
    simulation.run()
    assert not differing(simulation, seed=1, points=6)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_fold_stands_for_rows_of_streams(rule: str, tmp_path: Path) -> None:
    simulation = stream(stream_plan("rlwe", RULES[rule]), tmp_path, 6)
    simulation.run()
    assert not differing(simulation, seed=2, points=4)


BUFFERED = {"name": "buffered", "buffer": 6, "minimum": 3, "max_staleness": 4, "deadline": 30.0}
LOCKSTEP = {"name": "ssp", "slack": 0, "minimum": 3, "deadline": 40.0}
VERSIONS = 400
"""More than it takes to find an offender: sets are drawn anew for every version."""


def begun(folder: Path, rule: dict[str, Any], count: int, versions: int = VERSIONS) -> Simulation:
    """Version 1 is made, and from now on client-02 spoils whatever it is in."""
    simulation = stream(stream_plan("rlwe", rule, versions=versions), folder, count)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    spoils(simulation, "client-02", times=999)
    return simulation


def group_of(simulation: Simulation) -> Any:
    return simulation.coordinator.federation.groups["all"]


def stands(simulation: Simulation, phase: Phase = Phase.COLLECTING) -> Any:
    group = group_of(simulation)
    simulation.run(lambda: bool(group.suspicion.chosen) and group.phase is phase)
    return group


def found(simulation: Simulation) -> None:
    """The run goes on without the offender and with everybody else."""
    federation, group = simulation.coordinator.federation, group_of(simulation)
    simulation.run(lambda: bool(federation.isolated))
    assert set(federation.isolated) == {"client-02"}
    without = group.version + 2
    simulation.run(lambda: group.version == without)
    assert group.version == without
    assert set(federation.included) >= federation.members.keys() - {"client-02"}
    holders_allow_all(simulation, 3)


def test_a_cohort_that_cannot_be_cut_is_tried_three_times(tmp_path: Path) -> None:
    """Five of six stood in it: then nobody waits for a version that never comes."""
    simulation = begun(tmp_path, {**BUFFERED, "buffer": 5}, 6)
    simulation.run()
    federation = simulation.coordinator.federation
    burnt = cohorts(simulation)[-3:]
    out = sorted(clients_of(burnt[0]))
    assert [clients_of(cohort) for cohort in burnt] == [set(out)] * 3
    start = f"too few clients are left for version {burnt[0].version} of all: "
    assert federation.finished.startswith(start)
    assert federation.finished.endswith(
        f"; no other set of clients may make this version; suspected: {', '.join(out)}"
    )
    assert federation.checkpoints[-1].complete
    holders_allow_all(simulation, 3)
    received = journalled(simulation, Submit)
    assert {record.receipt.id for record in received} == set(federation.fates)


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
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.RoundGivenUp)))
    return str(journalled(simulation, coordinator_records.RoundGivenUp)[0].reason)


@pytest.mark.slow
def test_others_have_a_deadline_to_follow_and_then_a_set_does(tmp_path: Path) -> None:
    """Three stood outside, as many as are needed; one of them is silent."""
    rule = {**BUFFERED, "deadline": 50.0}
    simulation = begun(tmp_path, rule, 9)
    group = group_of(simulation)
    simulation.run(lambda: bool(group.sitting_out))
    others = sorted(simulation.coordinator.federation.members.keys() - group.sitting_out)
    assert len(others) == 3
    for client in others[:1]:
        machine: Any = simulation.parties[client].machine
        machine._go = lambda now, step: None
    burnt_at, version = simulation.loop.now(), group.version
    stands(simulation)
    assert simulation.loop.now() == pytest.approx(burnt_at + 50.0)
    simulation.run(lambda: group.version > version)
    holders_allow_all(simulation, 3)
    simulation.run(lambda: bool(simulation.coordinator.federation.isolated))
    assert set(simulation.coordinator.federation.isolated) == {"client-02"}


@pytest.mark.parametrize("older", [False, True])
def test_who_lost_its_update_is_in_no_set(older: bool, tmp_path: Path) -> None:
    """Whether it could train from that version again or not: it has sent one update from it."""
    simulation = begun(tmp_path, {**SSP, "minimum": 3} if older else LOCKSTEP, 6, versions=12)
    group = stands(simulation)
    behind = {c for c in group.invited if group.places[c].version < group.version}
    lost = min(behind if older else group.invited - behind)
    simulation.kill(lost)
    simulation.start(lost)
    assert f"not {lost}; nothing was opened" in given_up(simulation)
    (declined,) = journalled(simulation, coordinator_records.MemberDeclined)
    assert (declined.client, declined.reason) == (lost, "what it sent is not here any more")
    assert lost not in group.places
    simulation.run()
    holders_allow_all(simulation, 3)


@pytest.mark.slow
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
    found(simulation)


def test_only_the_same_update_is_taken_and_only_once(tmp_path: Path) -> None:
    simulation = begun(tmp_path, SSP | {"minimum": 3}, 6)
    group = stands(simulation)
    received = journalled(simulation, Submit)
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
    with pytest.raises(WrongVersion, match="its base is no version 0 of all"):
        sends(client, base=bytes(32))
    sends(client)
    with pytest.raises(Conflict, match="has contributed to version 2 already"):
        sends(client, id=dataclasses.replace(place.id, sequence=place.id.sequence + 51))
    outside = min(set(group.places) - group.invited)
    with pytest.raises(WrongVersion, match=r"asked was update|was not asked for an"):
        sends(outside)


def test_the_same_integers_are_sealed_under_another_key(tmp_path: Path) -> None:
    simulation = stream(stream_plan("rlwe", LOCKSTEP), tmp_path, 6)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    party: Any = simulation.parties["client-01"]
    machine, worker = party.machine, party.worker
    simulation.run(lambda: bool(machine._out.moving.keys() & machine._out.sealed.keys()))
    (id,) = machine._out.moving
    old = machine._out.sealed[id]
    (new,) = worker.work(Reseal(old.receipt, old.headers, 77)).updates
    pinned = machine.pinned
    kind = cipher(pinned.plan.cipher_parameters)

    def opened(headers: Sequence[BlockHeader]) -> list[Any]:
        key, _ = worker._sealer._kept[headers[0].key]
        opener, adder, found = kind.opener(pinned.place("all"), key), kind.adder(), []
        for header in headers:
            slots = pinned.layout.group("all").slots(header.block)
            sums = adder.zero(slots)
            adder.add(sums, worker.fetch(header.key), 1)
            found.append(opener.open(header.block, adder.total(sums), slots).tolist())
        return found

    assert opened(old.headers) == opened(new.headers)
    assert {h.digest for h in old.headers}.isdisjoint(h.digest for h in new.headers)
    assert set(old.receipt.commitments).isdisjoint(new.receipt.commitments)
    assert old.receipt.correction != new.receipt.correction
    assert new.receipt.id == dataclasses.replace(id, sequence=77)
    kept = ("version", "base", "step", "charge", "release", "unsafe", "magnitude", "size")
    assert all(getattr(old.receipt, name) == getattr(new.receipt, name) for name in kept)
    worker.work(Prune((old.headers[0].key,)))
    with pytest.raises(InternalError, match=f"the key of {id} is not here any more"):
        worker.work(Reseal(old.receipt, old.headers, 78))


FAST, SLOW = ("c0", "c1", "c2"), ("c3", "c4", "c5")


def uneven(offenders: set[str], gone: str = "") -> CommitteeWorld:
    """c0 spoils a cohort that is not cut, for FAST weigh 2 and SLOW 1, who were behind.

    `gone` crashed after it had sent, and has the key of that no more.
    """
    rule = {"name": "buffered", "buffer": 6, "minimum": 3, "max_staleness": 3, "power": 1.0}
    world = CommitteeWorld(plan_by_rote({**rule, "deadline": 50.0}, "rlwe"), offenders)
    world.found()
    world.join("c5")
    play(world, *FAST)
    world.wait(50.0)
    play(world)
    assert world.group().version == 1
    offenders.add("c0")
    play(world, *FAST)
    play(world, *SLOW[:2], behind=1)
    if gone:
        world.crash(gone)
    play(world, *SLOW[2:], behind=1)
    return world


def play(world: CommitteeWorld, *clients: str, behind: int = 0) -> None:
    world.send(*(client for client in world.ready() if client in clients), behind=behind)


def burnt_and_back(world: CommitteeWorld) -> tuple[list[Any], list[Any]]:
    """The cohorts that were burnt, and those who returned."""
    closed = [record.cohort for record in world.journalled(coordinator_records.CohortClosed)]
    back = world.journalled(coordinator_records.MembersReturned)
    return [cohort for cohort in closed if cohort not in world.made], back


def test_a_cohort_of_uneven_weights_is_followed_by_those_who_were_behind() -> None:
    """Its halves would single members out: who was behind may train from the newest version."""
    world = uneven(set())
    burnt, (back,) = burnt_and_back(world)
    assert len(burnt) == 3, "it is tried three times, whole"
    for cohort in burnt:
        weights = {member.id.client: member.weight for member in cohort.members}
        assert weights == dict.fromkeys(FAST, 2) | dict.fromkeys(SLOW, 1)
    assert back.clients == SLOW
    assert back.reason == "no other set of clients may make this version"
    assert LogLines().line(back) == f"all: c3, c4, c5 return: {back.reason}"
    play(world, *SLOW)
    world.wait(50.0)
    play(world)
    assert world.group().version == 2
    assert world.group().suspicion.suspect_sets == {frozenset(FAST)}
    while not world.federation.isolated:
        play(world, *FAST, *SLOW)
        world.wait(50.0)
        for cohort in world.made[2:]:
            assert {member.weight for member in cohort.members} == {1}, "while some are suspected"
    assert set(world.federation.isolated) == {"c0"}
    assert world.federation.ending == ""


def test_who_was_behind_waits_a_deadline_for_who_is_needed_for_a_set() -> None:
    world = uneven(set(), gone="c1")
    assert world.group().reason == "5 of 6 have arrived; waits for c1"
    world.wait(50.0)
    assert world.group().reason == "waits for c1, without whom no set may be tried"
    world.wait(49.0)
    assert burnt_and_back(world)[1] == []
    world.wait(1.0)
    (back,) = burnt_and_back(world)[1]
    assert (back.clients, back.reason) == (SLOW, "waits for c1, without whom no set may be tried")
    play(world, *SLOW)
    world.wait(50.0)
    play(world)
    assert world.group().version == 2


def test_who_has_the_key_no_more_was_behind_all_the_same() -> None:
    """It may not send that update again, and trains from the newest version as others do."""
    world = uneven(set(), gone="c3")
    world.join("c3")
    play(world)
    burnt, (back,) = burnt_and_back(world)
    assert (len(burnt), back.clients) == (1, SLOW)
    assert world.group().lost == {"c3"}
    play(world, *SLOW)
    world.wait(50.0)
    play(world)
    assert world.group().version == 2


def test_a_lost_key_says_nothing_of_a_later_update() -> None:
    offenders: set[str] = set()
    world = uneven(offenders, gone="c3")
    world.join("c3")
    play(world)
    offenders.add("c3")
    play(world, *SLOW)
    world.wait(50.0)
    play(world)
    assert world.group().lost == frozenset()
    rounds = world.journalled(coordinator_records.RoundOpened)
    assert rounds[-1].invited == SLOW
