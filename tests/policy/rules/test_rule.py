"""Rules without rounds, in states that schedules hardly ever reach.

`tests/federation/test_stream_schedules.py` tests their promises under random schedules.
"""

import dataclasses

from secureps.config.plan import BufferedSection, PrioritySection, SspSection
from secureps.policy.rules.registry import build_rule
from secureps.policy.rules.rule import Admit, PassOver, Rule, RuleState, Wait

MINIMUM = 3
DEADLINE = 60.0


def ssp(slack: int) -> Rule:
    section = SspSection(name="ssp", slack=slack, minimum=MINIMUM, deadline=DEADLINE)
    return build_rule(section, room=100)


def test_ssp_does_not_ask_since_when_a_member_stands_that_takes_part_no_more() -> None:
    """d is live and ahead, but it is unknown since when: the others decide."""
    clocks = {"a": 0, "b": 1, "c": 1, "d": 1}
    known = RuleState(0, frozenset(clocks), {"a"}, clocks=clocks, moved={"a": 0.0, "b": 5.0})
    made = ssp(1)
    count = "0 members have sent; cohort 1 waits for a"
    waits = made.decide(10.0, (), known)
    assert waits == Wait(5.0 + DEADLINE, f"{count}, 1 clock behind, 55 s left")
    assert isinstance(made.decide(5.0 + DEADLINE, (), known), PassOver)
    alone = dataclasses.replace(known, moved={"a": 0.0})
    assert made.decide(1000.0, (), alone) == Wait(None, f"{count} at clock 0")


def test_nobody_is_asked_for_more_while_enough_updates_wait() -> None:
    """Otherwise clients that are faster than versions would fill the coordinator."""
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
