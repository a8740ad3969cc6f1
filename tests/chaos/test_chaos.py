"""Survival: random faults of every kind break no promise (`make chaos` plays 1,000 seeds)."""

import os
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import Unreachable
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.coordinator_records import (
    GroupResigned,
    PlacementMoved,
    ShardLeft,
    VersionCommitted,
)
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.messages.submission import UPDATE, BlockHeader, SubmissionId
from secureps.policy.cohorts import suspicion
from secureps.roles.coordinator import commit, membership
from secureps.roles.coordinator.group import TRANSITIONS, GroupState, Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.transaction import Sessions
from secureps.roles.machine import Answer, Step
from secureps.roles.member.member import LEFT
from secureps.roles.shard.state import ShardState
from secureps.service.executor import Executor
from secureps.store.journal import MemoryJournal
from tests.chaos import report
from tests.chaos.check import complaints, of_kind
from tests.chaos.ends import WHOLE
from tests.chaos.network import ChaosNetwork
from tests.chaos.plans import plan_of
from tests.chaos.play import play, quiet
from tests.chaos.real import schedule as real
from tests.chaos.schedule import (
    EVERY,
    OPERATIONS,
    SETTINGS,
    WIPED,
    Fault,
    Setting,
    faults_of,
    parsed,
    parties_of,
    setting_of,
)
from tests.chaos.takeover import NOTICED
from tests.chaos.world import World
from tests.conftest import AS_DEPLOYED

