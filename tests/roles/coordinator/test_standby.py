"""A standby's answers to rows, silence and the command, as events and effects."""

from typing import Any

import pytest

from secureps.errors import Conflict, DamagedStore, Refused
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.requests import Follow, JournalRow, Noted, Rows, TakeOver
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator.reign import AGAIN, TAKES_OVER, Standby
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    Done,
    Failed,
    Halt,
    Say,
    Step,
    Tick,
    Work,
)
from tests.kits.roles_kit import ROSTER, collecting, make_plan, says

NUMBER, OTHER = b"n" * 16, b"o" * 16
ASK = Follow(NUMBER, 2, b"")
ROW = JournalRow(0.0, "Incarnated", "{}", b"")
TAKEN = Incarnated(REIGN, NUMBER)


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
    assert step.records == [TAKEN]
    said = Say("takes over: by command")
    assert step.effects == [Answer(Noted()), said, Halt(TAKES_OVER)]


def test_a_start_of_the_coordinator_alone_changes_nothing() -> None:
    assert command(standby(StandbyFollows(NUMBER), Incarnated(2))).records == [TAKEN]


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
    assert (step.records, step.effects[-1]) == ([TAKEN], Halt(TAKES_OVER))


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
    for record in (Incarnated(1), StandbyFollows(NUMBER), TAKEN):
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
    assert step.records == [TAKEN]
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
    assert machine.handle(30.0, "", Tick()).records == [TAKEN]


def test_one_that_never_had_everything_ends_at_a_refusal() -> None:
    """For example, its folder is of another run."""
    step = standby().handle(11.0, COORDINATOR, Failed(ASK, Conflict("of another run")))
    assert step.effects == [Halt("of another run", Conflict)]
