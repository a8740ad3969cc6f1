"""Which servers obey, which coordinator rules or ends, and when a standby takes over."""

import random
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from secureps.errors import Conflict, DamagedStore, Fenced, Malformed, NotReady, Refused
from secureps.messages import orders, requests
from secureps.messages.coordinator_records import ShardLeft, StandbyFollows
from secureps.messages.records import LINE, REIGN, Incarnated, describe_starts
from secureps.messages.requests import Follow, JournalRow, Noted, Rows, TakeOver
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator import reign
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.reign import AGAIN, STALE, SUPERSEDED, TAKES_OVER, Standby
from secureps.roles.coordinator.state import Reigns
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    Done,
    Failed,
    Halt,
    Order,
    Say,
    Step,
    Tick,
    WatchLost,
    Work,
)
from tests.kits.roles_kit import (
    CLIENTS,
    HOLDER,
    ROSTER,
    SHARDS,
    World,
    answers,
    collecting,
    halts,
    make_charter,
    make_plan,
    says,
)

FIRST, SECOND = SHARDS
ONE, TWO = b"1" * 16, b"2" * 16
FOLLOWED = (StandbyFollows(ONE),)
"""A standby followed, when this coordinator was started again."""
TAKEN = (StandbyFollows(ONE), Incarnated(REIGN, ONE))
"""This one has taken over as that standby, and was started as the coordinator."""
OWN = {FOLLOWED: 2, TAKEN: REIGN + 1}
"""The incarnation of that start."""
BOTH = pytest.mark.parametrize("records", [FOLLOWED, TAKEN], ids=["followed", "taken over"])


def begun(*records: Any) -> World:
    """A coordinator that starts with these records at the end of its journal."""
    before = collecting("bfv")
    return World(before.plan, journal=(*before.journal, records))


def register(world: World, party: str, seen: int) -> Step:
    address = "" if party == HOLDER else f"{party}:1"
    return world.give(party, requests.Register(party, address, 1.0, seen, world.run))


def comes(world: World, party: str, seen: int = 1) -> None:
    """A server registers and subscribes."""
    register(world, party, seen)
    world.give(party, requests.Subscribe(party, ()))


def obeys(world: World, party: str) -> Step:
    """A server says that it obeys the incarnation that it was told."""
    assert party in asked(world), "nobody told it"
    return register(world, party, world.federation.incarnation)


def asked(world: World) -> list[str]:
    """The servers that were told of the newest incarnation, in that order."""
    own = world.federation.incarnation
    told = [(to, each) for to, each in world.told if isinstance(each, orders.Configure)]
    return [to for to, each in told if each.incarnation == own]


def rules(world: World) -> bool:
    return reign.is_ruling(world.coordinator._tx(0.0))


def refusal(world: World) -> str:
    """Why a client is not answered; empty if it is."""
    try:
        world.give(CLIENTS[0], requests.Retire(CLIENTS[0]))
    except NotReady as error:
        return str(error)
    return ""


def ruling(*records: Any) -> World:
    world = begun(*records)
    for party in (*SHARDS, HOLDER):
        comes(world, party)
        obeys(world, party)
    assert rules(world)
    return world


def other(world: World, seen: int) -> Step:
    return world.give(COORDINATOR, requests.Register(COORDINATOR, "", 1.0, seen, world.run))


@BOTH
def test_it_rules_once_all_shards_and_enough_holders_obey_and_asks_them_in_turn(
    records: tuple[Any, ...],
) -> None:
    world = begun(*records)
    assert world.federation.incarnation == OWN[records]
    for party in (HOLDER, SECOND):
        comes(world, party)
    assert asked(world) == [], "the first shard has not come"
    assert refusal(world) == (
        "the coordinator waits for shard-a, shard-b, one more key holder to obey it, for another "
        "one could rule"
    )
    comes(world, FIRST)
    assert asked(world) == [FIRST]
    obeys(world, FIRST)
    assert asked(world) == [FIRST, SECOND]
    obeys(world, SECOND)
    assert asked(world) == [FIRST, SECOND, HOLDER]
    assert "waits for one more key holder to obey it" in refusal(world)
    assert not rules(world)
    assert StandbyFollows(b"") in obeys(world, HOLDER).records
    assert refusal(world) == ""