FEW = (2, 4, 9, 14, 16, 36)
"""Seeds of several rules, all ciphers, both units of privacy, and codecs."""


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals wait for the disk, as they do where no test runs: here power fails."""
    monkeypatch.setattr("secureps.store.journal.SYNCHRONOUS", AS_DEPLOYED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", FEW)
def test_no_promise_is_broken(seed: int) -> None:
    outcome = play(seed, faults_of(seed))
    assert not outcome.complaints, outcome.replay


EXAMPLES = (1132, 30143, 30025, 30002, 30057, 30068, 30084, 30103)
"""Seeds in which all happens that may happen to a group, but that a row-block is given up."""


@pytest.mark.slow
def test_every_transition_of_a_group_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    happened, next_phases = set[str](), GroupState.next_phases

    def noted(group: GroupState, record: object) -> Set[Phase]:
        happened.update(
            row.what
            for row in TRANSITIONS
            if type(record) in row.records and group.phase in row.phases
            if row.rounds in (None, group.rounds)
        )
        return next_phases(group, record)

    monkeypatch.setattr(GroupState, "next_phases", noted)
    for seed in EXAMPLES:
        assert not play(seed, faults_of(seed)).complaints
    block = CoordinatorState({"row": GroupState("row", 2, phase=Phase.WAITING)})
    block.apply(0.0, GroupResigned("row", "too few touch it"))
    assert block.groups["row"].resigned == "too few touch it: it stays at 2"
    assert [row.what for row in TRANSITIONS if row.what not in happened] == []


@pytest.mark.slow
def test_a_seed_plays_the_same_again() -> None:
    first, again = (play(11, faults_of(11)) for _ in range(2))
    assert (first.ended, first.kinds) == (again.ended, again.kinds)


PERIOD = 23
"""Of so many operations on its disk each party loses its power in one."""


@pytest.mark.parametrize(("seed", "begins"), [(0, (1, 13)), (1, (5, 17)), (13, (9, 21))])
def test_power_that_fails_in_any_write_leaves_the_same_model(
    seed: int, begins: tuple[int, ...]
) -> None:
    """In the clear, under rlwe and under bfv; no two runs hit the same operations."""
    parties = parties_of(setting_of(seed))
    for first in begins:
        writes = range(first, OPERATIONS[-1], PERIOD)
        faults = [Fault("torn", party, at, 0.5) for party in parties for at in writes]
        assert not play(seed, faults).complaints, first


FOLDER = "waits for the coordinator's folder"
OLDER = "it is an older copy; bring back the newest one"
GONE = "its journal is gone or an older copy"

ENDS: dict[str, tuple[int, str]] = {
    "wiped:coordinator@1400+2": (1, FOLDER),
    "wiped:coordinator@1166+6,wiped:shard-0@1166+6": (1, FOLDER),
    "wiped:coordinator@1365+7.3,added:shard-2@308,removed:shard-2@843": (30188, FOLDER),
    "wiped:shard-0@238+6": (1, GONE),  # before there is a version
    "wiped:shard-0@238+6,wiped:shard-1@238+6": (1, GONE),
    "wiped:holder-0@1166+6,wiped:holder-1@1166+6": (1, "examined by key holders"),
    "wiped:holder-0@1166+2": (13, "the key holders open"),
    "wiped:holder-2@1166+6,flaws:client-02>holder-1@2": (1, "examined by key holders: holder-2"),
    "older:client-03@900+3": (16, "this client's state folder ends before update"),
    "older:coordinator@700+7": (1, OLDER),
    # two leave, and the three that a cohort needs are not there without a lost one
    "part:client-00>shard-0@793+34.3,torn:shard-0@31+4,older:client-01@757+4.1,"
    "quits:client-04@1063,quits:client-00@1585": (100116, "the minimum cohort is 3"),
    # one leaves, and no round opens without a lost one, though it might close
    "older:client-04@603+7,quits:client-01@1421": (300639, "waits for members: 3 of 4 are live"),
    # a cohort was burnt, and a lost one stood in it
    "spoil:client-03@1,torn:client-03@13+7.1,kill:client-01@470+7.2,older:client-01@1066+1.8": (
        400476,
        "waits for client-01, without whom no set may be tried",
    ),
    # what a spoilt cohort's two other key holders answer leaves nothing to compare
    "spoil:client-03@2,wiped:holder-1@1586+1.8,stands:coordinator@993+30.2": (
        400639,
        "no 2 of 2 answers open it; waits for holder-1",
    ),
    "spoil:client-03@2,pause:holder-2@953+32.2,older:coordinator@1145+5.2,"
    "stands:coordinator@174+53.1,quits:client-03@1222": (
        5107,
        f"has the sums of cohort 0: {OLDER}",
    ),
    "torn:coordinator@22+0.1,older:coordinator@827+7.4,stands:coordinator@1318+21.6,"
    "drained:shard-0@721": (5298, "goes by placement 2: it is an older copy"),
    # another update may not leave in place of one that is lost, and the minimum is everybody
    "wiped:client-03@1411+1.5,wiped:shard-0@1411+1.5": (
        1386,
        "another update of version 2 of all is in the ledger",
    ),
    # with what those who left had sent there would be a cohort, and the rule asks neither of two
    "power:shard-1@394+3.1,kill:coordinator@1114+6.3,part:client-02>coordinator@45+9,"
    "revoked:client-00@338+6.5,quits:client-01@976,quits:client-04@617": (
        152,
        "too few clients are left for version 2 of all",
    ),
    # of the noise in a sum one disk is lost, and the file on the other is damaged
    "rots:shard-1@1056,rots:shard-1@1057,wiped:shard-0@1058+2": (
        1685,
        "shard-0 cannot use the sum: the noise of block 0 is lost, at shard-1 too",
    ),
    # who is sealed for two key holders that are lost goes on, or ends
    "replaced:holder-0@569+7.2,replaced:holder-2@744+7.2,gone:coordinator@691": (367, ""),
}
"""Losses after which a run may have no end, of which seed's plan, and what an operator reads."""


@pytest.mark.parametrize("faults", ENDS)
def test_a_run_that_cannot_end_says_why_and_leaves_what_a_new_one_begins_from(faults: str) -> None:
    seed, said = ENDS[faults]
    outcome = play(seed, parsed(faults))
    assert not outcome.complaints, outcome.replay
    assert said in outcome.ended
    assert not outcome.ended.startswith("no end")


LEFT_EARLY = (
    300599,
    "dies:shard-0@7+5.4,wiped:shard-0@1399+6.8,stands:coordinator@1096+15.2,stops:client-03@1127",
)
"""A client has left, and a shard loses what it had sent for the next version."""

