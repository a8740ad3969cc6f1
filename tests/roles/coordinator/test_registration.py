"""Parties that remember more, or less, than others: no party goes on from an older journal."""

import dataclasses

import pytest

from secureps.errors import DamagedStore, Malformed, NotReady, Refused, WrongRun
from secureps.messages import coordinator_records, member_records, requests
from secureps.messages.records import REIGN
from secureps.messages.run import COORDINATOR, GroupVersion
from secureps.messages.submission import Cohort, CohortName, cohort_digest
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import Answer, Answered, Step
from tests.kits.member_kit import Client
from tests.kits.roles_kit import (
    ADDRESSES,
    HOLDER,
    JOIN,
    SCHEMA,
    SHARDS,
    World,
    answers,
    collecting,
    halts,
    holding,
    make_placement,
    make_plan,
    orders_of,
    says,
)

OTHER = bytes([9]) * 32


def register(party: str, run: bytes = b"", **reached: int) -> requests.Register:
    versions = tuple(GroupVersion(group, version) for group, version in reached.items())
    return requests.Register(party, "x:1", 1.0, 1, run, versions)


def refusal(step: Step) -> str:
    """The refusal of the registering party, which must ask again."""
    (answer,) = answers(step)
    assert isinstance(answer, NotReady)
    assert answer.retry_after is not None
    return str(answer)


def why(world: World) -> str:
    """The reason of the first group, as a status shows it."""
    return world.status().groups[0].reason


@pytest.mark.parametrize("party", [*SHARDS, HOLDER])
def test_nothing_is_founded_while_a_server_holds_a_run(party: str) -> None:
    """An unmounted volume looks like a new folder, and the servers' state cannot be made again."""
    world = World(make_plan("bfv"))
    step = world.give(party, register(party, OTHER))
    assert "is a volume missing?" in refusal(step)
    assert says(step) == [refusal(step)]
    assert "another state folder, and keep the one that it has" in says(step)[0]
    assert says(world.give(party, register(party, OTHER))) == []
    assert f"{party} cannot be taken as it is: the coordinator's log says why" in why(world)
    assert why(world).count("cannot be taken") == 1
    for server in {*SHARDS, HOLDER} - {party}:
        world.give(server, register(server))
    with pytest.raises(NotReady):
        world.give("c0", JOIN)
    assert world.federation.pinned is None
    world.give(party, register(party))
    assert "cannot be taken" not in why(world)
    world.give("c0", JOIN)
    assert world.federation.pinned is not None


def roster_clients(world: World) -> list[str]:
    return sorted(world.coordinator._settings.roster.names("client"))


def test_a_run_from_a_file_waits_too() -> None:
    world = World(make_plan("plain"), initial=SCHEMA)
    for client in roster_clients(world):
        world.give(client, requests.Join(client, SCHEMA, (), OTHER))
    for shard in SHARDS:
        world.give(shard, register(shard))
    assert world.federation.pinned is None
    world.now += world.plan.section.lease
    world.give(SHARDS[0], register(SHARDS[0]))
    assert world.federation.pinned is not None


