"""A shard whose blocks are others than before asks, fetches, and makes one file of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from secureps.errors import DamagedStore, NotReady, WrongVersion
from secureps.messages import orders, requests
from secureps.messages.encoding import digest
from secureps.messages.requests import GetBlock, Missing, Noted, Payload, Prepared
from secureps.messages.run import COORDINATOR, Placement
from secureps.messages.shard_records import BlocksAdopted
from secureps.roles.machine import WORKER, Answered, Failed, Prune, Step, WorkFailed
from secureps.roles.shard.keys import state_key
from secureps.roles.shard.tasks import AdoptState, WritePart
from tests.kits.roles_kit import SHARDS, configure, make_cohort, make_placement, model_blocks, works
from tests.kits.shard_kit import Desk, called, refused

OWN, PEER = SHARDS
NEW_FILE = digest("new state")
MORE = (0, 1, 2)
"""Its blocks by the second placement, in which it gains block 1."""


def union(desk: Desk) -> Placement:
    before = make_placement(desk.plan)
    held = before.held
    held["all"][1] = (PEER, OWN)
    return Placement.by_block(2, before.shards, held)


def moved(desk: Desk, placement: Placement) -> Step:
    return desk.order(dataclasses.replace(configure(desk.plan), placement=placement))


def commit(**changes: Any) -> orders.Commit:
    known = model_blocks("all", 0, 4)
    return orders.Commit(1, "all", 0, 0, **({"blocks": tuple(known[b] for b in MORE)} | changes))


def fetched(desk: Desk, order: orders.Commit) -> list[AdoptState]:
    """The works that an order comes to, once the other shard has answered all."""
    asked, *asks = called(desk.order(order))
    missing = Missing.of_placement(OWN, "all", desk.shard.state.pinned.placement.epoch)
    assert asked == (PEER, missing)
    for to, ask in asks:
        assert (to, type(ask), ask.state) == (PEER, GetBlock, True)
        assert works(desk.give(PEER, Answered(ask, Payload(b"")))) == []
    step = desk.give(PEER, Answered(missing, Noted()))
    return [task for task in works(step) if isinstance(task, AdoptState)]


def test_what_is_not_here_is_fetched_and_all_is_one_file() -> None:
    desk = Desk().founded()
    moved(desk, union(desk))
    assert (desk.shard.state.own("all"), desk.shard.state.placed("all")) == ((0, 2), MORE)
    (task,) = fetched(desk, commit())
    assert (task.own, task.epoch, task.copies) == (MORE, 2, (state_key("all", 0, 1),))
    step = desk.give(WORKER, dataclasses.replace(task, order=commit(state=NEW_FILE)))
    record = BlocksAdopted("all", 0, 2, commit().blocks, NEW_FILE)
    assert record in step.records
    told = Prepared(OWN, "all", 0, commit().blocks, NEW_FILE, epoch=2)
    assert called(step) == [(COORDINATOR, told)]
    assert desk.shard.state.own("all") == MORE
    assert called(desk.restarted().order(commit())) == [(COORDINATOR, told)], "said again"


def test_who_was_no_part_of_the_run_uses_nothing_that_it_has() -> None:
    desk = Desk().founded()
    held = union(desk).held
    held["all"] = [(PEER, OWN)] * 4
    moved(desk, Placement.by_block(2, SHARDS, held))
    (task,) = fetched(desk, commit(blocks=model_blocks("all", 0, 4), anew=True))
    assert task.copies == tuple(state_key("all", 0, block) for block in range(4))


def test_a_file_of_a_placement_that_is_past_is_not_used() -> None:
    desk = Desk().founded()
    moved(desk, union(desk))
    (task,) = fetched(desk, commit())
    moved(desk, dataclasses.replace(make_placement(desk.plan), epoch=3))
    step = desk.give(WORKER, dataclasses.replace(task, order=commit(state=NEW_FILE)))
    assert (step.records, works(step)) == ([], [Prune(task.copies)])
    assert desk.shard.state.own("all") == (0, 2)


def test_copies_of_a_placement_that_is_past_are_kept_where_they_are_fetched_again() -> None:
    desk = Desk().founded()
    moved(desk, union(desk))
    (task,) = fetched(desk, commit())
    moved(desk, dataclasses.replace(union(desk), epoch=3))
    fetched(desk, commit())
    assert works(desk.give(WORKER, WorkFailed(task, DamagedStore("gone")))) == [Prune(())]


def test_what_was_asked_for_by_a_placement_that_is_past_is_waited_for_no_more() -> None:
    desk = Desk().founded()
    moved(desk, union(desk))
    _, (_, ask) = called(desk.order(commit()))
    moved(desk, dataclasses.replace(make_placement(desk.plan), epoch=3))
    assert desk.give(PEER, Failed(ask, WrongVersion("gone"))).effects == []


def test_nothing_is_held_before_and_the_order_is_asked_for_again() -> None:
    desk = Desk().founded()
    moved(desk, union(desk))
    assert desk.order(desk.hold(make_cohort())).effects == []
    (task,) = fetched(desk, commit())
    step = desk.give(WORKER, dataclasses.replace(task, order=commit(state=NEW_FILE)))
    assert requests.Register in [type(message) for _, message in called(step)]


def test_no_part_of_a_checkpoint_is_written_before_and_the_order_is_asked_for_again() -> None:
    desk = Desk().founded()
    moved(desk, union(desk))
    desk.order(commit())
    part = orders.WriteCheckpoint(1, 0, (orders.GroupVersion("all", 0),))
    assert desk.order(part).effects == []
    desk.give(PEER, Answered(Missing.of_placement(OWN, "all", 2), Noted()))
    step = desk.give(PEER, Answered(GetBlock(desk.run, "all", 0, 1, state=True), Payload(b"")))
    (task,) = works(step)
    step = desk.give(WORKER, dataclasses.replace(task, order=commit(state=NEW_FILE)))
    assert requests.Register in [type(message) for _, message in called(step)]
    assert works(desk.order(part)) == [WritePart(0, part.versions)]


def test_who_holds_none_any_more_keeps_nothing() -> None:
    desk = Desk().founded()
    held = {group: [(PEER,)] * len(each) for group, each in union(desk).held.items()}
    step = moved(desk, Placement.by_block(2, (PEER,), held))
    assert BlocksAdopted("all", -1, 2, (), b"") in step.records
    assert desk.shard.state.spooled == {}
    assert desk.shard.state.reached == ()


def test_who_goes_by_an_older_placement_has_others_wait() -> None:
    desk = Desk().founded()
    refused(desk, PEER, Missing.of_placement(PEER, "all", 2), NotReady, "has yet to hear of")


def test_an_order_of_other_blocks_is_past() -> None:
    desk = Desk().founded()
    moved(desk, union(desk))
    assert desk.order(commit(blocks=model_blocks("all", 0, 2))).effects == []