WELL: tuple[tuple[int, str], ...] = (
    # two parties at one event, and a third in the middle of a write
    (0, "power:coordinator@900+2,power:shard-0@900+3,torn:client-01@9+1"),
    # a client goes on without its disk, a holder is left out, a shard is told what it had
    (1, "wiped:client-02@300+1"),
    (1, "wiped:holder-1@1166+6"),
    (1, "wiped:shard-0@1166+6"),
    # a founding model that a shard and its client both lost is made anew
    (1231, "wiped:client-01@129+7.9,wiped:shard-0@129+7.9"),
    # a shard had said that it was prepared while the coordinator was away, which counted on it
    (791, "dies:coordinator@85+4.6,wiped:shard-0@1737+3.9"),
    # a coordinator whose folder was not mounted goes on with it
    *((seed, f"away:coordinator@{at}+5") for seed, at in ((0, 300), (1, 770), (13, 1240))),
    # one key holder finds a flaw, and whoever was to open it in its place is gone
    (841, "replaced:holder-0@190+6,flaws:client-01>holder-1@2"),
    # a frozen part, a bound that is agreed on, a client that judges, noise that shards add
    *(
        (seed, "kill:shard-0@700+1,kill:client-04@900+1,kill:coordinator@1100+1")
        for seed in (84, 147, 171, 182)
    ),
    # what a client keeps of its updates, also under noise, and where they are sealed anew
    (18, ""),
    (16, "spoil:client-03@1"),
    (18, "spoil:client-03@1"),
    (8, "spoil:client-02@1"),
    # an update that comes too late is dropped, and leaves what was kept before it
    (17, "part:client-02>shard-0@500+30"),
    # a client that has left is started again, since a shard lost what it had sent
    LEFT_EARLY,
    # a key holder hears which day it is while updates are sealed for the key before its newest
    (400098, "kill:holder-0@691+5.1,renewed:coordinator@2050+3.9"),
    # a client that had sent is left out and taken back, and too few others are there
    (
        400846,
        "lie:holder-2@2,part:holder-0>coordinator@806+18.7,revoked:client-00@1274+2,"
        "omits:client-01@896+3.9,frozen:coordinator@1543+34.4,comes:client-05@1354+5.8",
    ),
    # a client is back before the coordinator, which was away, hears that it rested
    (1514, "frozen:coordinator@49+3.5,rests:client-01@387+18.64,kill:shard-0@617+17.6"),
    # a client that was stopped hears that the run failed when it goes on again
    (0, "quits:client-01@500,pause:client-03@515+15,kill:coordinator@735+3"),
    # shards come and go: with copies of each block, a codec, without rounds, a client away
    (0, "added:shard-2@500,removed:shard-0@700"),
    (0, "removed:shard-0@500,added:shard-0@800"),
    (
        300888,
        "torn:client-00@9+3.7,jump:coordinator@125+19.2,kill:client-03@419+2.3,"
        "removed:shard-0@352,added:shard-0@473",
    ),
    (1, "added:shard-2@500,drained:shard-0@700,added:shard-0@1000"),
    (45, "added:shard-2@400,kill:shard-1@800+30,removed:shard-1@805"),
    (16, "added:shard-2@500,removed:shard-0@900,kill:shard-2@950+2,gone:coordinator@1000"),
    (8, "added:shard-2@510,removed:shard-0@710"),
    (1035, "kill:client-02@1827+6.6,added:shard-2@1985,drained:shard-0@2415"),
    (42, "added:shard-2@650,wiped:shard-1@700+1,drained:shard-0@1100,kill:coordinator@1150+1"),
    (43, "added:shard-2@650,removed:shard-0@1300,kill:coordinator@1350+1"),
    # a standby takes over when a move is due, when blocks are copied, are kept, and afterwards
    *((0, f"removed:shard-1@700,gone:coordinator@{at}") for at in (702, 750, 845, 875)),
    *((1, f"added:shard-2@700,gone:coordinator@{at}") for at in (800, 880)),
    # a block of a client that was revoked is passed on to no shard for ever
    (1065, "revoked:client-04@556+0.8,added:shard-2@624"),
    # a shard asks again that another one, by an older roster, does not know yet
    (
        3,
        "revoked:client-03@251+3.4,saves:coordinator@1885+55.4,gone:coordinator@1819,"
        "rests:client-01@743+55.5,added:shard-2@1927",
    ),
    # a key holder that was away when a shard came hears of it from the standby
    (
        489,
        "part:holder-0>coordinator@455+22.1,revoked:client-01@531+5.5,"
        "part:standby>holder-1@1221+39.6,gone:coordinator@1221,added:shard-2@210",
    ),
    # a standby takes over
    (1, "gone:coordinator@400"),
    (1, "frozen:coordinator@400+20"),
    (1, "commanded:coordinator@400"),
    (1, "frozen:coordinator@140+13.5,kill:standby@217+3.9,part:coordinator>standby@217+13.5"),
    (1, "part:coordinator>standby@300+20,gone:coordinator@900"),
    (1, "frozen:coordinator@400+20,kill:standby@900+2"),
    (42, "wiped:shard-1@900+30,gone:coordinator@901"),
    # before there is a run it cannot, and the coordinator begins with an empty folder
    (9073, "gone:coordinator@95"),
    # it goes on where the coordinator's clock was, which had leapt ahead: updates keep their order
    (
        2147,
        "jump:coordinator@1543+115.6,part:client-04>shard-0@384+37.9,"
        "part:coordinator>standby@1359+7.3,gone:coordinator@1581",
    ),
    # of two coordinators that divide the servers one goes on
    (321, "pause:shard-1@99+32.9,frozen:coordinator@660+15.4"),
    (
        165,
        "power:shard-0@1262+2.6,replaced:holder-2@1892+3.9,power:standby@1774+7.4,"
        "frozen:coordinator@102+26.2,comes:client-05@1170+2.7,removed:shard-0@2084",
    ),
    (1108, "power:coordinator@712+5.4,frozen:coordinator@1945+17.9"),
    (306, "power:coordinator@473+4.6,frozen:coordinator@608+38"),
    (575, "torn:coordinator@15+4.1,commanded:coordinator@1585"),
    (1200226, "commanded:coordinator@958,removed:shard-1@728"),
    (1200226, "frozen:coordinator@958+20,removed:shard-1@728"),
    (
        1017,
        "torn:client-02@5+3.9,part:shard-1>coordinator@826+15.5,revoked:client-00@841+5.5,"
        "kill:standby@1088+3.1,commanded:coordinator@748,part:coordinator>standby@748+36.2",
    ),
)
"""Faults after which a run makes all its versions, under which seed's plan."""