def test_another_standby_is_written_down_once_this_one_rules() -> None:
    """The standby on record may have taken over."""
    world = begun(*FOLLOWED)
    assert StandbyFollows(TWO) not in world.give(WORKER, StandbyFollows(TWO)).records
    for party in (*SHARDS, HOLDER):
        assert refusal(world)
        comes(world, party)
        last = obeys(world, party)
    assert last.records[:2] == [StandbyFollows(b""), StandbyFollows(TWO)]
    assert refusal(world) == ""


def test_one_that_took_over_is_not_its_own_follower() -> None:
    world = begun(*TAKEN)
    world.give(WORKER, StandbyFollows(ONE))
    assert not rules(world)


def test_a_shard_that_has_left_is_asked_too_while_the_standby_may_not_know_it() -> None:
    world = begun(*FOLLOWED)
    world.federation.reigns.left.append("shard-z")
    for party in (*SHARDS, HOLDER):
        comes(world, party)
    for shard in SHARDS:
        obeys(world, shard)
    assert "waits for shard-z, one more key holder to obey it" in refusal(world)
    world.give(WORKER, StandbyFollows(ONE))
    assert refusal(world) == ""


def dismissed(world: World) -> list[str]:
    """The parties that were told to end."""
    return [to for to, order in world.told if isinstance(order, orders.Finish)]


def gone(shard: str, removed: bool = True) -> ShardLeft:
    return ShardLeft(shard, "is not needed", removed)


@pytest.mark.parametrize("removed", [True, False])
def test_a_shard_that_left_ends_once_the_standby_s_journal_says_so(removed: bool) -> None:
    """The standby may take over before that, and then the shard must be there to obey it."""
    world = begun(*FOLLOWED)
    world.give(WORKER, StandbyFollows(ONE))
    assert rules(world)
    world.federation.apply(0.0, gone(SECOND, removed))
    comes(world, SECOND)
    assert dismissed(world) == []
    assert StandbyFollows(ONE) in world.give(WORKER, StandbyFollows(ONE)).records
    assert dismissed(world) == [SECOND], "`Lead` tells it only after the standby has that record"


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("journal", [FOLLOWED, TAKEN], ids=["followed", "taken over"])
def test_a_shard_that_left_obeys_before_it_ends(journal: tuple[Any, ...], removed: bool) -> None:
    world = begun(journal[0], gone(FIRST, removed), *journal[1:])
    comes(world, SECOND)
    comes(world, HOLDER)
    assert asked(world) == [], "the other coordinator asks this shard first, too"
    comes(world, FIRST)
    for party in (FIRST, SECOND, HOLDER):
        assert (rules(world), dismissed(world)) == (False, [])
        last = obeys(world, party)
    assert StandbyFollows(b"") in last.records
    assert dismissed(world) == [FIRST]


def visit(world: World, party: str, seen: int) -> int | None:
    """A server comes and obeys if asked; returns whom it obeys, None if this coordinator ends."""
    told = len(world.told)
    if halts(register(world, party, seen)):
        return None
    with suppress(NotReady):
        world.give(party, requests.Subscribe(party, ()))
    if any(to == party and order.incarnation > seen for to, order in world.told[told:]):
        seen = world.federation.incarnation
        register(world, party, seen)
    return seen


@pytest.mark.parametrize("left", SHARDS)
def test_of_two_coordinators_whose_shard_left_one_rules_and_the_other_ends(left: str) -> None:
    """Servers go from one to the other at random, and the shard that left ends when it is told."""
    ruled = set[int]()
    for seed in range(20):
        draw, seen = random.Random(seed), dict.fromkeys((*SHARDS, HOLDER), 1)
        worlds = [begun(FOLLOWED[0], gone(left)), begun(FOLLOWED[0], gone(left), *TAKEN[1:])]
        ends = set[int]()
        for _ in range(80):
            party, to = draw.choice(list(seen)), draw.choice([0, 1])
            if to in ends:
                continue
            for world in worlds:
                world.give(party, WatchLost())
            if (obeyed := visit(worlds[to], party, seen[party])) is None:
                ends.add(to)
                continue
            seen[party] = obeyed
            if dismissed(worlds[to]):
                seen.pop(left, None)
            assert sum(map(rules, worlds)) < 2
        assert len(ends) == 1
        (stays,) = {0, 1} - ends
        assert rules(worlds[stays])
        assert dismissed(worlds[stays]) == [left]
        ruled.add(stays)
    assert ruled == {0, 1}


