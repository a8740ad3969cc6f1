"""A block's primary draws the noise of a cohort, unless another holder has it; then all have it."""

import dataclasses
from typing import Any

import pytest

from secureps.errors import Malformed, NotReady, Refused, SecurepsError, UnknownParty
from secureps.messages import requests
from secureps.messages.orders import Discard, Hold
from secureps.messages.records import RunPinned
from secureps.messages.requests import Prepared
from secureps.messages.run import GroupPlacement, Placement, Replicas
from secureps.messages.shard_records import SumsMade
from secureps.messages.submission import Cohort, cohort_digest
from secureps.roles.machine import WORKER, Answer, Call, Done, Prune, Say, Step, Work, WorkFailed
from secureps.roles.shard.peers import AGAIN, NoiseCopies
from secureps.roles.shard.state import DrawNoise, NoiseDamaged, ShardState, SumCohort, noise_key
from tests.kits.roles_kit import ADDRESSES, SHARDS, make_cohort, make_placement, make_plan, make_run
from tests.kits.shard_kit import Desk

OWN, PEER = SHARDS
MINE, THEIRS = (0, 2), (1, 3)
PRIVACY = {
    "unit": "client",
    "placement": "aggregator",
    "noise_multiplier": 2.0,
    "delta": 1e-5,
    "budget": 1000.0,
}
RULE = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 10.0}
GROUP = {"clip": 3.0, "weighting": "uniform", "bits": 16, "rule": RULE}


def noise(replicas: int = 2, private: bool = True) -> NoiseCopies:
    changes: dict[str, Any] = {"replicas": replicas}
    if private:
        changes |= {"privacy": PRIVACY, "group": [GROUP]}
    plan = make_plan("plain", **changes)
    state = ShardState(OWN)
    state.apply(RunPinned(make_run(plan), make_placement(plan), ADDRESSES))
    return NoiseCopies(state)


def hold(number: int = 3) -> Hold:
    return Hold(1, make_cohort(number=number, version=number + 1), ())


def about(made: NoiseCopies, cohort: Cohort) -> bytes:
    return cohort_digest(made.state.run, cohort)


def ask(made: NoiseCopies, block: int, number: int = 3) -> requests.GetSum:
    of = about(made, hold(number).cohort)
    return requests.GetSum(made.state.run, "all", number, block, about=of)


def key(made: NoiseCopies, block: int, number: int = 3) -> str:
    return noise_key("all", number, block, about(made, hold(number).cohort))


def begun(made: NoiseCopies, order: Hold | None = None) -> Step:
    step = Step()
    assert not made.is_ready(step, order or hold())
    return step


def works(step: Step) -> list[Any]:
    return [e.task for e in step.effects if isinstance(e, Work)]


def says(
    made: NoiseCopies, block: int, came: bool, error: SecurepsError | None = None
) -> tuple[Step, Hold | None]:
    step, none = Step(), Refused("there is none here")
    return step, made.take_noise(step, 7.0, PEER, ask(made, block), None if came else error or none)


def drawn(made: NoiseCopies, cohort: Cohort, blocks: tuple[int, ...]) -> tuple[Step, Hold | None]:
    step = Step()
    return step, made.take_drawn(step, DrawNoise(cohort, blocks))


def test_where_there_is_none_nobody_asks() -> None:
    made, step = noise(2, private=False), Step()
    assert made.is_ready(step, hold())
    assert step.effects == []
    with pytest.raises(Refused, match="shards of this run add no noise"):
        made.serve(PEER, ask(made, MINE[0]))


def test_without_copies_it_is_drawn_at_once_and_kept_all_the_same() -> None:
    """It is named by its cohort, so that a later holder of the block finds it."""
    made, order = noise(1), hold()
    step = begun(made, order)
    assert step.effects == [Work(DrawNoise(order.cohort, MINE))]
    assert drawn(made, order.cohort, MINE)[1] == order
    with pytest.raises(UnknownParty, match="shard-b has no copy of block 0"):
        made.serve(PEER, ask(made, MINE[0]))
    step = begun(made, hold(4))
    assert works(step)[0] == Prune(tuple(key(made, block) for block in MINE))


def calls(step: Step) -> list[Any]:
    assert all(e.to == PEER for e in step.effects if isinstance(e, Call))
    return [e.message for e in step.effects if isinstance(e, Call)]