@pytest.mark.parametrize(("seed", "faults"), WELL)
def test_a_run_goes_on_to_its_end(seed: int, faults: str) -> None:
    outcome = play(seed, parsed(faults))
    assert not outcome.complaints, outcome.replay
    assert outcome.ended.startswith(WHOLE), outcome.replay


def test_a_holder_whose_envelope_does_not_open_refuses_and_the_others_open() -> None:
    """It says so too late where nobody can be spared, and what opens is not its to say."""
    outcome = play(1, parsed("flaws:client-01>holder-2@1"))
    assert not outcome.complaints
    assert outcome.ended.startswith(WHOLE)
    assert outcome.kinds["coordinator hears OpenRefused"]


CHANGES: dict[str, tuple[int, str]] = {
    "replaced:holder-1@800+1,replaced:holder-1@1000+1": (8, WHOLE),
    "replaced:holder-0@800+1,replaced:holder-1@820+1": (1, "holder-0, holder-1 are on the"),
    "replaced:holder-0@1100+1,replaced:holder-1@1120+1": (8, WHOLE),
    "replaced:holder-1@800+1,part:client-02>coordinator@800+9": (1, WHOLE),
    "revoked:client-03@700+1": (8, WHOLE),
    "comes:client-05@400+1": (4, WHOLE),
    "renewed:coordinator@700+9": (1, WHOLE),
    # a coordinator that was stopped begins anew after the run has failed under its standby
    "replaced:holder-1@83+2.3,replaced:holder-0@280+2.3,part:standby>client-03@512+16.2,"
    "frozen:coordinator@512+16.2,quits:client-00@715": (
        300805,
        "too few clients are left for version 1 of all",
    ),
}
"""Rosters that change, under which seed's plan, and how the run ends."""