def test_a_shard_that_obeyed_nobody_is_asked_last() -> None:
    """Its disk may be new, and the other shards know which coordinator they obeyed."""
    world = begun(*FOLLOWED)
    comes(world, FIRST, 0)
    assert asked(world) == []
    comes(world, SECOND)
    obeys(world, SECOND)
    assert asked(world) == [SECOND, FIRST]


def test_where_all_shards_have_lost_their_disks_they_obey_all_the_same() -> None:
    world = begun(*TAKEN)
    for shard in SHARDS:
        comes(world, shard, 0)
    comes(world, HOLDER)
    for party in (*SHARDS, HOLDER):
        obeys(world, party)
    assert rules(world)


def test_a_party_that_watches_anew_is_told_again() -> None:
    """The first order may be lost with its stream."""
    world = begun(*FOLLOWED)
    comes(world, FIRST)
    world.give(FIRST, WatchLost())
    comes(world, FIRST)
    assert asked(world) == [FIRST, FIRST]


@pytest.mark.parametrize("party", [FIRST, HOLDER])
def test_who_goes_by_an_older_roster_hears_of_it_in_its_turn(party: str) -> None:
    """The placement that it is told before a coordinator rules may have a new shard."""
    world = begun(*FOLLOWED)
    for shard in SHARDS if party == HOLDER else ():
        comes(world, shard)
        obeys(world, shard)
    register(world, party, 1)
    step = world.give(party, requests.Subscribe(party, (), 0, 50))
    assert not rules(world)
    told = [e.message for e in step.effects if isinstance(e, Order) and e.to == party]
    assert [type(order) for order in told] == [orders.RosterChanged, orders.Configure]


@BOTH
@pytest.mark.parametrize("reach", ["first", "second"])
def test_it_ends_when_a_shard_obeys_another_one(records: tuple[Any, ...], reach: str) -> None:
    """Either this one took over and the coordinator went on alone, or its standby took over."""
    world, foreign = begun(*records), 2 if records == TAKEN else REIGN
    if reach == "second":
        comes(world, FIRST)
        obeys(world, FIRST)
    (halt,) = halts(register(world, SECOND if reach == "second" else FIRST, foreign))
    assert halt == Halt(STALE if records == TAKEN else SUPERSEDED, Fenced)


def test_one_that_rules_ends_no_more_for_a_shard_that_obeyed_a_lower_one() -> None:
    world = ruling(*TAKEN)
    assert halts(register(world, SECOND, 2)) == []
    assert halts(register(world, SECOND, 2 * REIGN)) == [Halt(SUPERSEDED, Fenced)]


@BOTH
def test_a_holder_is_not_believed_and_counts_as_away(records: tuple[Any, ...]) -> None:
    world = begun(*records)
    for shard in SHARDS:
        comes(world, shard)
        obeys(world, shard)
    for seen in (5 * REIGN, OWN[records] + 3):
        (answer,) = answers(register(world, HOLDER, seen))
        assert isinstance(answer, NotReady)
        assert str(answer) == (
            "keys obeys another coordinator, or lies: until it obeys this one it is away"
        )
    assert world.federation.incarnation == OWN[records]
    assert not rules(world)


def test_a_start_whose_record_was_lost_is_begun_again_and_all_are_asked_anew() -> None:
    world = begun(*TAKEN)
    comes(world, FIRST)
    obeys(world, FIRST)
    register(world, SECOND, REIGN + 5)
    assert world.federation.incarnation == REIGN + 6
    assert asked(world) == [FIRST]
    world.give(SECOND, requests.Subscribe(SECOND, ()))
    comes(world, HOLDER)
    for party in (*SHARDS, HOLDER):
        obeys(world, party)
    assert rules(world)


def test_a_party_that_is_refused_has_nothing_begun() -> None:
    """The decisions of a refused step are in no journal, so a later start would not know them."""
    world = ruling(*TAKEN)
    lies = requests.Register(FIRST, "x" * 9000, 1.0, REIGN + 9, world.run)
    with pytest.raises(Malformed):
        world.give(FIRST, lies)
    assert world.federation.incarnation == REIGN + 1


def test_the_standby_that_followed_and_took_over_ends_this_one() -> None:
    assert halts(other(begun(*FOLLOWED), REIGN)) == [Halt(SUPERSEDED, Fenced)]
    world = begun(*FOLLOWED)
    comes(world, FIRST)
    for _ in range(2):  # it has everything, and then that on record, too
        world.give(WORKER, StandbyFollows(ONE))
    assert halts(other(world, REIGN)) == [Halt(SUPERSEDED, Fenced)]