def test_others_are_asked_first_of_what_this_shard_draws() -> None:
    made = noise()
    assert calls(begun(made)) == [ask(made, block) for block in MINE]
    assert begun(made).effects == [], "once"


def test_what_nobody_has_is_drawn_and_a_cohort_is_added_when_all_is_here() -> None:
    made, order = noise(), hold()
    begun(made, order)
    assert works(says(made, MINE[0], False)[0]) == []
    assert works(says(made, MINE[1], False)[0]) == [DrawNoise(order.cohort, MINE)]
    step, ready = drawn(made, order.cohort, MINE)
    assert calls(step) == [ask(made, block) for block in THEIRS]
    assert ready is None
    assert says(made, THEIRS[0], True)[1] is None
    assert says(made, THEIRS[1], True)[1] == order
    assert made.is_ready(Step(), order)


def test_two_shards_with_many_blocks_never_wait_for_each_other() -> None:
    """Questions that come before drawing are answered at once, and are asked first."""
    made = noise()
    first = calls(begun(made))
    placed = made.state.pinned.placement
    assert {placed.holders("all", each.block)[0] for each in first} == {OWN}
    looks = made.serve(PEER, ask(made, THEIRS[0]))
    assert looks.effects == [Answer(requests.Payload(b""), attach=key(made, THEIRS[0]))]
    with pytest.raises(NotReady, match="shard-a has no noise of cohort 3 of all yet"):
        made.serve(PEER, ask(made, MINE[0]))
    assert calls(says(made, MINE[0], False)[0]) == []


def test_a_replica_gives_what_is_in_its_sums() -> None:
    made = noise()
    made.state.apply(SumsMade(hold().cohort, (b"",) * 4))
    gives = made.serve(PEER, ask(made, 1))
    assert gives.effects == [Answer(requests.Payload(b""), attach=key(made, 1))]


def test_a_replica_that_came_back_looks_on_its_disk() -> None:
    """It knows only cohorts on record, but may have noise that the primary drew and lost."""
    made = noise()
    gives = made.serve(PEER, ask(made, 1))
    assert gives.effects == [Answer(requests.Payload(b""), attach=key(made, 1))]


def test_what_the_primary_refuses_for_good_is_asked_again_later() -> None:
    made, order = noise(), hold()
    begun(made, order)
    says(made, MINE[0], True)
    says(made, MINE[1], True)
    assert made.wake is None
    refusal = Refused("shard-b knows another cohort 3 of all")
    step, ready = says(made, THEIRS[0], False, refusal)
    assert ready is None
    assert step.effects == [
        Say(f"shard-a waits for noise of cohort 3 of all from shard-b, and asks for it again: {e}")
        for e in [refusal]
    ]
    assert says(made, THEIRS[1], False)[0].effects == [], "said once"
    assert made.wake == 7.0 + AGAIN
    made.ask_again(early := Step(), 7.0)
    assert early.effects == []
    made.ask_again(later := Step(), 7.0 + AGAIN)
    assert calls(later) == [ask(made, block) for block in THEIRS]
    assert made.wake is None
    says(made, THEIRS[0], True)
    assert says(made, THEIRS[1], True)[1] == order


def test_noise_that_came_damaged_is_not_drawn_anew() -> None:
    """Another holder may have that noise in its sum."""
    made, damaged = noise(), Malformed("shard-b sent a payload that does not have its digest")
    begun(made)
    says(made, MINE[0], False)
    assert works(says(made, MINE[1], False, damaged)[0]) == []
    made.ask_again(step := Step(), 7.0 + AGAIN)
    assert calls(step) == [ask(made, MINE[1])]
    assert works(says(made, MINE[1], True)[0]) == [DrawNoise(hold().cohort, MINE[:1])]


def test_all_whose_noise_came_damaged_are_asked_again() -> None:
    made, damaged = noise(), Malformed("a payload that does not have its digest")
    begun(made)
    gathering = made._gathered["all", 3]
    for sender in (PEER, "shard-c"):  # as with three copies of a block
        gathering.own[MINE[0]].add(sender)
        made.take_noise(Step(), 7.0, sender, ask(made, MINE[0]), damaged)
    made.ask_again(step := Step(), 7.0 + AGAIN)
    calls = [e.to for e in step.effects if isinstance(e, Call)]
    assert calls == [PEER, "shard-c"]


def test_of_a_version_that_is_committed_no_noise_is_asked_for() -> None:
    made = noise()
    begun(made)
    says(made, MINE[0], False, Malformed("damaged"))
    made.over("all", hold().cohort.version - 1)
    assert made.wake is not None
    made.over("all", hold().cohort.version)
    assert made.wake is None