@pytest.mark.parametrize("faults", CHANGES)
def test_a_roster_changes_and_the_run_goes_on_or_says_why_not(faults: str) -> None:
    seed, said = CHANGES[faults]
    outcome = play(seed, parsed(faults))
    assert not outcome.complaints
    assert outcome.ended.startswith(said)
    assert outcome.kinds["coordinator hears KitRead"]
    assert outcome.kinds["coordinator orders Order RosterChanged"]


def test_who_first_takes_part_after_a_shard_came_is_brought_the_current_kit(tmp_path: Path) -> None:
    faults = "power:client-02@40+20,added:shard-2@300"
    world = World(740, setting_of(740), parsed(faults), tmp_path)
    with quiet():
        world.play()
    assert not complaints(world)
    assert world.brought == {"client-02"}
    assert world.coordinator.federation.finished == WHOLE


OWN: dict[str, tuple[int, str, str]] = {
    "rests:client-01@500+20": (0, WHOLE, ""),
    "lowers:client-01@500+0.01": (7, WHOLE, "the budget is 0.01"),
    "rests:client-01@300+3,wiped:client-01@400+6": (3, WHOLE, ""),
    "quits:client-01@600,kill:client-01@620+1": (3, WHOLE, LEFT),
    "stops:client-01@500": (3, WHOLE, "whoever runs this client"),
    "quits:client-01@485,quits:client-02@495,stops:client-04@505,kill:coordinator@541+3": (
        0,
        WHOLE,
        WHOLE,
    ),
    # only the last evaluation is left to do, and too few are left for it
    "stops:client-03@1670": (70142, WHOLE, WHOLE),
    "quits:client-01@500": (0, "too few clients are left for version 2 of all: takes", LEFT),
    # a coordinator whose folder is not mounted cannot be told
    "away:coordinator@1040+4.5,quits:client-01@878,stops:client-00@1388,lowers:client-04@348+0.4": (
        300560,
        "too few clients are left for version 2 of all: takes",
        LEFT,
    ),
}
"""Acts of a data holder, under which seed's plan, and how the run and the client end."""


@pytest.mark.parametrize("faults", OWN)
def test_a_data_holder_acts_on_its_client_and_the_others_go_on(faults: str) -> None:
    seed, said, end = OWN[faults]
    outcome = play(seed, parsed(faults))
    assert not outcome.complaints
    assert outcome.ended.startswith(said)
    assert end in outcome.ends["client-01"]
    assert outcome.kinds[
        "client hears Leave" if faults.startswith("stops") else "client hears OwnAct"
    ]


EXCUSED: dict[str, tuple[int, Callable[[World], None], str]] = {
    "quits:client-01@500": (
        0,
        lambda world: world.data_holders.gone.clear(),
        "the run failed: too few clients are left for version 2 of all: takes part no more",
    ),
    "spoil:client-01@2": (4, lambda world: setattr(world, "faults", ()), "cohort 0 was burnt: "),
    "revoked:client-03@700+1": (
        8,
        lambda world: world.revoked.clear(),
        "client-03 left: client-03 is on the roster no more",
    ),
}
"""What a seed did, under which plan, how a check comes not to know of it, and what it says then."""


@pytest.mark.parametrize("faults", EXCUSED)
def test_an_end_that_nothing_led_to_is_found(faults: str, tmp_path: Path) -> None:
    seed, forget, said = EXCUSED[faults]
    world = World(seed, setting_of(seed), parsed(faults), tmp_path)
    with quiet():
        world.play()
        assert not complaints(world)
        forget(world)
        assert any(found.startswith(said) for found in complaints(world))


