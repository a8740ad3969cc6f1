"""Counts of refused requests: by party and error, and no more of them whoever asks how often."""

from __future__ import annotations

from secureps.errors import (
    Busy,
    Conflict,
    Malformed,
    NotReady,
    Refused,
    Unreachable,
    Unsigned,
)
from secureps.messages.records import RefusedRequests
from secureps.wire.grpc.admission import MOST, NOBODY, OTHERS, Refusals


def test_they_are_counted_by_party_and_error_since_they_were_taken() -> None:
    refusals = Refusals()
    for error in (Unsigned("x"), Unsigned("y"), Malformed("z")):
        refusals.note(NOBODY, error)
    refusals.note("client-00", Conflict("x"))
    refusals.note("client-00", Busy("x"))
    refusals.note("client-00", Refused("x"))
    assert refusals.take() == (
        RefusedRequests(NOBODY, "Malformed", 1),
        RefusedRequests(NOBODY, "Unsigned", 2),
        RefusedRequests("client-00", "Busy", 1),
        RefusedRequests("client-00", "Conflict", 1),
        RefusedRequests("client-00", "Refused", 1),
    )
    assert refusals.take() == ()


def test_what_is_of_the_course_of_a_run_is_not_counted() -> None:
    refusals = Refusals()
    for error in (NotReady("x"), Unreachable("x")):
        refusals.note("client-00", error)
    assert refusals.take() == ()


def test_however_many_ask_a_few_are_told_apart() -> None:
    refusals = Refusals()
    for number in range(10 * MOST):
        for error in (Malformed("x"), Conflict("x")):
            refusals.note(f"client-{number:03}", error)
    counts = refusals.take()
    assert len(counts) == MOST + 2
    assert sum(each.count for each in counts) == 20 * MOST
    assert {each.error for each in counts if each.party == OTHERS} == {"Malformed", "Conflict"}