def test_a_replica_that_knows_another_primary_is_asked_again() -> None:
    """A third shard has left, and one of the other two has not heard of it."""
    made = noise()
    pinned = made.state.pinned
    assert pinned.placement.replicas is not None
    first = (*pinned.placement.groups, *pinned.placement.replicas.groups)
    gone = tuple(
        GroupPlacement(g.group, ("gone",) * len(g.owners)) for g in pinned.placement.groups
    )
    before = Placement(1, ("gone", *SHARDS), gone, Replicas(first))
    stale = ShardState(OWN)
    stale.apply(RunPinned(pinned.run, before, ADDRESSES))
    with pytest.raises(NotReady, match="by the placement that it knows gone draws it"):
        NoiseCopies(stale).serve(PEER, ask(made, 0))


def test_noise_of_a_cohort_whose_version_is_made_is_not_drawn() -> None:
    made = noise()
    made.state.apply(Prepared("s", "all", 4, (b"",) * 4, b"", cohort=3))
    with pytest.raises(Refused, match="any more: its version is made"):
        made.serve(PEER, ask(made, 0))


@pytest.mark.parametrize("sender", ["keys", "c0"])
def test_noise_is_for_shards_that_hold_the_block(sender: str) -> None:
    with pytest.raises(UnknownParty, match=f"{sender} has no copy of block 0 of all"):
        noise().serve(sender, ask(noise(), 0))
    with pytest.raises(UnknownParty):
        noise().serve(PEER, ask(noise(), 4))


def test_noise_is_of_one_cohort_and_not_of_its_number() -> None:
    """A coordinator that lost its journal closes another cohort: equal noise would cancel."""
    made, first = noise(), hold()
    begun(made, first)
    says(made, MINE[0], True)
    cohort = dataclasses.replace(first.cohort, members=first.cohort.members[:1])
    step = begun(made, Hold(1, cohort, ()))
    assert works(step) == [Prune((key(made, MINE[0]),))]
    assert {each.about for each in calls(step)} == {about(made, cohort)}
    assert about(made, cohort) != about(made, first.cohort)
    assert says(made, MINE[0], True)[0].effects == []
    with pytest.raises(Refused, match="shard-a knows another cohort 3 of all"):
        made.serve(PEER, ask(made, MINE[0]))
    assert drawn(made, first.cohort, MINE)[0].effects == []


def test_noise_in_sums_stays() -> None:
    made = noise()
    begun(made)
    says(made, MINE[0], True)
    made.state.apply(SumsMade(hold().cohort, (b"",) * 4))
    assert works(begun(made, hold(4))) == []


def test_when_another_shard_has_left_it_begins_anew() -> None:
    made = noise()
    begun(made)
    made.left()
    assert len(begun(made).effects) == 2


def noisy_desk() -> tuple[Desk, Cohort]:
    """A shard that holds its blocks alone, and the keys of a cohort's blocks."""
    desk, cohort = Desk(), make_cohort()
    desk.plan = make_plan("plain", privacy=PRIVACY, group=[GROUP])
    desk.run = make_run(desk.plan).id
    desk.founded()
    desk.put_all(tuple(member.id for member in cohort.members))
    return desk, cohort


def test_noise_that_is_damaged_before_the_sum_is_gathered_anew() -> None:
    desk, cohort = noisy_desk()
    for _ in range(2):
        desk.order(desk.hold(cohort))
        (task,) = works(desk.give(WORKER, Done(DrawNoise(cohort, MINE))))
        step = desk.give(WORKER, WorkFailed(task, NoiseDamaged("gone")))
        assert step.effects == [Work(DrawNoise(cohort, MINE))]
    (task,) = works(desk.give(WORKER, Done(DrawNoise(cohort, MINE))))
    assert isinstance(task, SumCohort)


@pytest.mark.parametrize("ruler", [1, 2])
def test_an_order_that_waited_is_forgotten_once_another_coordinator_rules(ruler: int) -> None:
    desk, cohort = noisy_desk()
    assert works(desk.order(desk.hold(cohort))) == [DrawNoise(cohort, MINE)]
    desk.order(Discard(ruler, ()))
    begun = works(desk.give(WORKER, Done(DrawNoise(cohort, MINE))))
    assert [type(task) for task in begun] == ([SumCohort] if ruler == 1 else [])