def test_a_run_that_waits_for_a_client_that_is_there_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one lost its disk, and the run says how many are there: one less than there are."""
    faults, renew = parsed("older:client-04@603+7"), Sessions.renew
    assert not play(300639, faults).complaints
    monkeypatch.setattr(
        Sessions,
        "renew",
        lambda here, client, until: None if client == "client-01" else renew(here, client, until),
    )
    (found,) = play(300639, faults).complaints
    assert "still wait: " in found
    assert "waits for members: 3 of 4 are live" in found


def test_a_run_that_names_another_client_than_the_lost_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    burnt = (
        "spoil:client-03@1,torn:client-03@13+7.1,kill:client-01@470+7.2,older:client-01@1066+1.8"
    )
    monkeypatch.setattr(suspicion, "named", lambda names: "client-02")
    (found,) = play(400476, parsed(burnt)).complaints
    assert found.endswith("still wait: waits for client-02, without whom no set may be tried")


def test_a_run_that_does_not_say_who_is_to_be_started_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = "a shard lost the sums and blocks of members"
    monkeypatch.setattr(commit, "_describe_awaited", lambda tx, ids: waits)
    seed, faults = LEFT_EARLY
    (found,) = play(seed, parsed(faults)).complaints
    assert found.endswith(f"still wait: {waits}")


def answers_first(executor: Executor, handled: list[tuple[Any, Step]]) -> None:
    """As `Executor._commit`, but answers leave before the journal has anything."""
    for item, step in handled:
        for effect in step.effects:
            if isinstance(effect, Answer) and effect.attach is None:
                executor._settle(item.answer, effect.message)
    COMMIT(executor, handled)


@contextmanager
def not_synced(
    fresh: Path, pieces: Iterable[bytes | memoryview], durable: bool = True
) -> Iterator[None]:
    """As `atomic_file.fresh_file`, but the disk need not have any of it yet."""
    fresh.write_bytes(b"".join(pieces))
    yield


COMMIT = Executor._commit
EARLY = {
    "before the record": ("secureps.service.executor.Executor._commit", answers_first, "journal"),
    "before the journal": ("secureps.store.journal.SYNCHRONOUS", "NORMAL", "journal"),
    "before the bytes": ("secureps.store.spool.fresh_file", not_synced, "durable"),
    "before the name": ("secureps.store.spool.put_in_place", os.replace, "durable"),
}


@pytest.mark.parametrize("fault", EARLY)
def test_whoever_acknowledges_too_early_is_found(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, wrong, said = EARLY[fault]
    monkeypatch.setattr(where, wrong)
    assert any(said in complaint for complaint in play(0, ()).complaints)


def test_a_receipt_that_is_taken_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = parsed("twice:client-01>coordinator:Submit@1")
    assert not play(0, twice).complaints
    monkeypatch.setattr(membership, "_is_known", lambda tx, receipt: False)
    assert not play(0, twice).complaints, "a round takes one of each client"
    monkeypatch.setattr(membership, "_check_asked", lambda tx, group, receipt: None)
    assert play(0, twice).complaints == ("client-01/all/0 was received 2 times",)


def test_a_shard_that_lets_go_of_what_nobody_settled_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While its copy is on its way to another shard: what it was for is still to come."""
    forgotten = list[str]()

    def surplus(state: ShardState, header: BlockHeader) -> tuple[SubmissionId, ...]:
        if forgotten or header.purpose != UPDATE:
            return ()
        forgotten.append(header.key)
        return (SubmissionId(header.author, header.group, header.sequence),)

    assert setting_of(42).replicas == 2
    monkeypatch.setattr(ShardState, "surplus", surplus)
    found = play(42, ()).complaints
    assert [text.partition(" ")[2] for text in found] == [
        f"acknowledged {forgotten[0]} before it was durable"
    ]


def test_every_fault_can_be_written_and_read() -> None:
    faults = [fault for seed in range(400) for fault in faults_of(seed)]
    assert parsed(",".join(map(str, faults))) == tuple(faults)
    assert {fault.kind for fault in faults} == EVERY
    wiped = [fault.who for fault in faults if fault.kind == WIPED]
    assert {who.rpartition("-")[0] for who in wiped} == {"", "shard", "holder", "client"}
    assert STANDBY in wiped
    assert parsed("kill:shard-0@120+2.5") == (Fault("kill", "shard-0", 120, 2.5),)
    assert faults_of(7) == faults_of(7)
    with pytest.raises(ValueError, match="not a fault: 'kill'"):
        parsed("kill")


def test_the_report_is_made_of_every_kind_of_fault_and_of_what_was_played() -> None:
    simulated = [kind for _, kinds, _ in report.FAMILIES for kind in kinds]
    processes = [kind for _, _, kinds in report.FAMILIES for kind in kinds]
    assert sorted(simulated) == sorted(EVERY)
    assert sorted(processes) == sorted(real.EVERY)
    assert report.PAGE.read_text() == report.page()


