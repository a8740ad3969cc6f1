"""Who trains in a group without rounds, in what order updates wait, and whose clock is where."""

from __future__ import annotations

from secureps.messages.submission import Base, SubmissionId
from secureps.roles.coordinator.group import Members


def update(sequence: int, client: str = "c0") -> SubmissionId:
    return SubmissionId(client, "all", sequence)


def sent(*updates: tuple[int, Base, float]) -> Members:
    """Members of a group in which c0 takes part, and has sent these."""
    clocks = Members()
    clocks.enter("c0", 0, 0.0)
    for sequence, base, at in updates:
        clocks.arrive(update(sequence), base, at)
    return clocks


def test_what_was_lost_and_comes_again_waits_before_what_came_after_it() -> None:
    """Holders open a client's updates in the order in which it made them."""
    clocks = sent((1, Base(0, 0), 1.0), (2, Base(1, 0), 2.0))
    clocks.arrive(update(1, "c1"), Base(0, 0), 1.5)
    clocks.withdraw({update(1): Base(0, 0)}, 3.0)
    clocks.arrive(update(1), Base(0, 0), 4.0)
    assert clocks.arrived[update(1)] <= clocks.arrived[update(2)] == 2.0
    assert clocks.arrived[update(1, "c1")] == 1.5
    assert clocks.clocks["c0"] == 2, "it was counted before"
    assert clocks.sent["c0"] == Base(1, 0)


def test_the_newest_base_is_known_whatever_comes_after_it() -> None:
    clocks = sent((1, Base(3, 1), 1.0), (2, Base(2, 0), 2.0))
    assert clocks.sent["c0"] == Base(3, 1)
    assert clocks.next_base("c0", 3) == Base(3, 2)
    assert clocks.next_base("c0", 4) == Base(4, 0)


def test_what_is_given_up_counts_for_no_clock_unless_it_never_did() -> None:
    clocks = sent((1, Base(0, 0), 1.0), (2, Base(0, 1), 2.0))
    clocks.drop((update(2),), 0, 3.0)
    assert (clocks.clocks["c0"], clocks.moved["c0"]) == (1, 3.0)
    clocks.arrive(update(3), Base(0, 0), 4.0, answers=True)
    clocks.drop((update(3),), 0, 5.0)
    assert (clocks.clocks["c0"], clocks.moved["c0"]) == (1, 3.0), "it was sealed once more"