def test_it_does_not_end_if_a_shard_may_have_obeyed_it_which_ends_the_other_one() -> None:
    """Otherwise both would end."""
    world = begun(*FOLLOWED)
    comes(world, FIRST)
    world.give(FIRST, WatchLost())
    (answer,) = answers(other(world, REIGN))
    assert isinstance(answer, NotReady)
    obeys(world, FIRST)
    with pytest.raises(Fenced, match="another coordinator has taken over this run"):
        other(world, REIGN)
    again = begun(*FOLLOWED, Incarnated(2))
    assert again.federation.incarnation == 3, "the start before may have asked it"
    (answer,) = answers(other(again, REIGN))
    assert isinstance(answer, NotReady)


def test_a_standby_that_has_everything_but_not_on_record_is_told_that_this_one_rules() -> None:
    """A shard obeys a start that the standby's journal does not confirm yet."""
    world = begun(*FOLLOWED)
    comes(world, FIRST)
    obeys(world, FIRST)
    world.give(WORKER, StandbyFollows(ONE))
    with pytest.raises(Fenced, match="another coordinator has taken over this run"):
        other(world, REIGN)
    assert world.give(WORKER, StandbyFollows(ONE)).records == []
    assert halts(other(world, REIGN)) == [Halt(SUPERSEDED, Fenced)]


def test_the_shards_that_both_know_are_asked_first() -> None:
    world = begun(*FOLLOWED)
    world.federation.reigns.came.append(FIRST)
    comes(world, FIRST)
    comes(world, SECOND)
    assert asked(world) == [SECOND]
    obeys(world, SECOND)
    assert asked(world) == [SECOND, FIRST]
    with pytest.raises(Fenced):
        other(world, REIGN)


def test_a_standby_that_does_not_have_everything_is_ended_by_the_one_that_rules() -> None:
    world = begun(*FOLLOWED, StandbyFollows(b""))
    for seen in (REIGN, REIGN + 7):
        with pytest.raises(Fenced, match="another coordinator has taken over this run"):
            other(world, seen)
    world.give(WORKER, StandbyFollows(TWO))
    with pytest.raises(Fenced):
        other(world, REIGN)
    assert halts(other(world, REIGN + LINE)) == [Halt(SUPERSEDED, Fenced)]


@pytest.mark.parametrize("followed", [True, False])
def test_one_of_an_older_reign_that_is_started_again_ends_nobody(followed: bool) -> None:
    """Its later starts are in no other journal, and look like those of a ruling coordinator."""
    world = ruling(*TAKEN)
    if followed:
        world.give(WORKER, StandbyFollows(TWO))
    with pytest.raises(Fenced, match="another coordinator has taken over this run"):
        other(world, 7)
    assert rules(world)


def test_while_neither_rules_the_one_that_took_over_waits_for_the_shards_word() -> None:
    world = begun(*TAKEN)
    (answer,) = answers(other(world, 2))
    assert isinstance(answer, NotReady)
    assert str(answer) == "it is not decided yet which coordinator rules"


def test_a_start_asks_the_other_coordinator_only_if_that_may_rule() -> None:
    before = collecting("bfv")
    for records, asks in ((FOLLOWED, True), (TAKEN, True), ((StandbyFollows(b""),), False)):
        machine = Coordinator(replace(make_charter(before.plan), elsewhere=True))
        for record in (*chain.from_iterable(before.journal), *records):
            machine.apply(0.0, record)
        calls = [e.message for e in machine.resume(0.0).effects if isinstance(e, Call)]
        own = machine.federation.incarnation
        ask = requests.Register(COORDINATOR, "", 1.0, own, before.run)
        assert calls == ([ask] if asks else [])


def test_before_a_run_is_founded_no_standby_is_waited_for() -> None:
    """A standby does not take over before there is a run."""
    plan = collecting("bfv").plan
    world = World(plan, journal=((StandbyFollows(ONE),),))
    assert StandbyFollows(b"") in world.journal[0]
    assert rules(world)


def test_that_a_shard_left_is_known_to_a_standby_that_is_confirmed_again() -> None:
    world = begun(*FOLLOWED)
    world.give(WORKER, StandbyFollows(ONE))
    world.federation.apply(0.0, ShardLeft(SECOND, "away"))
    assert world.federation.reigns.left == [SECOND]
    assert StandbyFollows(ONE) in world.give(WORKER, StandbyFollows(ONE)).records
    assert world.federation.reigns.left == []