def test_settings_have_every_rule_under_both_ciphers() -> None:
    rules = {"all", "sync", "ssp", "buffered", "priority", "own"}
    assert {(s.rule, s.cipher) for s in SETTINGS} >= {
        (rule, cipher) for rule in rules for cipher in ("plain", "rlwe")
    }


def test_settings_have_every_codec_where_a_rule_allows_it() -> None:
    """Values that stand still for some versions under every rule without rounds, but `ssp`."""
    of = {(setting.codec, setting.rule) for setting in SETTINGS if setting.codec}
    spans = {("spans", rule) for rule in ("buffered", "priority", "own")}
    assert of == {("thin", "all"), ("thin", "sync"), ("noised", "sync"), *spans}
    for setting in SETTINGS:
        group = plan_of(setting).group("all")
        assert (group.support_every == 2) == (setting.codec == "spans")
        assert group.feedback == (setting.codec in ("thin", "noised"))
        assert bool(group.pull_bits) == (setting.cipher == "rlwe" or bool(setting.codec))


STILL = "shard-1"
SOON = 0.1
"""Seconds after which is looked again."""


class Stopped(World):
    """Two shards, and a third that is added, hold every block twice; STILL is stopped over a move.

    Args:
        within: it goes on while its blocks are copied again, not when they are.
    """

    def __init__(self, cipher: str, within: bool, folder: Path) -> None:
        setting = Setting("all", cipher, replicas=2)
        super().__init__(0, setting, parsed("added:shard-2@1"), folder)
        self.resumed_at: list[int] = []
        self._within = within
        self._once(lambda: self._moves([]) is False, self._stop)

    @property
    def rows(self) -> list[object]:
        journal = self._stores[COORDINATOR].journal
        assert isinstance(journal, MemoryJournal)
        return [record for _, record in journal.rows]

    def _moves(self, left: list[str]) -> bool | None:
        """Whether blocks move, after these shards have left; None: none ever did."""
        rows = self.rows
        moved = [each for each in rows if isinstance(each, PlacementMoved | ShardLeft)]
        if not moved or [each.shard for each in of_kind(rows, ShardLeft)] != left:
            return None
        return not moved[-1].in_force if isinstance(moved[-1], PlacementMoved) else None

    def _once(self, condition: Callable[[], bool], act: Callable[[], None]) -> None:
        if condition():
            act()
        else:
            self.loop.call_later(SOON, partial(self._once, condition, act))

    def _stop(self) -> None:
        """As by SIGSTOP; in a while nobody is connected with it any more."""

        def gone() -> None:
            links = [link for link in self.network._links if link.sender == STILL]
            self.network._end(links, Unreachable("nobody answers"), quiet=False)

        self.loop.call_later(NOTICED, gone)
        remove = Act(ShardDeed.REMOVE, STILL, "chaos")
        self.loop.call_later(NOTICED + 0.5, partial(self.operator.demand, remove))
        self._freeze(NOTICED + 0.5)

    def _freeze(self, seconds: float = 2 * SOON) -> None:
        """For so long, and then again, until it is to go on."""
        assert isinstance(self.network, ChaosNetwork)
        if self._moves([STILL]) is self._within:
            self.resumed_at.append(len(self.rows))
            return
        self._loops[STILL].pause(seconds)
        self.network.freeze(STILL, NOTICED, seconds)
        self.loop.call_later(seconds - SOON, self._freeze)


@pytest.mark.parametrize(("cipher", "within"), [("plain", True), ("rlwe", False)])
def test_what_it_says_afterwards_changes_nothing(cipher: str, within: bool, tmp_path: Path) -> None:
    with quiet():
        world = Stopped(cipher, within, tmp_path)
        world.play()
        wrong = complaints(world)
    assert wrong == [], "the model is that of the undisturbed run"
    (resumed,) = world.resumed_at
    after = world.rows[resumed:]
    assert of_kind(after, VersionCommitted)
    assert bool(of_kind(after, PlacementMoved)) == within
    assert of_kind(world.rows, PlacementMoved)[-1].placement.shards == ("shard-0", "shard-2")
    assert "holds nothing of this run: removed by the operator" in world.ends()[STILL]
