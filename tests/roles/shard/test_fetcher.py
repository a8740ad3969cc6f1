"""Versions that a shard lacks: it asks for their blocks, and makes one file of them."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import DamagedStore, NotReady, Refused, WrongVersion
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.requests import GetBlock, Missing, Noted, Payload, Prepared
from secureps.messages.run import COORDINATOR, GroupVersion, Placement
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    Failed,
    Halt,
    Prune,
    Step,
    Work,
    WorkFailed,
)
from secureps.roles.shard.state import GatherState, PayloadsDamaged, state_key
from secureps.store.checkpoint import checkpoint_path
from tests.kits.roles_kit import SHARDS, configure, make_placement, model_blocks, works
from tests.kits.shard_kit import NEW_FILE, STATE, Desk, called, doubled, refused
from tests.service.shard.test_damage import SHARD, Ward, flip

OWN, PEER = SHARDS
ALL = (0, 1, 2, 3)
MORE = (0, 1, 2)
"""Its blocks by the coming placement, in which it gains block 1."""


def target(desk: Desk, *held: tuple[str, ...], epoch: int = 2) -> Placement:
    before = make_placement(desk.plan)
    return Placement.by_block(epoch, before.shards, before.held | {"all": list(held)})


def coming(desk: Desk, epoch: int = 2) -> Placement:
    return target(desk, (OWN,), (OWN,), (OWN,), (PEER,), epoch=epoch)


def told(desk: Desk, placement: Placement | None, now: Placement | None = None) -> Step:
    """Tells the shard of a coming placement, and of one in force if that is another."""
    known = configure(desk.plan)
    now = known.placement if now is None else now
    return desk.order(dataclasses.replace(known, placement=now, coming=placement))


def commit(**changes: Any) -> orders.Commit:
    known = model_blocks("all", 0, 4)
    return orders.Commit(1, "all", 0, 0, **({"blocks": tuple(known[b] for b in MORE)} | changes))


def fetched(desk: Desk, order: orders.Commit) -> list[GatherState]:
    """The tasks that follow from an order, once the other shard has answered everything."""
    asked, *asks = called(desk.order(order))
    missing = Missing.of_placement(OWN, "all", desk.shard.state.epoch)
    assert asked == (PEER, missing)
    for to, ask in asks:
        assert (to, type(ask), ask.state) == (PEER, GetBlock, True)
        assert works(desk.give(PEER, Answered(ask, Payload(b"")))) == []
    step = desk.give(PEER, Answered(missing, Noted()))
    return [task for task in works(step) if isinstance(task, GatherState)]


def gaining() -> tuple[Desk, GatherState]:
    """All blocks that the shard gains are here, and it has to make a file of them."""
    desk = Desk().founded()
    told(desk, coming(desk))
    (task,) = fetched(desk, commit())
    return desk, task


def ready() -> tuple[Desk, Prepared]:
    """The shard has its blocks of the coming placement."""
    desk, task = gaining()
    (record,) = desk.gathered(task).records
    assert isinstance(record, Prepared)
    return desk, record


def test_what_moves_here_is_fetched_and_counts_once_the_placement_is_in_force() -> None:
    desk, task = gaining()
    assert (task.blocks, task.epoch, task.copies) == (MORE, 2, (state_key("all", 0, 1),))
    step = desk.gathered(task)
    made = Prepared(OWN, "all", 0, commit().blocks, NEW_FILE, epoch=2)
    assert step.records == [made]
    assert called(step) == [(COORDINATOR, made)]
    again = desk.restarted()
    assert called(again.order(commit())) == [(COORDINATOR, made)], "said again"
    for each in (desk, again):
        assert each.shard.state.own("all") == (0, 2), "what it serves"
        told(each, None, coming(each))
        assert each.shard.state.own("all") == MORE
        (known,) = each.shard.state.group("all").states.values()
        assert (known.blocks, known.state) == (commit().blocks, NEW_FILE)


def test_who_loses_a_block_makes_its_file_before_the_placement_is_in_force() -> None:
    desk = Desk().founded()
    less = target(desk, (OWN,), (PEER,), (PEER,), (PEER,))
    told(desk, less)
    order = commit(blocks=model_blocks("all", 0, 4)[:1])
    (task,) = works(desk.order(order))
    assert task == GatherState(order, (0,), (), 2)
    desk.gathered(task)
    step = told(desk, None, less)
    assert Prune((), "all", 0, 0) in works(step)
    assert desk.shard.state.group("all").states.keys() == {0}


def test_what_is_sent_while_blocks_move_is_passed_on_to_who_gains_them_first() -> None:
    desk = Desk().founded()
    told(desk, target(desk, (PEER,), (PEER,), (OWN,), (PEER,)))
    header = desk.header(block=0)
    step = desk.put(header)
    assert Call(PEER, requests.PutBlock(header), attach=header.key) in step.effects
    assert not any(isinstance(each, Answer) for each in step.effects)


def test_what_was_sent_before_is_passed_on_too_but_not_what_its_holder_keeps() -> None:
    desk = Desk().founded()
    for block in (0, 2):
        desk.put(desk.header(block=block))
    told(desk, target(desk, (PEER,), (PEER,), (OWN,), (PEER,)))
    step = desk.give(PEER, Missing.of_placement(PEER, "all", 2))
    (lost,) = (each.attach for each in step.effects if isinstance(each, Call))
    assert lost == desk.header(block=0).key


def test_a_file_of_a_placement_that_is_given_up_is_not_used() -> None:
    desk, task = gaining()
    told(desk, None, dataclasses.replace(make_placement(desk.plan), epoch=3))
    step = desk.gathered(task)
    assert (step.records, works(step)) == ([], [Prune(task.copies, "all", 0, 0)])
    assert desk.shard.state.own("all") == (0, 2)


def test_what_came_for_a_placement_that_is_given_up_is_deleted() -> None:
    desk, _ = ready()
    header = desk.header(block=1)
    assert desk.shard.inspect(PEER, requests.PutBlock(header))
    desk.give(PEER, requests.PutBlock(header))
    step = told(desk, None, dataclasses.replace(make_placement(desk.plan), epoch=3))
    assert desk.shard.state.group("all").coming is None
    assert works(step) == [Prune((header.key,)), Prune((), "all", 0, 0)]


def test_who_missed_that_its_placement_is_in_force_uses_its_file_by_the_next_one() -> None:
    desk, made = ready()
    told(desk, None, coming(desk, epoch=3))
    assert desk.shard.state.group("all").states[0].state == made.state


def test_its_file_is_of_no_use_where_other_blocks_are_in_force() -> None:
    desk, _ = ready()
    told(desk, None, target(desk, (OWN,), (PEER,), (PEER,), (PEER,), epoch=3))
    assert desk.shard.state.group("all").states == {}


def test_nothing_moves_to_who_lost_its_own_blocks_before_these_are_back() -> None:
    desk = Desk()
    told(desk, coming(desk))
    assert desk.order(commit()).effects == []


def test_who_gains_a_block_gets_its_state_and_others_do_not_yet() -> None:
    desk = Desk().founded()
    ask = GetBlock(desk.run, "all", 0, 0, state=True)
    refused(desk, PEER, ask, NotReady, "shard-b does not hold block 0 of all")
    told(desk, target(desk, (PEER,), (PEER,), (OWN,), (PEER,)))
    (answer,) = desk.give(PEER, ask).effects
    assert answer == Answer(Payload(b""), attach=state_key("all", 0, 0))


def test_copies_of_a_placement_that_is_past_are_kept_where_they_are_fetched_again() -> None:
    desk, task = gaining()
    before = dataclasses.replace(make_placement(desk.plan), epoch=3)
    told(desk, coming(desk, epoch=4), before)
    fetched(desk, commit())
    step = desk.give(WORKER, WorkFailed(task, DamagedStore("gone")))
    assert works(step) == [Prune((), "all", 0, 0)]


def test_what_was_asked_for_by_a_placement_that_is_past_counts_no_more() -> None:
    """What another shard took in since its late answer would be lost, once it holds it no more."""
    desk, before = Desk().founded(), dataclasses.replace(make_placement(Desk().plan), epoch=3)
    told(desk, coming(desk))
    (_, late), (_, ask) = called(desk.order(commit()))
    told(desk, None, before)
    assert desk.give(PEER, Failed(ask, WrongVersion("gone"))).effects == []
    told(desk, coming(desk, epoch=4), before)
    (_, missing), (_, ask) = called(desk.order(commit()))
    desk.give(PEER, Answered(ask, Payload(b"")))
    assert works(desk.give(PEER, Answered(late, Noted()))) == []
    assert len(works(desk.give(PEER, Answered(missing, Noted())))) == 1


def test_no_part_of_a_checkpoint_is_written_before_and_it_is_ordered_again() -> None:
    desk = Desk().founded()
    told(desk, coming(desk))
    desk.order(commit())
    part = orders.WriteCheckpoint(1, 0, (GroupVersion("all", 0),))
    assert desk.order(part).effects == []
    desk.give(PEER, Answered(Missing.of_placement(OWN, "all", 2), Noted()))
    step = desk.give(PEER, Answered(GetBlock(desk.run, "all", 0, 1, state=True), Payload(b"")))
    (task,) = works(step)
    desk.gathered(task)
    assert works(desk.order(part)) == [part]


def test_who_holds_none_any_more_keeps_nothing() -> None:
    desk = Desk().founded()
    desk.put(desk.header())
    held = {group: [(PEER,)] * len(each) for group, each in make_placement(desk.plan).held.items()}
    told(desk, None, Placement.by_block(2, (PEER,), held))
    assert desk.shard.state.spooled == {}
    assert desk.shard.state.reached == ()


def test_who_goes_by_an_older_placement_has_others_wait() -> None:
    desk = Desk().founded()
    refused(desk, PEER, Missing.of_placement(PEER, "all", 2), NotReady, "has yet to hear of")


def test_an_order_of_other_blocks_is_past() -> None:
    desk = Desk().founded()
    told(desk, coming(desk))
    assert desk.order(commit(blocks=model_blocks("all", 0, 2))).effects == []


def newest(version: int = 4) -> orders.Commit:
    return orders.Commit(1, "all", version, version - 1, model_blocks("all", version, 4), STATE)


def asks(version: int) -> list[tuple[str, Any]]:
    run = doubled().run
    return [(PEER, requests.GetBlock(run, "all", version, b, state=True)) for b in ALL]


def lost(made: Desk) -> Step:
    """No part of a checkpoint has the committed version."""
    (task,) = works(made.order(newest()))
    return made.give(WORKER, WorkFailed(task, DamagedStore("gone")))


def test_a_state_that_no_checkpoint_has_is_fetched() -> None:
    made = doubled()
    assert called(lost(made)) == asks(4)
    done: list[Any] = []
    for _, ask in asks(4):
        assert done == []
        done += works(made.give(PEER, Answered(ask, Payload(b"d" * 32), 9)))
    keys = tuple(state_key("all", 4, block) for block in ALL)
    assert done == [GatherState(newest(), ALL, keys)]
    step = made.gathered(done[0])
    assert made.shard.state.group("all").committed == 4
    assert any(keys == task.keys for task in works(step) if hasattr(task, "keys"))
    assert (COORDINATOR, requests.Register) in [(to, type(m)) for to, m in called(step)]


def test_what_was_fetched_and_is_another_state_ends_it() -> None:
    made = doubled()
    lost(made)
    for _, ask in asks(4):
        step = made.give(PEER, Answered(ask, Payload(b"d" * 32), 9))
    (task,) = works(step)
    (end,) = made.give(WORKER, WorkFailed(task, DamagedStore("another"))).effects
    assert isinstance(end, Halt)


def test_what_came_and_is_damaged_since_is_fetched_again() -> None:
    made = doubled()
    lost(made)
    for again in (True, False):
        for _, ask in asks(4):
            step = made.give(PEER, Answered(ask, Payload(b"d" * 32), 9))
        (task,) = works(step)
        if again:
            damaged = PayloadsDamaged(frozenset({state_key("all", 4, 1)}))
            assert called(made.give(WORKER, WorkFailed(task, damaged))) == asks(4)
    made.gathered(task)
    assert made.shard.state.group("all").committed == 4


def test_a_gained_block_that_is_damaged_since_is_fetched_again_alone() -> None:
    desk, task = gaining()
    step = desk.give(WORKER, WorkFailed(task, PayloadsDamaged(frozenset(task.copies))))
    ((to, ask),) = called(step)
    assert (to, type(ask), ask.block, ask.state) == (PEER, GetBlock, 1, True)


def test_without_copies_it_ends_at_once() -> None:
    made = Desk("plain")
    made.order(configure(made.plan))
    (end,) = lost(made).effects
    assert isinstance(end, Halt)


def test_an_older_version_of_a_checkpoint_is_fetched_too() -> None:
    made = doubled()
    made.order(newest())
    order = orders.WriteCheckpoint(1, 3, (GroupVersion("all", 3),))
    assert called(made.order(order)) == asks(3)
    assert called(made.order(order)) == []
    waits = orders.WriteCheckpoint(1, 4, (GroupVersion("all", 4),))
    assert made.order(waits).effects == [], "it is on its way"


def test_the_part_is_written_once_its_versions_are_here() -> None:
    made = doubled()
    (task,) = works(made.order(newest()))
    made.gathered(task)
    order = orders.WriteCheckpoint(1, 4, (GroupVersion("all", 4),))
    assert made.order(order).effects == [Work(order)]


def lose_everything(ward: Ward) -> None:
    """Another disk: journal, payloads and states are gone, parts of checkpoints are not."""
    ward.play.kill(SHARD)
    ward.journals[SHARD].rows.clear()
    for where in ("spool", "states"):
        ward.wipe(where)


def to_part(ward: Ward, number: int) -> Path:
    """Plays until shard-0 has written its part of a checkpoint."""
    part = checkpoint_path(ward.play.checkpoints, number) / f"{SHARD}.safetensors"
    ward.play.run(part.is_file)
    return part


@pytest.mark.parametrize(("cipher", "phase"), [("plain", Phase.HOLDING), ("rlwe", Phase.OPENING)])
def test_it_goes_on_from_its_part_of_a_checkpoint(
    cipher: str, phase: Phase, tmp_path: Path
) -> None:
    ward = Ward(tmp_path, cipher, checkpoint_every=1)
    to_part(ward, 3)
    ward.until(phase, 3)
    lose_everything(ward)
    ward.play.start(SHARD)
    ward.ends_as_unharmed()
    ward.nothing_was_burnt()
    adopted = ward.journalled(SHARD, Prepared)[0]
    assert (adopted.version, adopted.cohort) == (3, -1)


@pytest.mark.parametrize("restarted", [False, True], ids=["away", "coordinator restarts"])
def test_no_version_is_committed_while_a_shard_that_was_prepared_is_away(
    restarted: bool, tmp_path: Path
) -> None:
    """If it came back without its disk, it could not make a committed version again."""
    ward = Ward(tmp_path, "plain", checkpoint_every=1)
    to_part(ward, 2)
    ward.until(Phase.PREPARING, 2)
    ward.play.kill("shard-1")
    ward.play.run(lambda: SHARD in ward.group.coming)
    lose_everything(ward)
    if restarted:
        ward.play.kill("coordinator")
        ward.play.start("coordinator")
    ward.play.start("shard-1")
    ward.play.run(lambda: "shard-1" in ward.group.coming or ward.group.version > 2)
    assert ward.group.version == 2
    ward.play.start(SHARD)
    ward.ends_as_unharmed()
    ward.nothing_was_burnt()


@pytest.mark.slow
def test_without_its_seed_a_shard_adds_other_noise_and_the_cohort_is_begun_anew(
    tmp_path: Path,
) -> None:
    """Two sums with noise of two seeds would tell their mean, so neither steps the model."""
    privacy = {"unit": "client", "placement": "aggregator", "noise_multiplier": 1.0}
    privacy |= {"delta": 1e-5, "budget": 999.0}
    group = {"clip": 3.0, "weighting": "uniform", "rule": {"quorum": 6}}
    ward = Ward(tmp_path, "rlwe", checkpoint_every=1, privacy=privacy, group=[group])
    to_part(ward, 2)
    ward.until(Phase.PREPARING, 2)
    lose_everything(ward)
    ward.play.lose(SHARD, UnsafeSeed(99))
    ward.play.start(SHARD)
    ward.play.run()
    (burnt,) = ward.journalled("coordinator", coordinator_records.CohortBurnt)
    assert burnt.reason.startswith("shard-0 lost the sums, and made again from the same blocks")
    assert ward.group.version == 4


@pytest.mark.parametrize("damaged", [False, True], ids=["none so new", "damaged"])
def test_without_such_a_part_it_ends_before_anything_is_opened(
    damaged: bool, tmp_path: Path
) -> None:
    ward = Ward(tmp_path, "bfv", checkpoint_every=1 if damaged else 2)
    ward.until(Phase.HOLDING, 3)
    number = 3 if damaged else 1
    part = checkpoint_path(ward.play.checkpoints, number) / f"{SHARD}.safetensors"
    lose_everything(ward)
    if damaged:
        flip(part)
    ward.play.start(SHARD)
    with pytest.raises(Refused) as ended:
        ward.play.run()
    said = str(ended.value)
    what = "is damaged" if damaged else "holds version 2"
    assert f"no part of a checkpoint has version 3 of all: {part} {what}" in said
    whole = "000002" if damaged else "000001"
    assert f"or begin a new run from checkpoint {whole}" in said
    opened = ward.journalled("coordinator", coordinator_records.CohortOpened)
    assert len(opened) == 3
    assert ward.group.phase is Phase.HOLDING


def test_without_any_part_it_says_where_it_looked(tmp_path: Path) -> None:
    ward = Ward(tmp_path, "plain", checkpoint_every=1)
    ward.until(Phase.HOLDING, 2)
    lose_everything(ward)
    shutil.rmtree(ward.play.checkpoints)
    ward.play.start(SHARD)
    with pytest.raises(Refused, match=f"none is in {ward.play.checkpoints}"):
        ward.play.run()


@pytest.mark.slow
def test_a_state_file_that_cannot_be_read_is_missed_before_the_sum_is_opened(
    tmp_path: Path,
) -> None:
    """An opened sum that cannot be stepped from would be charged for nothing."""
    ward = Ward(tmp_path, "bfv", checkpoint_every=2)
    ward.until(Phase.HOLDING, 3)
    ward.play.kill(SHARD)
    for path in ward.state_files():
        flip(path)
    shutil.rmtree(ward.play.checkpoints)
    ward.play.start(SHARD)
    with pytest.raises((DamagedStore, Refused), match="version 3 of all is lost"):
        ward.play.run()
    assert ward.group.phase is Phase.HOLDING
    assert len(ward.journalled("coordinator", coordinator_records.CohortOpened)) == 3
