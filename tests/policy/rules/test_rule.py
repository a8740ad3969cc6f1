"""Whatever comes, goes, crashes, waits or is late: what each rule promises holds."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from secureps.config.plan import BufferedSection, PrioritySection, SspSection
from secureps.messages.submission import SubmissionId
from secureps.policy.cohorts.overlap import uneven
from secureps.policy.rules.registry import build_rule
from secureps.policy.rules.rule import Admit, PassOver, Rule, RuleState, Wait
from tests.kits.rule_world import RuleWorld

MEMBERS = st.sampled_from([f"client-{k}" for k in range(8)])
MINIMUM = 3
DEADLINE = 60.0


def ssp(slack: int) -> Rule:
    section = SspSection(name="ssp", slack=slack, minimum=MINIMUM, deadline=DEADLINE)
    return build_rule(section, room=100)


class RuleMembers(RuleBasedStateMachine):
    world: RuleWorld

    def begin(self, made: Rule) -> None:
        self.world = RuleWorld(made)
        for k in range(4):
            self.world.join(f"client-{k}")

    @rule(member=MEMBERS)
    def join(self, member: str) -> None:
        self.world.join(member)

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        self.world.leave(member)

    @rule(member=MEMBERS)
    def crash(self, member: str) -> None:
        self.world.crash(member)

    @rule(member=MEMBERS)
    def send(self, member: str) -> None:
        self.world.send(member)

    @precondition(lambda self: self.world.training)
    @rule(data=st.data())
    def send_one(self, data: st.DataObject) -> None:
        self.world.send(data.draw(st.sampled_from(self.world.training)))

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule(seconds=st.floats(0.1, 100.0))
    def wait(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # --- of every rule ------------------------------------------------------------

    @invariant()
    def no_cohort_is_below_the_minimum_and_nobody_is_summed_twice(self) -> None:
        seen: set[SubmissionId] = set()
        for _, summed in self.world.cohorts:
            ids = [member.id for member, _ in summed]
            assert len(ids) >= MINIMUM
            assert len({id.client for id in ids}) == len(ids)
            assert seen.isdisjoint(ids)
            assert not uneven([member.weight for member, _ in summed], MINIMUM)
            seen |= set(ids)

    @invariant()
    def everything_that_arrived_is_somewhere_once(self) -> None:
        world = self.world
        summed = [m.id for _, cohort in world.cohorts for m, _ in cohort]
        places = [*summed, *(a.id for a in world.waiting), *(a.id for a in world.dropped)]
        assert sorted(places) == sorted(world.bases)

    @invariant()
    def no_update_is_made_twice_from_one_base(self) -> None:
        made = [(id.client, base) for id, base in self.world.bases.items()]
        assert len(set(made)) == len(made)

    @invariant()
    def whoever_waits_hears_why(self) -> None:
        world = self.world
        state = world._state
        for member in world.live:
            assert world.rule.admit(world.now, member, state).reason
        assert world.making or world.reason

    def teardown(self) -> None:
        """All that are live go on sending: nothing is stuck."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for k in range(MINIMUM + 1):
            world.join(f"client-{k}")
        goal = world.version + 4
        for _ in range(200):
            for member in world.training:
                world.send(member)
            world.pass_time(1000.0)
            world.commit()
            if world.version >= goal:
                return
        raise AssertionError(f"stands still: {world.reason}")


class SspMembers(RuleMembers):
    slack: int

    @initialize(slack=st.integers(0, 3))
    def start(self, slack: int) -> None:
        self.slack = slack
        self.begin(ssp(slack))

    @invariant()
    def nobody_started_too_far_ahead(self) -> None:
        for _, clock, least, _ in self.world.started:
            assert clock - least <= self.slack

    @invariant()
    def a_joiner_does_not_pull_the_least_clock_down(self) -> None:
        assert all(clock >= least for clock, least in self.world.entered)
        least = [at for _, _, at, _ in self.world.started]
        assert least == sorted(least)

    @rule(member=MEMBERS)
    def all_but_one_send(self, member: str) -> None:
        """It keeps its lease and sends nothing, for longer than anybody waits."""
        world, before = self.world, self.world.version
        for _ in range(3):
            for _ in range(self.slack + 2):
                for other in [each for each in world.training if each != member]:
                    world.send(other)
                world.commit()
            world.pass_time(DEADLINE)
        if len(world.live - {member}) >= MINIMUM:
            assert world.version > before, "it holds nobody up for ever"

    @invariant()
    def who_was_passed_over_has_no_clock(self) -> None:
        assert self.world.clocks.passed.isdisjoint(self.world.clocks.clocks)

    @invariant()
    def what_is_trained_from_holds_all_older_clocks(self) -> None:
        """Ho et al. 2013: an update at clock c reads every cohort below c - s."""
        for _, clock, _, version in self.world.started:
            assert version >= clock - self.slack