def test_clients_that_hold_a_run_found_none() -> None:
    """The shards may have lost their folders with the coordinator's, and `plain` has no holders."""
    world = World(make_plan("plain"))
    for shard in SHARDS:
        world.give(shard, register(shard))
    everybody = roster_clients(world)
    half = everybody[: (len(everybody) + 1) // 2]
    for client in half:
        text = refusal(world.give(client, requests.Join(client, SCHEMA, (), OTHER)))
        assert "holds no run: is a volume missing?" in text
    with pytest.raises(NotReady, match="take part in one already"):
        world.give(everybody[-1], requests.Join(everybody[-1], SCHEMA))
    world.now += world.plan.section.lease
    world.give(everybody[-1], requests.Join(everybody[-1], SCHEMA))
    assert world.federation.pinned is not None


def test_one_client_that_says_so_stops_nobody() -> None:
    world = World(make_plan("plain"))
    for shard in SHARDS:
        world.give(shard, register(shard))
    refusal(world.give("c0", dataclasses.replace(JOIN, run=OTHER)))
    world.give("c1", requests.Join("c1", SCHEMA))
    assert world.federation.pinned is not None


def test_a_server_of_another_run_is_told_to_keep_its_folder() -> None:
    world = collecting()
    for party in (*SHARDS, HOLDER):
        with pytest.raises(WrongRun, match="one of the two has another run's state folder"):
            world.give(party, register(party, OTHER))
        world.give(party, register(party, world.run))


def test_a_coordinator_behind_its_shards_ends() -> None:
    world = collecting()
    older = World(make_plan("bfv"), journal=tuple(world.journal))
    assert older.group().version == 0
    step = older.give("shard-a", register("shard-a", older.run, all=1))
    (halt,) = halts(step)
    assert halt.error is DamagedStore
    assert halt.reason == refusal(step)
    assert "journal ends at version 0 of all, and shard-a has committed 1" in halt.reason
    assert "last checkpoint" in halt.reason
    fine = older.give("shard-a", register("shard-a", older.run, all=0))
    assert halts(fine) == []


def summed(older: World, cohort: Cohort) -> Step:
    """The answer to a shard that registers with sums of a cohort."""
    name = CohortName("all", cohort.number, cohort_digest(older.run, cohort))
    held = dataclasses.replace(register("shard-a", older.run), held=(name,))
    return older.give("shard-a", held)


def test_a_coordinator_that_forgot_a_cohort_of_its_shards_ends() -> None:
    world = collecting()
    forgot = World(make_plan("bfv"), journal=tuple(world.journal))
    world = holding()
    cohort = world.group().cohort
    assert cohort is not None
    step = summed(forgot, cohort)
    (halt,) = halts(step)
    assert halt.error is DamagedStore
    assert halt.reason == refusal(step)
    said = (
        "the coordinator's journal ends at cohort -1 of all, and shard-a has the sums of cohort 0: "
    )
    assert halt.reason.startswith(said)
    assert halts(summed(world, cohort)) == []


def test_a_coordinator_that_closed_a_cohort_once_more_ends() -> None:
    """The cohort may be in the making, or burnt."""
    world = holding()
    cohort = world.group().cohort
    assert cohort is not None
    other = dataclasses.replace(cohort, members=cohort.members[:1])
    (halt,) = halts(summed(world, other))
    assert halt.error is DamagedStore
    said = "the coordinator's journal has another cohort 0 of all than the one that shard-a has "
    assert halt.reason.startswith(said)
    world.group().spoilt, world.group().making = (cohort,), None
    world.group().phase = Phase.WAITING
    assert halts(summed(world, other))
    assert halts(summed(world, cohort)) == []


def test_a_shard_names_one_cohort_of_a_group() -> None:
    """The digests of some thousand cohorts took a coordinator an hour."""
    world = holding()
    cohort = world.group().cohort
    assert cohort is not None
    name = CohortName("all", cohort.number, cohort_digest(world.run, cohort))
    many = dataclasses.replace(register("shard-a", world.run), held=(name, name))
    with pytest.raises(Malformed, match="shard-a: a group has one newest cohort"):
        world.give("shard-a", many)


def test_a_coordinator_that_forgot_where_blocks_lie_ends() -> None:
    world = collecting()
    for epoch, ends in ((0, False), (1, False), (2, True)):
        told = dataclasses.replace(register("shard-a", world.run), epoch=epoch)
        ended = halts(world.give("shard-a", told))
        assert bool(ended) is ends
    (halt,) = ended
    assert halt.error is DamagedStore
    assert halt.reason.startswith(
        "the coordinator's journal ends at placement 1 of the blocks, and "
    )


def test_a_holder_that_opened_more_than_is_known_counts_as_away() -> None:
    """A single holder may lie, so it cannot end the coordinator."""
    world = collecting()
    step = world.give(HOLDER, register(HOLDER, world.run, all=0))
    text = refusal(step)
    assert "has opened cohort 0 of all, and the coordinator's journal ends at cohort -1" in text
    assert says(step) == [text]
    again = World(make_plan("bfv"), journal=tuple(world.journal))
    again.give(HOLDER, register(HOLDER, again.run, all=7, nonsense=3))
    assert HOLDER not in again.coordinator._sessions.holders
    again.give(HOLDER, register(HOLDER, again.run))
    assert HOLDER in again.coordinator._sessions.holders


def test_a_holder_that_forgot_what_it_opened_is_refused() -> None:
    """A holder that has opened nothing has nothing to lose."""
    world = holding()
    empty = register(HOLDER)
    world.give(HOLDER, empty)
    world.pump(3)
    assert world.group().phase is Phase.PREPARING
    for each in (world, World(make_plan("bfv"), journal=tuple(world.journal))):
        with pytest.raises(Refused, match="comes with an empty ledger to a run whose sums"):
            each.give(HOLDER, empty)
    world.give(HOLDER, register(HOLDER, world.run, all=0))
    world.federation.answered[HOLDER, "all"] = 4
    for behind in (0, 3):
        text = f"ends at cohort {behind} of all, and it has answered for cohort 4"
        with pytest.raises(Refused, match=text):
            world.give(HOLDER, register(HOLDER, world.run, all=behind))


def welcomed(client: Client, **next: int) -> Step:
    versions = tuple(GroupVersion(group, sequence) for group, sequence in next.items())
    welcome = requests.Welcome(client.run, make_placement(client.plan), ADDRESSES, versions)
    return client.give(COORDINATOR, Answered(requests.Join("c0", SCHEMA), welcome))


def test_a_client_that_forgot_what_it_sealed_ends() -> None:
    """It would seal another update under a key that was used."""
    client = Client()
    welcomed(client, all=0)
    before = client.restarted()
    client.ready(0)
    client.contributed(client.sealed(0, 0))
    assert halts(welcomed(client, all=1)) == []
    assert halts(welcomed(client.restarted(), all=1)) == []
    (halt,) = halts(welcomed(before, all=1))
    assert halt.error is DamagedStore
    assert "ends before update 0 of all, and it has sent all before 1" in halt.reason


def test_a_client_without_its_state_begins_after_what_was_sealed() -> None:
    client = Client()
    step = welcomed(client, all=3)
    begun = member_records.SequencesBegun((GroupVersion("all", 3),))
    assert step.records[1:] == [begun]
    assert halts(welcomed(client.restarted(), all=3)) == []
    (halt,) = halts(welcomed(client.restarted(), all=4))
    assert halt.error is DamagedStore
    client.ready(0)
    step = client.contributed(client.sealed(0, 3))
    assert [type(record) for record in step.records] == [member_records.Sealed]


def with_a_spare() -> World:
    """A run of one shard, and another shard that has come since."""
    world = World(make_plan(shards=1))
    world.give("shard-a", register("shard-a"))
    world.give("c0", JOIN)
    return world


def test_a_shard_that_comes_to_a_run_is_here_and_holds_nothing() -> None:
    world = with_a_spare()
    step = world.give("shard-b", register("shard-b"))
    assert step.effects[-1] == Answer(requests.Noted())
    assert [type(r) for r in step.records][:1] == [coordinator_records.ShardLocated]
    assert says(step) == [
        "shard-b is here, and holds no blocks: secureps shards add shard-b moves some to it"
    ]
    assert says(world.give("shard-b", register("shard-b"))) == []
    assert world.federation.pinned is not None
    assert world.federation.pinned.placement.shards == ("shard-a",)
    assert "shard-b" not in why(world)


def test_a_spare_shard_moves_and_nobody_need_know() -> None:
    world = with_a_spare()
    world.give("c0", requests.Subscribe("c0", ()))
    world.give("shard-b", register("shard-b"))
    moved = dataclasses.replace(register("shard-b"), advertise="y:2")
    assert orders_of(world.give("shard-b", moved), "c0") == []
    assert world.federation.shards["shard-b"].advertise == "y:2"


def test_a_spare_shard_of_another_run_ends_itself_alone() -> None:
    """It obeyed another run's coordinator, which does not matter here."""
    world = with_a_spare()
    foreign = dataclasses.replace(register("shard-b", OTHER), seen=REIGN * 3 + 1)
    with pytest.raises(WrongRun, match="has another run's state folder"):
        world.give("shard-b", foreign)
    assert world.give("shard-b", register("shard-b")).effects[-1] == Answer(requests.Noted())
