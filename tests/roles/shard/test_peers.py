"""A shard asks others for what it lacks, then the coordinator, and gives what it has to others."""

from __future__ import annotations

from typing import Any

import pytest

from secureps.errors import DamagedStore, Refused, UnknownParty, WrongVersion
from secureps.messages import orders, requests
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import FOUNDING
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    Defer,
    Failed,
    Halt,
    Step,
    Work,
    WorkFailed,
)
from secureps.roles.shard.keys import state_key
from secureps.roles.shard.tasks import AdoptState, SumCohort, WritePart
from tests.kits.roles_kit import SHARDS, block_digest, configure, make_cohort, model_blocks
from tests.kits.shard_kit import FOUND_ID, ID, STATE, Desk, works

OWN, PEER = SHARDS
ALL = (0, 1, 2, 3)


def desk() -> Desk:
    """The run is known; all blocks lie on both shards."""
    made = Desk("doubled plain")
    made.order(configure(made.plan))
    return made


def called(step: Step) -> list[tuple[str, Any]]:
    return [(e.to, e.message) for e in step.effects if isinstance(e, Call)]


def found(desk: Desk) -> Step:
    return desk.order(desk.found())


MISSING = requests.Missing.of_founding(OWN, "all", (FOUND_ID,))


def test_others_are_asked_before_the_coordinator() -> None:
    made = desk()
    assert called(found(made)) == [(PEER, MISSING)]
    assert called(found(made)) == [], "once at a time"
    step = made.give(PEER, Answered(MISSING, requests.Noted()))
    assert called(step) == [(COORDINATOR, MISSING)]
    assert called(found(made)) == [(PEER, MISSING)], "next time they may have it"


def test_what_they_gave_is_worked_on() -> None:
    made = desk()
    found(made)
    for block in ALL:
        made.give(PEER, requests.PutBlock(made.header(FOUND_ID, block, purpose=FOUNDING)))
    step = made.give(PEER, Answered(MISSING, requests.Noted()))
    assert called(step) == []
    assert len(works(step)) == 1


def test_a_shard_that_refuses_has_answered() -> None:
    made = desk()
    found(made)
    step = made.give(PEER, Failed(MISSING, Refused("no")))
    assert called(step) == [(COORDINATOR, MISSING)]


def test_an_order_of_an_incarnation_that_is_over_is_not_tried_again() -> None:
    made = desk()
    found(made)
    made.order(configure(made.plan, 2))
    assert called(made.give(PEER, Answered(MISSING, requests.Noted()))) == []


def test_it_gives_what_it_has() -> None:
    made = desk()
    headers = [made.header(FOUND_ID, block, purpose=FOUNDING) for block in ALL]
    for header in (*headers, made.header(ID, 1)):
        made.give(PEER, requests.PutBlock(header))
    asked = requests.Missing.of_founding(PEER, "all", (FOUND_ID,))
    step = made.give(PEER, asked)
    assert called(step) == [(PEER, requests.PutBlock(header)) for header in headers]
    (ticket,) = (e.ticket for e in step.effects if isinstance(e, Defer))
    for header in headers[:-1]:
        sent = requests.PutBlock(header)
        assert made.give(PEER, Answered(sent, requests.Stored(header.digest))).effects == []
    last = Failed(requests.PutBlock(headers[-1]), WrongVersion("founded meanwhile"))
    assert made.give(PEER, last).effects == [Answer(requests.Noted(), ticket=ticket)]


def test_what_it_has_not_it_says_at_once() -> None:
    step = desk().give(PEER, requests.Missing.of_founding(PEER, "all", (FOUND_ID,)))
    assert step.effects == [Answer(requests.Noted())]


def test_nobody_asks_for_another() -> None:
    with pytest.raises(UnknownParty, match="shard-b speaks as shard-a"):
        desk().give(PEER, MISSING)


# --- states -----------------------------------------------------------------------


def commit(version: int = 4) -> orders.Commit:
    return orders.Commit(1, "all", version, version - 1, model_blocks("all", version, 4), STATE)


def asks(version: int) -> list[tuple[str, Any]]:
    run = desk().run
    return [(PEER, requests.GetBlock(run, "all", version, b, state=True)) for b in ALL]


def lost(made: Desk) -> Step:
    """No part of a checkpoint has the committed version."""
    (task,) = works(made.order(commit()))
    return made.give(WORKER, WorkFailed(task, DamagedStore("gone")))


def test_a_state_that_no_checkpoint_has_is_fetched() -> None:
    made = desk()
    assert called(lost(made)) == asks(4)
    done: list[Any] = []
    for _, ask in asks(4):
        assert done == []
        done += works(made.give(PEER, Answered(ask, requests.Payload(b"d" * 32), 9)))
    keys = tuple(state_key("all", 4, block) for block in ALL)
    assert done == [AdoptState(commit(), keys)]
    step = made.give(WORKER, done[0])
    assert made.shard.state.group("all").committed == 4
    assert any(keys == task.keys for task in works(step) if hasattr(task, "keys"))
    assert (COORDINATOR, requests.Register) in [(to, type(m)) for to, m in called(step)]


def test_what_was_fetched_and_is_another_state_ends_it() -> None:
    made = desk()
    lost(made)
    for _, ask in asks(4):
        step = made.give(PEER, Answered(ask, requests.Payload(b"d" * 32), 9))
    (task,) = works(step)
    (end,) = made.give(WORKER, WorkFailed(task, DamagedStore("another"))).effects
    assert isinstance(end, Halt)


def test_without_copies_it_ends_at_once() -> None:
    made = Desk("plain")
    made.order(configure(made.plan))
    (end,) = lost(made).effects
    assert isinstance(end, Halt)


def test_an_older_version_of_a_checkpoint_is_fetched_too() -> None:
    made = desk()
    made.order(commit())
    order = orders.WriteCheckpoint(1, 3, (orders.GroupVersion("all", 3),))
    assert called(made.order(order)) == asks(3)
    assert called(made.order(order)) == []
    waits = orders.WriteCheckpoint(1, 4, (orders.GroupVersion("all", 4),))
    assert made.order(waits).effects == [], "it is being adopted"


def test_the_part_is_written_once_its_versions_are_here() -> None:
    made = desk()
    (task,) = works(made.order(commit()))
    made.give(WORKER, task)
    order = orders.WriteCheckpoint(1, 4, (orders.GroupVersion("all", 4),))
    assert made.order(order).effects == [Work(WritePart(4, order.versions))]


def test_a_cohort_is_asked_for_whole() -> None:
    made = desk()
    (task,) = works(made.order(commit(1)))
    made.give(WORKER, task)
    cohort = make_cohort(number=1, version=2)
    members = tuple(
        orders.MemberBlocks(
            m.id, tuple(block_digest(m.id.client, "all", m.id.sequence, b) for b in ALL)
        )
        for m in cohort.members
    )
    hold = orders.Hold(1, cohort, members)
    missing = requests.Missing.of_cohort(OWN, cohort, tuple(m.id for m in cohort.members))
    assert called(made.order(hold)) == [(PEER, missing)]
    for member in cohort.members:
        for block in ALL:
            made.give(PEER, requests.PutBlock(made.header(member.id, block)))
    (work,) = works(made.give(PEER, Answered(missing, requests.Noted())))
    assert isinstance(work, SumCohort)


def test_it_gives_no_block_that_the_other_does_not_hold() -> None:
    made = Desk("plain").founded()
    made.put(made.header(ID, 0))
    step = made.give(PEER, requests.Missing(PEER, "all", 0, (ID,)))
    assert step.effects == [Answer(requests.Noted())]
