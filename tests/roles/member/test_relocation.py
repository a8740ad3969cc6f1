"""A client sends to the primaries, and asks the holders, of the newest placement."""

from dataclasses import replace

import pytest

from secureps.errors import WrongRun
from secureps.messages import orders, requests
from secureps.messages.member_records import Sealed
from secureps.messages.records import RunPinned
from secureps.messages.run import GroupPlacement, Placement
from secureps.messages.submission import UPDATE, SubmissionId
from secureps.roles.machine import Call, CallOff, Locate, Step
from secureps.roles.member.member import follow_shards
from secureps.roles.member.outbox import Outbox
from secureps.roles.member.pulled_model import PulledModel
from secureps.roles.pinned_run import Pinned
from tests.kits.roles_kit import (
    ADDRESSES,
    ROSTER,
    SHARDS,
    configure,
    make_header,
    make_placement,
    make_plan,
    make_receipt,
    make_run,
    model_blocks,
)

PLAN = make_plan("plain", replicas=2)
RUN = make_run(PLAN)
PLACEMENT = make_placement(PLAN)
STAYS, GOES = SHARDS
ID = SubmissionId("c0", "all", 1)


def pinned() -> Pinned:
    return Pinned.of(RunPinned(RUN, PLACEMENT, ADDRESSES))


def outbox(id: SubmissionId = ID, stored: tuple[int, ...] = (1,)) -> Outbox:
    """Four blocks in transit, of which the second has arrived."""
    receipt = make_receipt(PLAN, RUN.id, id, 0, b"")
    headers = tuple(make_header(PLAN, RUN.id, id, block, purpose=UPDATE) for block in range(4))
    out = Outbox()
    out.add(Sealed(receipt, headers))
    out.begin_sending(0.0, id)
    out.moving[id].stored.update(stored)
    return out


def left() -> orders.Configure:
    """The second shard, the primary of odd blocks, has left."""
    return replace(configure(PLAN), placement=PLACEMENT.without(GOES), shards=ADDRESSES[:1])


def calls(step: Step) -> list[tuple[str, int]]:
    puts = ((e.to, e.message) for e in step.effects if isinstance(e, Call))
    return [(to, m.header.block) for to, m in puts if isinstance(m, requests.PutBlock)]


def pulls(step: Step) -> list[tuple[str, int]]:
    gets = ((e.to, e.message) for e in step.effects if isinstance(e, Call))
    return [(to, m.block) for to, m in gets if isinstance(m, requests.GetBlock)]


def test_what_was_on_its_way_to_who_left_goes_to_the_next() -> None:
    step, model = Step(), PulledModel()
    moved = follow_shards(step, pinned(), left(), ROSTER, outbox(), model)
    assert calls(step) == [(STAYS, 3)], "block 1 has arrived, by both"
    assert moved.placement.epoch == 2
    assert [e.party for e in step.effects if isinstance(e, Locate)] == [STAYS]
    assert [e.to for e in step.effects if isinstance(e, CallOff)] == [GOES], "it is asked no more"


def test_what_is_sent_anew_is_sent_in_its_clients_own_order() -> None:
    id = SubmissionId("c1", "all", 1)
    step = Step()
    follow_shards(step, pinned(), left(), ROSTER, outbox(id, stored=()), PulledModel())
    assert calls(step) == [(STAYS, 3), (STAYS, 1)]


def test_an_older_placement_changes_nothing() -> None:
    known = replace(pinned(), placement=PLACEMENT.without(GOES))
    step = Step()
    assert follow_shards(step, known, configure(PLAN), ROSTER, outbox(), PulledModel()) is known
    assert calls(step) == []


def test_what_was_asked_of_who_left_is_asked_again() -> None:
    model, known = PulledModel({"all": False}), pinned()
    model.publish(orders.Published(1, "all", 0, model_blocks("all", 0, 4)))
    asked = Step()
    assert model.ask_for_absent(known, asked)
    first = [(e.to, e.others) for e in asked.effects if isinstance(e, Call)]
    assert first == [(STAYS, (GOES,)), (GOES, (STAYS,))] * 2
    assert model.is_pulling
    moved = follow_shards(Step(), known, left(), ROSTER, Outbox(), model)
    again = Step()
    assert model.ask_for_absent(moved, again)
    assert [(e.to, e.others) for e in again.effects if isinstance(e, Call)] == [(STAYS, ())] * 4
    assert [block for _, block in pulls(again)] == [block for _, block in pulls(asked)]


def test_what_is_on_its_way_from_who_still_has_it_is_asked_for_once() -> None:
    """A second request would double the traffic on links that are busy."""
    before = Placement.by_block(1, SHARDS, {"all": [(STAYS,), (GOES,), (STAYS,), (GOES,)]})
    both = Placement.by_block(2, SHARDS, {"all": [(STAYS, GOES), (GOES,), (STAYS,), (GOES,)]})
    over = Placement.by_block(3, SHARDS, {"all": [(GOES,), (GOES,), (STAYS,), (GOES,)]})
    known = Pinned.of(RunPinned(RUN, before, ADDRESSES))
    model, asked = PulledModel({"all": False}), list[list[tuple[str, int]]]()
    model.publish(orders.Published(1, "all", 0, model_blocks("all", 0, 4)))
    for placement in (before, both, over):
        told = replace(configure(PLAN), placement=placement)
        known = follow_shards(Step(), known, told, ROSTER, Outbox(), model)
        step = Step()
        assert model.ask_for_absent(known, step)
        asked.append(pulls(step))
    assert [len(each) for each in asked] == [4, 0, 1]
    assert asked[2] == [(GOES, 0)]


def test_a_placement_that_is_none_is_refused() -> None:
    strange = replace(PLACEMENT, epoch=2, groups=(GroupPlacement("all", ("c1",) * 4),))
    with pytest.raises(WrongRun, match="no placement of this run's blocks"):
        follow_shards(
            Step(), pinned(), replace(left(), placement=strange), ROSTER, Outbox(), PulledModel()
        )