def fold(*records: Incarnated | StandbyFollows) -> Reigns:
    reigns = Reigns()
    for record in records:
        reigns.apply(record)
    return reigns


def test_one_that_has_taken_over_knows_it_and_may_be_followed_in_its_turn() -> None:
    reigns = fold(Incarnated(3), StandbyFollows(ONE))
    assert reigns.next_reign(ONE) == REIGN
    assert reigns.has_taken_over(REIGN + 4)
    reigns.apply(Incarnated(REIGN, ONE))
    assert (reigns.incarnation, reigns.ruler, reigns.follower) == (REIGN, ONE, ONE)
    assert not reigns.may_take_over(ONE)
    assert not reigns.has_taken_over(2 * REIGN)
    assert reigns.reign == 0, "the coordinator may go on alone yet"
    reigns.apply(StandbyFollows(b""))
    assert reigns.reign == 1
    reigns.apply(StandbyFollows(TWO))
    assert (reigns.may_take_over(TWO), reigns.next_reign(TWO)) == (True, 2 * REIGN)


def test_two_standbys_of_one_coordinator_never_have_the_same_number() -> None:
    second = fold(
        Incarnated(1), StandbyFollows(ONE), Incarnated(2), StandbyFollows(b""), StandbyFollows(TWO)
    )
    assert (second.next_reign(ONE), second.next_reign(TWO)) == (REIGN, REIGN + LINE)
    assert second.has_taken_over(REIGN + LINE + 1)
    assert not second.has_taken_over(REIGN), "the one that does not have everything"
    second.apply(Incarnated(REIGN + LINE, TWO))
    assert second.is_foreign(REIGN)
    assert not second.is_foreign(REIGN + LINE + 9)


@pytest.mark.parametrize(
    ("seen", "foreign"),
    [
        (0, False),
        (3, False),
        (4, True),  # on record, but perhaps the coordinator went on alone with it
        (5, True),
        (REIGN + 2, False),  # of its own line
        (REIGN + 9, False),
        (2 * REIGN, True),  # another took over from it
        (-1, False),
    ],
)
def test_which_incarnations_may_have_acted_on_more(seen: int, foreign: bool) -> None:
    reigns = fold(Incarnated(3), StandbyFollows(ONE), Incarnated(4), Incarnated(REIGN, ONE))
    reigns.apply(Incarnated(REIGN + 2))
    assert reigns.is_foreign(seen) is foreign


def test_starts_in_words() -> None:
    assert describe_starts(1) == ""
    assert describe_starts(4) == "started 4 times"
    assert describe_starts(REIGN + 1) == "taken over once"
    assert describe_starts(2 * REIGN + 3) == "taken over 2 times, started 3 times"
    assert describe_starts(REIGN + LINE + 1) == "taken over once"


NUMBER, OTHER = b"n" * 16, b"o" * 16
ASK = Follow(NUMBER, 2, b"")
ROW = JournalRow(0.0, "Incarnated", "{}", b"")
TAKEN_OVER = Incarnated(REIGN, NUMBER)


def standby(*records: Any, **changes: Any) -> Standby:
    """A standby whose journal has a run and these records; it starts at 10 s."""
    pinned = collecting("bfv", **changes).federation.pinned
    made = Standby(make_plan("bfv", **changes), ROSTER, NUMBER, 2, b"")
    for record in (Incarnated(1), pinned, *records):
        made.apply(0.0, record)
    assert made.resume(10.0).effects == [Call(COORDINATOR, ASK)]
    return made


def following(**changes: Any) -> Standby:
    return standby(StandbyFollows(NUMBER), **changes)


def command(machine: Standby) -> Step:
    return machine.handle(11.0, COORDINATOR, TakeOver())


def kept(*records: Any) -> Done:
    return Done(Rows((ROW,)), records)


def test_it_takes_over_at_the_command() -> None:
    step = command(following())
    assert step.records == [TAKEN_OVER]
    said = Say("takes over: by command")
    assert step.effects == [Answer(Noted()), said, Halt(TAKES_OVER)]


def test_a_start_of_the_coordinator_alone_changes_nothing() -> None:
    assert command(standby(StandbyFollows(NUMBER), Incarnated(2))).records == [TAKEN_OVER]


