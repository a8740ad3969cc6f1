"""A client that keeps its lease and does not send, whatever it says, holds nobody up for ever."""

from __future__ import annotations

from typing import Any

import pytest

from secureps.messages import coordinator_records, orders, requests
from secureps.messages.orders import KeyCommittee
from secureps.messages.submission import Outcome, SubmissionId
from secureps.policy.rules import rule as base_rule
from secureps.roles.coordinator import termination
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import Tick
from tests.kits.roles_kit import HOLDER, MANY
from tests.kits.stream_parties import StreamWorld, stream_plan

SILENT = "c4"


def under(**rule: Any) -> StreamWorld:
    world = StreamWorld(stream_plan({"minimum": 3, "deadline": 50.0, **rule}))
    world.found()
    return world


def others_send(world: StreamWorld, times: int, silent: tuple[str, ...] = (SILENT,)) -> None:
    """All but these, and a deadline passes, so many times."""
    for _ in range(times):
        world.send(*(client for client in world.ready() if client not in silent))
        world.wait(50.0)


@pytest.mark.parametrize("slack", [0, 2])
def test_receipts_of_blocks_that_no_shard_has_and_nothing_comes(slack: int) -> None:
    world = under(name="ssp", slack=slack)
    sent = []
    while SILENT in world.ready():
        sent.append(world.train(SILENT))
        world.drain()
    for client in ("c0", "c1", "c2", "c3"):
        world.train(client)
    world.until(Phase.HOLDING)
    hold = next(due for due in world.due if isinstance(due.order, orders.Hold))
    missing = requests.Missing(hold.sender, "all", world.group().number, (sent[0],))
    world.replace(hold, missing)
    world.senders[SILENT].outbox.clear()
    world.drain()
    assert "waits for c4, 1 clock behind, 50 s left" in world.group().reason
    others_send(world, 3)
    assert world.group().version > 0


@pytest.mark.parametrize("name", ["ssp", "buffered"])
def test_receipts_of_blocks_that_nobody_has_one_after_another(name: str) -> None:
    """It says at once that it has them no more, and is asked for others: three times a version."""
    own = {"slack": 0} if name == "ssp" else {"buffer": 4, "max_staleness": 2}
    world = under(name=name, **own)
    fakes = {world.train(SILENT)}
    world.drain()
    for client in ("c0", "c1", "c2", "c3"):
        world.train(client)
    closed = 0
    while world.due and world.group().version == 0:
        due = world.due[0]
        if isinstance(due.order, orders.Hold):
            lacking = tuple(m.id for m in due.order.cohort.members if m.id in fakes)
            if lacking:
                closed += 1
                number = due.order.cohort.number
                world.replace(due, requests.Missing(due.sender, "all", number, lacking))
                due = world.due[0]
        if isinstance(due.order, orders.SendAgain):
            world.due.remove(due)
            world.senders[SILENT].outbox.pop(due.order.id, None)
            world.give(SILENT, requests.Missing(SILENT, "all", -1, (due.order.id,)))
            if SILENT in world.ready():
                fakes.add(world.train(SILENT))
            continue
        world.deliver(due)
    assert world.group().version == 1
    assert closed <= 6, "three of each of two shards"


def test_refused_often_and_then_anew() -> None:
    world = under(name="ssp", slack=1)
    for k in range(3):
        base = world.group().members.training[SILENT]
        id = SubmissionId(SILENT, "all", 100 + k)
        world.give(SILENT, requests.Withdraw(SILENT, id, base.version, base.step, "no"))
    world.senders[SILENT].invite = None
    world.give(SILENT, requests.Retire(SILENT))
    world.join(SILENT)
    others_send(world, 10)
    assert world.group().version > 5


def test_who_goes_and_comes_without_sending_is_waited_for_once() -> None:
    world = under(name="ssp", slack=0)
    for _ in range(6):
        others_send(world, 1)
        world.give(SILENT, requests.Retire(SILENT))
        world.join(SILENT)
    assert len(world.journalled(coordinator_records.MemberPassed)) <= 1
    assert world.group().version >= 5


def test_silent_members_take_nobodys_place_for_longer_than_a_deadline() -> None:
    world = under(name="buffered", buffer=3, max_staleness=2, concurrency=2)
    silent = tuple(world.group().members.training)
    assert len(silent) == 2
    others_send(world, 1, silent)
    assert world.group().reason.startswith("0 of 3 updates are here")
    others_send(world, 6, silent)
    assert world.group().version > 0


def test_whose_budget_is_spent_lets_nobody_train_beyond_the_plan_s_concurrency(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent = "c0", "c1"
    monkeypatch.setattr(termination, "is_unaffordable", lambda tx, client, group: client in spent)
    world = under(name="buffered", buffer=3, max_staleness=2, concurrency=2)
    world.join("c5")
    world.join("c6")
    assert world.group().members.spent == set(spent)
    assert len(world.group().members.training) == 2


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of a cohort that comes together are never renewed, as if it were very large."""
    monkeypatch.setattr(base_rule, "LARGE", 1)
    monkeypatch.setattr(base_rule, "TOLD", 1)


@pytest.mark.parametrize(("factor", "seconds"), [("buffer", 0.0), ("deadline", 26.0)])
def test_what_follows_the_load_is_in_force_at_once(
    factor: str, seconds: float, seldom: None
) -> None:
    world = under(name="buffered", buffer=4, max_staleness=2)
    world.send("c0", "c1", "c2")
    setattr(world.federation.scaled, factor, 0.5)
    world.now += seconds
    world.give("coordinator", Tick())
    assert world.group().phase is Phase.HOLDING, world.group().reason


def test_what_is_too_stale_is_dropped_as_it_comes(seldom: None) -> None:
    world = under(name="buffered", buffer=4, max_staleness=0)
    late, others = "c0", ("c1", "c2", "c3", "c4")
    world.send(*others)
    assert world.group().version == 1
    world.send("c1")
    id = world.train(late, behind=1)
    world.drain()
    fate = world.federation.settled.of(id)
    assert fate is not None
    assert fate.outcome == Outcome.DROPPED


def test_a_newer_update_takes_the_place_of_the_older_one_as_it_comes(seldom: None) -> None:
    world = under(name="priority", buffer=4, pool=5, max_staleness=3)
    world.send(*MANY[:5])
    assert world.group().version == 1
    left = next(iter(world.group().receipts))
    world.send(left.client)
    fate = world.federation.settled.of(left)
    assert fate is not None
    assert fate.outcome == Outcome.DROPPED


def test_a_deadline_counts_from_the_first_that_holders_have_looked_into(seldom: None) -> None:
    world = under(name="buffered", buffer=5, max_staleness=2)
    world.federation.committees.append(KeyCommittee(b"", (HOLDER,), (), ()))
    opened = world.group().open_receipts
    opened.enough = 1
    first = world.train("c0")
    world.drain()
    world.now += 10.0
    world.send("c1", "c2", "c3")
    for id in [id for id in opened.receipts if id != first]:
        opened.approve(id, HOLDER)
    world.give("coordinator", Tick())
    opened.approve(first, HOLDER)
    world.now += 41.0
    world.give("coordinator", Tick())
    assert world.group().phase is Phase.HOLDING, world.group().reason
