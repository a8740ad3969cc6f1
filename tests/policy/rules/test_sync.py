"""Rounds with quorum, deadline, extensions and a minimum cohort."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.config.plan import SyncSection
from secureps.messages.submission import Member, SubmissionId
from secureps.policy.rules.registry import Sync, build_rule
from secureps.policy.rules.rule import Admit, Arrival, Close, Drop, Extend, RuleState, Wait

ABC = frozenset({"a", "b", "c"})


def rule(**changes: Any) -> Sync:
    settings: dict[str, Any] = {
        "quorum": 2,
        "minimum": 2,
        "start": 3,
        "most": 4,
        "deadline": 10.0,
        "extensions": 1,
    }
    return made_of(**(settings | changes))


def made_of(**keys: Any) -> Sync:
    made = build_rule(SyncSection(**keys), room=100)
    assert isinstance(made, Sync)
    return made


def arrived(*clients: str) -> tuple[Arrival, ...]:
    return tuple(Arrival(SubmissionId(c, "all", 1), 0) for c in clients)


def opened(invited: frozenset[str] = ABC, extensions: int = 0) -> RuleState:
    return RuleState(0, invited, invited, 100.0, extensions)


# --- admit ------------------------------------------------------------------------


def test_a_round_waits_for_its_members() -> None:
    state = RuleState(0, frozenset({"a", "b"}))
    assert rule().admit(0.0, "a", state) == Wait(
        None, "waits for members: 2 of 3 are live", everybody=True
    )
    state = RuleState(0, ABC)
    assert rule().admit(0.0, "a", state) == Admit("invited to version 1")


def test_nobody_waits_for_who_is_left_out_but_the_minimum_stays() -> None:
    pair, single = frozenset({"a", "b"}), frozenset({"a"})
    assert isinstance(rule().admit(0.0, "a", RuleState(0, pair, left_out=1)), Admit)
    waits = Wait(None, "waits for members: 1 of 2 are live", everybody=True)
    assert rule().admit(0.0, "a", RuleState(0, single, left_out=5)) == waits


def drawn(sync: Sync, version: int, live: str = "abcdefghij") -> str:
    """Returns the members that are invited to the next version."""
    state = RuleState(version, frozenset(live))
    answers = {member: sync.admit(0.0, member, state) for member in live}
    out = Wait(None, f"{sync.invited(len(live))} others are drawn for version {version + 1}")
    assert set(answers.values()) <= {Admit(f"invited to version {version + 1}"), out}
    return "".join(member for member, answer in answers.items() if isinstance(answer, Admit))


@pytest.mark.parametrize("changes", [{"most": 4}, {"most": 9, "fraction": 0.49}])
def test_every_version_draws_its_members_anew(changes: dict[str, Any]) -> None:
    """Without a draw the first members by name would be invited for ever."""
    sync = rule(**changes)
    draws = [drawn(sync, version) for version in range(8)]
    assert {len(draw) for draw in draws} == {4}
    assert len(set(draws)) > 5
    assert set("".join(draws)) == set("abcdefghij")
    assert draws == [drawn(rule(**changes), version) for version in range(8)], "after a restart"
    assert set(drawn(sync, 0, "jihgfedcba")) == set(draws[0]), "whatever the order"


@pytest.mark.parametrize(
    ("live", "changes", "expected"),
    [
        (10, {}, 4),
        (3, {}, 3),
        (10, {"most": 10}, 10),
        (10, {"most": 10, "fraction": 0.39}, 3),
        (10, {"most": 10, "fraction": 0.01}, 2),
        (10, {"most": 10, "fraction": 0.01, "quorum": 5}, 5),
        (1, {"most": 10, "fraction": 0.5}, 1),
    ],
)
def test_how_many_are_invited(live: int, changes: dict[str, Any], expected: int) -> None:
    assert rule(**changes).invited(live) == expected


def test_late_joiners_wait() -> None:
    state = RuleState(0, ABC | {"d"}, ABC, 100.0)
    answer = rule().admit(101.0, "d", state)
    assert answer == Wait(None, "joins after version 1, whose round is open")
    assert rule().admit(101.0, "a", state) == Admit("invited to version 1")


# --- decide -----------------------------------------------------------------------


def test_nothing_is_decided_between_rounds() -> None:
    state = RuleState(0, ABC)
    assert rule().decide(0.0, (), state) == Wait(None, "no round is open")


DEADLINE = "deadline: 2 of 3 have arrived"


@pytest.mark.parametrize(
    ("quorum", "now", "here", "extensions", "until", "reason"),
    [
        (2, 100.0, "cab", 0, None, "all 3 invited have arrived"),
        (2, 109.0, "b", 0, 110.0, "1 of 3 have arrived; waits for a, c"),
        (2, 110.0, "ca", 0, None, f"{DEADLINE}, quorum 2"),
        (3, 110.0, "ab", 0, 120.0, f"{DEADLINE}, quorum 3; extension 1 of 1"),
        (3, 119.0, "ab", 1, 120.0, "2 of 3 have arrived; waits for c"),
        (3, 120.0, "ab", 1, None, f"last {DEADLINE}, enough for the minimum cohort of 2"),
    ],
)
def test_a_round_closes_at_its_deadlines(
    quorum: int, now: float, here: str, extensions: int, until: float | None, reason: str
) -> None:
    """It closes with all, at a deadline with the quorum, and at the last one with the minimum."""
    decision = rule(quorum=quorum).decide(now, arrived(*here), opened(extensions=extensions))
    if until is None:
        members = tuple(Member(SubmissionId(c, "all", 1), 1, 0) for c in sorted(here))
        assert decision == Close(members, reason)
    else:
        assert decision == (Extend if "extension" in reason else Wait)(until, reason)


@pytest.mark.parametrize(
    ("invited", "here", "reason"),
    [
        ("abcdef", "f", "1 of 6 have arrived; waits for a, b, c and 2 more"),
        ("a", "a", "1 of 1 have arrived, the minimum cohort is 2"),
    ],
)
def test_before_the_deadline_it_waits(invited: str, here: str, reason: str) -> None:
    decision = rule().decide(109.0, arrived(*here), opened(frozenset(invited)))
    assert decision == Wait(110.0, reason)


def test_below_the_minimum_the_round_is_given_up() -> None:
    decision = rule().decide(120.0, arrived("b"), opened(extensions=1))
    assert decision == Drop(
        (SubmissionId("b", "all", 1),),
        "given up: 1 of 3 have arrived after the last extension, the minimum cohort is 2; "
        "nothing was opened",
    )


# --- what holds always ------------------------------------------------------------


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Sync, RuleState, list[str]]:
    """Draws a sound rule, a round that its own `admit` opened, and an order of arrivals."""
    minimum = draw(st.integers(1, 4))
    quorum = draw(st.integers(minimum, 6))
    start = draw(st.integers(quorum, 8))
    most = draw(st.integers(start, 9))
    deadline = draw(st.floats(0.1, 1e4))
    made = made_of(
        quorum=quorum,
        minimum=minimum,
        start=start,
        most=most,
        deadline=deadline,
        extensions=draw(st.integers(0, 3)),
    )
    live = frozenset(f"m{i}" for i in range(draw(st.integers(start, 12))))
    before = RuleState(draw(st.integers(0, 5)), live)
    invited = frozenset(m for m in live if isinstance(made.admit(0.0, m, before), Admit))
    here = draw(st.permutations(sorted(invited)))
    state = RuleState(before.version, live, invited, draw(st.floats(0.0, 1e6)))
    return made, state, here[: draw(st.integers(0, len(here)))]


@pytest.mark.slow
@given(rounds(), st.floats(0.0, 5.0), st.integers(0, 3), st.randoms(use_true_random=False))
def test_never_below_the_minimum_never_above_most_whatever_the_order(
    made: tuple[Sync, RuleState, list[str]], times: float, extensions: int, chance: random.Random
) -> None:
    sync, state, here = made
    began = state.opened_at
    assert began is not None
    state = RuleState(state.version, state.live, state.invited, began, extensions)
    now = began + times * sync.section.deadline
    decision = sync.decide(now, arrived(*here), state)
    shuffled = list(here)
    chance.shuffle(shuffled)
    assert sync.decide(now, arrived(*shuffled), state) == decision
    if isinstance(decision, Close):
        assert sync.section.minimum <= len(decision.members) <= sync.bounds.most
        assert sum(m.weight for m in decision.members) <= sync.bounds.most
        assert {m.id.client for m in decision.members} == set(here)
    elif isinstance(decision, Drop):
        assert len(here) < sync.section.minimum
        assert extensions >= sync.section.extensions
    else:
        assert isinstance(decision, Wait | Extend)
        assert decision.until is not None
        assert decision.until > now or isinstance(decision, Extend)
    assert decision.reason


@given(rounds())
def test_every_round_ends(made: tuple[Sync, RuleState, list[str]]) -> None:
    """Asked again at every time that it names, it closes or gives up by the last deadline."""
    sync, state, here = made
    assert state.opened_at is not None
    now, extensions = state.opened_at, 0
    for _ in range(2 * sync.section.extensions + 3):
        at = RuleState(state.version, state.live, state.invited, state.opened_at, extensions)
        decision = sync.decide(now, arrived(*here), at)
        if isinstance(decision, Close | Drop):
            break
        assert decision.until is not None
        if isinstance(decision, Extend):
            extensions += 1
        else:
            now = decision.until
    else:
        raise AssertionError("the round never ended")
    assert now <= state.opened_at + sync.section.deadline * (1 + sync.section.extensions)