@pytest.mark.parametrize(
    "records",
    [(), (StandbyFollows(OTHER),), (StandbyFollows(NUMBER), Incarnated(2), StandbyFollows(b""))],
    ids=["catches up", "another one follows", "the coordinator went on alone"],
)
def test_it_refuses_the_command_if_it_lacks_something(records: tuple[Any, ...]) -> None:
    with pytest.raises(
        Refused, match="this standby does not have everything that the coordinator acknowledged: "
    ):
        command(standby(*records))


def test_rows_that_are_being_written_are_kept_before_it_takes_over() -> None:
    machine = following()
    written = machine.handle(11.0, COORDINATOR, Answered(ASK, Rows((ROW,))))
    assert written.effects == [Work(Rows((ROW,)))]
    step = command(machine)
    assert (step.records, step.effects) == ([], [Answer(Noted())])
    step = machine.handle(12.0, WORKER, kept())
    assert (step.records, step.effects[-1]) == ([TAKEN_OVER], Halt(TAKES_OVER))


def test_the_command_lapses_if_those_rows_say_that_the_coordinator_went_on_alone() -> None:
    machine = following()
    machine.handle(11.0, COORDINATOR, Answered(ASK, Rows((ROW,))))
    command(machine)
    step = machine.handle(12.0, WORKER, kept(StandbyFollows(b"")))
    assert step.records == []
    assert says(step) == [
        "does not take over after all: the coordinator goes on, without this standby"
    ]
    step = machine.handle(13.0, WORKER, kept(StandbyFollows(NUMBER)))
    assert step.records == []
    assert says(step) == [
        "has all that the coordinator has, which waits for it now; it takes over by "
        "`secureps takeover` alone: the plan has no take_over_after"
    ]


def test_one_that_took_over_goes_on_as_the_coordinator_at_each_start() -> None:
    made = Standby(make_plan("bfv"), ROSTER, NUMBER, 2, b"")
    for record in (Incarnated(1), StandbyFollows(NUMBER), TAKEN_OVER):
        made.apply(0.0, record)
    assert made.resume(0.0).effects == [Halt(TAKES_OVER)]


def test_without_take_over_after_it_waits_for_ever() -> None:
    assert following().wake() is None


def test_when_it_follows_it_says_how_it_takes_over() -> None:
    step = standby(take_over_after=20.0).handle(13.0, WORKER, kept(StandbyFollows(NUMBER)))
    (said,) = says(step)
    assert said.endswith("`secureps takeover` or after 20 s without a word of the coordinator")


def test_with_take_over_after_it_gives_itself_the_command() -> None:
    machine = following(take_over_after=20.0)
    assert machine.wake() == 30.0
    machine.handle(15.0, COORDINATOR, Answered(ASK, Rows(())))
    assert machine.wake() == 35.0
    assert machine.handle(34.0, "", Tick()).records == []
    step = machine.handle(35.0, "", Tick())
    assert step.records == [TAKEN_OVER]
    assert says(step) == ["takes over: it heard nothing of the coordinator for 20 s"]


def test_one_that_would_refuse_the_command_does_not_give_it_to_itself() -> None:
    machine = standby(take_over_after=20.0)
    assert machine.wake() is None
    assert machine.handle(99.0, "", Tick()).records == []


@pytest.mark.parametrize(
    "error", [Conflict("the journal is shorter"), DamagedStore("its disk is damaged")]
)
def test_a_coordinator_that_gives_no_rows_is_silent(error: Any) -> None:
    """Its journal may be an older copy, so that only the standby has all rows."""
    machine = following(take_over_after=20.0)
    step = machine.handle(11.0, COORDINATOR, Failed(ASK, error))
    assert step.effects == [Say(f"does not follow: {error}")]
    assert machine.wake() == 11.0 + AGAIN
    step = machine.handle(11.0 + AGAIN, "", Tick())
    assert step.effects == [Call(COORDINATOR, ASK)]
    assert machine.handle(17.0, COORDINATOR, Failed(ASK, error)).effects == [], "said once"
    assert machine.handle(30.0, "", Tick()).effects == [Call(COORDINATOR, ASK)]
    assert machine.handle(30.0, "", Tick()).records == [TAKEN_OVER]


def test_one_that_never_had_everything_ends_at_a_refusal() -> None:
    """For example, its folder is of another run."""
    step = standby().handle(11.0, COORDINATOR, Failed(ASK, Conflict("of another run")))
    assert step.effects == [Halt("of another run", Conflict)]
