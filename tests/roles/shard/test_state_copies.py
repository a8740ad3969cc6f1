"""A state that a lost disk had is fetched from others, if no checkpoint here has it."""

from __future__ import annotations

from typing import Any

from secureps.errors import DamagedStore
from secureps.messages import orders, requests
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import WORKER, Answered, Halt, Step, Work, WorkFailed
from secureps.roles.shard.keys import state_key
from secureps.roles.shard.tasks import AdoptState, WritePart
from tests.kits.roles_kit import SHARDS, configure, model_blocks, works
from tests.kits.shard_kit import STATE, Desk, called, doubled

PEER = SHARDS[1]
ALL = (0, 1, 2, 3)


def commit(version: int = 4) -> orders.Commit:
    return orders.Commit(1, "all", version, version - 1, model_blocks("all", version, 4), STATE)


def asks(version: int) -> list[tuple[str, Any]]:
    run = doubled().run
    return [(PEER, requests.GetBlock(run, "all", version, b, state=True)) for b in ALL]


def lost(made: Desk) -> Step:
    """No part of a checkpoint has the committed version."""
    (task,) = works(made.order(commit()))
    return made.give(WORKER, WorkFailed(task, DamagedStore("gone")))


def test_a_state_that_no_checkpoint_has_is_fetched() -> None:
    made = doubled()
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
    made = doubled()
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
    made = doubled()
    made.order(commit())
    order = orders.WriteCheckpoint(1, 3, (orders.GroupVersion("all", 3),))
    assert called(made.order(order)) == asks(3)
    assert called(made.order(order)) == []
    waits = orders.WriteCheckpoint(1, 4, (orders.GroupVersion("all", 4),))
    assert made.order(waits).effects == [], "it is being adopted"


def test_the_part_is_written_once_its_versions_are_here() -> None:
    made = doubled()
    (task,) = works(made.order(commit()))
    made.give(WORKER, task)
    order = orders.WriteCheckpoint(1, 4, (orders.GroupVersion("all", 4),))
    assert made.order(order).effects == [Work(WritePart(4, order.versions))]