def test_a_jump_of_several_clocks_strands_nobody() -> None:
    """The slowest goes: the least clock jumps by four, four versions follow, and all may start."""
    world = RuleWorld(ssp(3))
    members = [f"client-{k}" for k in range(4)]
    for member in [*members, "slow"]:
        world.join(member)
    for _ in range(4):
        for member in members:
            assert world.send(member) is not None
    assert (world.least, world.version, world.training) == (0, 0, ["slow"])
    world.leave("slow")
    for version in range(1, 5):
        world.commit()
        assert world.version == version
    assert world.least == 4
    assert world.training == members
    assert not world.waiting


def test_ssp_does_not_ask_since_when_a_member_stands_that_takes_part_no_more() -> None:
    """d is live and ahead, and no moment is known of it: the others' count."""
    clocks = {"a": 0, "b": 1, "c": 1, "d": 1}
    known = RuleState(0, frozenset(clocks), {"a"}, clocks=clocks, moved={"a": 0.0, "b": 5.0})
    made = ssp(1)
    count = "0 members have sent; cohort 1 waits for a"
    waits = made.decide(10.0, (), known)
    assert waits == Wait(5.0 + DEADLINE, f"{count}, 1 clock behind, 55 s left")
    assert isinstance(made.decide(5.0 + DEADLINE, (), known), PassOver)
    alone = dataclasses.replace(known, moved={"a": 0.0})
    assert made.decide(1000.0, (), alone) == Wait(None, f"{count} at clock 0")


class BufferedMembers(RuleMembers):
    most: int

    @initialize(buffer=st.integers(3, 5), most=st.integers(0, 3), power=st.floats(0, 2))
    def start(self, buffer: int, most: int, power: float) -> None:
        self.most = most
        section = BufferedSection(
            name="buffered", buffer=buffer, minimum=MINIMUM, max_staleness=most, power=power
        )
        self.begin(build_rule(section, room=100))

    @invariant()
    def nothing_too_stale_was_summed(self) -> None:
        for version, summed in self.world.cohorts:
            assert all(version - 1 - arrival.version <= self.most for _, arrival in summed)

    @invariant()
    def newer_is_never_lighter(self) -> None:
        for _, summed in self.world.cohorts:
            ordered = sorted(summed, key=lambda pair: pair[1].version)
            weights = [member.weight for member, _ in ordered]
            assert weights == sorted(weights)


class PriorityMembers(RuleMembers):
    AGEING: ClassVar = 50.0
    MOST: ClassVar = 3

    @initialize(buffer=st.integers(3, 4), more=st.integers(0, 3))
    def start(self, buffer: int, more: int) -> None:
        section = PrioritySection(
            name="priority",
            buffer=buffer,
            pool=buffer + more,
            ageing=self.AGEING,
            minimum=MINIMUM,
            max_staleness=self.MOST,
        )
        self.begin(build_rule(section, room=100))
        self.passed: dict[object, float] = {}

    @invariant()
    def nothing_is_overtaken_for_ever(self) -> None:
        """Only what came less than R * ageing later may come before it; R is the staleness."""
        world = self.world
        if not world.cohorts:
            return
        _, summed = world.cohorts[-1]
        for left in world.waiting:
            for _, taken in summed:
                later = taken.at - left.at
                assert later <= self.AGEING * (taken.version - left.version) or later <= 0


TestSsp = SspMembers.TestCase
TestBuffered = BufferedMembers.TestCase
TestPriority = PriorityMembers.TestCase
TestSsp.settings = TestBuffered.settings = TestPriority.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)


def test_nobody_is_asked_for_more_while_enough_updates_wait() -> None:
    """Clients send faster than versions are made: the coordinator would keep ever more of them."""
    live = frozenset({"a", "b", "c"})
    section = BufferedSection(name="buffered", buffer=20, minimum=MINIMUM, max_staleness=9)
    buffered = build_rule(section, room=100)
    assert isinstance(buffered.admit(0.0, "a", RuleState(3, live, waiting=79)), Admit)
    answer = buffered.admit(0.0, "a", RuleState(3, live, waiting=80))
    assert answer == Wait(None, "80 updates wait already", everybody=True)
    small = build_rule(section.model_copy(update={"buffer": 3}), room=100)
    assert isinstance(small.admit(0.0, "a", RuleState(3, live, waiting=63)), Admit)
    assert isinstance(small.admit(0.0, "a", RuleState(3, live, waiting=64)), Wait)
    pool = PrioritySection(name="priority", buffer=3, pool=50, minimum=MINIMUM, max_staleness=9)
    chosen = build_rule(pool, room=100)
    assert isinstance(chosen.admit(0.0, "a", RuleState(3, live, waiting=199)), Admit)
    assert isinstance(chosen.admit(0.0, "a", RuleState(3, live, waiting=200)), Wait)
