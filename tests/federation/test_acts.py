"""An operator acts while a run is played: it pauses, wants a checkpoint, leaves a client out."""

import math
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from secureps.messages.acts import Act
from secureps.messages.member_records import OwnAct
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import WORKER
from secureps.roles.member.member import LEFT, Member
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import client_names
from tests.kits.federations import (
    OF_RECORDS,
    finished,
    later,
    same,
    small_federation,
    small_plan,
    unharmed,
)
from tests.kits.folding import differing

LONG = 300.0
"""Seconds that a pause takes: many deadlines of the plans."""


def say(play: Simulation, act: Act) -> Future[Any]:
    return play.network.transport(COORDINATOR).call(COORDINATOR, act)


def slow(sender: str, to: str, message: object) -> float:
    return 0.05


def say_and_wait(play: Simulation, act: Act) -> Any:
    done = say(play, act)
    play.run(done.done)
    return done.result()


def test_a_checkpoint_is_made_in_a_pause_too(tmp_path: Path) -> None:
    play = small_federation(small_plan("plain", checkpoint_every=4), tmp_path)
    federation = play.coordinator.federation
    play.run(lambda: federation.groups["all"].version == 1)
    say_and_wait(play, Act("pause"))
    say_and_wait(play, Act("checkpoint"))
    play.run(lambda: federation.checkpoints[-1].complete)
    assert federation.checkpoints[-1].version_of("all") >= 1
    say_and_wait(play, Act("go-on"))
    play.run(lambda: finished(play))
    assert same(play.model(), unharmed()[0])


def test_who_is_left_out_while_the_run_is_paused_and_taken_back_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """Its update was refused meanwhile: the open round closes without it."""
    plan = small_plan(rule={"minimum": 3})
    play = small_federation(plan, tmp_path, Conditions(delay=slow))
    federation = play.coordinator.federation
    own = federation.groups["all"]
    play.run(lambda: own.version == 1 and own.awaits("client-02"))
    say_and_wait(play, Act("pause"))
    say_and_wait(play, Act("leave-out", "client-02"))
    later(play, LONG)
    say_and_wait(play, Act("take-back", "client-02"))
    say_and_wait(play, Act("go-on"))
    began = play.loop.now()
    play.run(lambda: own.version == 2)
    assert play.loop.now() - began < 5.0
    play.run(lambda: finished(play))
    assert federation.included == dict.fromkeys(client_names(6), 4) | {"client-02": 3}


NAME = "client-02"


def played(folder: Path, **changes: Any) -> Simulation:
    plan = small_plan(rule={"quorum": 5, "minimum": 3}, **changes)
    return small_federation(plan, folder, Conditions(delay=slow))


def act(play: Simulation, number: int, what: str, budget: float | None = None) -> None:
    """As the process hears of a line in its state folder; its ledger was lowered before."""
    ledger = play._ledgers[NAME]
    if budget is not None and budget < (ledger.limit or math.inf):
        ledger.lower(budget)
    play.parties[NAME].post(WORKER, OwnAct(number, what, budget))


def until_version(play: Simulation, version: int) -> None:
    play.run(lambda: play.coordinator.federation.groups["all"].version == version)


def journal_of(play: Simulation) -> list[OwnAct]:
    rows = play._stores[NAME].journal.replay()
    return [record for _, record in rows if isinstance(record, OwnAct)]


def member(play: Simulation) -> Member:
    machine = play.parties[NAME].machine
    assert isinstance(machine, Member)
    return machine


def test_a_client_that_leaves_ends_and_one_that_is_started_again_joins_again(
    tmp_path: Path,
) -> None:
    play = played(tmp_path, versions=6)
    until_version(play, 1)
    act(play, 1, "leave")
    act(play, 2, "pause")  # it leaves, whatever comes
    play.run(play.parties[NAME].halted.done)
    assert play.parties[NAME].halted.result().reason == LEFT
    assert play.parties[NAME].halted.result().error is None
    assert play.coordinator.federation.retired == {NAME}
    assert journal_of(play) == [OwnAct(1, "leave"), OwnAct(2, "pause"), OwnAct(2, "left")]
    before = play.coordinator.federation.included[NAME]
    until_version(play, 3)
    assert play.coordinator.federation.included[NAME] == before
    play.kill(NAME)
    play.start(NAME)
    act(play, 1, "leave")
    act(play, 2, "pause")
    play.run()
    assert play.coordinator.federation.included[NAME] > before


@pytest.mark.slow
def test_a_lower_budget_holds_without_a_restart_and_after_one(tmp_path: Path) -> None:
    play = played(tmp_path, versions=6, **OF_RECORDS)
    until_version(play, 2)
    act(play, 1, "lower-budget", 0.001)
    act(play, 2, "lower-budget", 40.0)  # it is never raised
    play.run(lambda: bool(journal_of(play)))
    assert member(play)._budget.budget == 0.001
    play.run(play.parties[NAME].halted.done)
    halted = play.parties[NAME].halted.result()
    assert "the budget is 0.001" in halted.reason
    charged = play.coordinator.federation.ledger.count(NAME)
    assert charged <= 3
    play.kill(NAME)
    play.start(NAME)
    play.run(play.parties[NAME].halted.done)
    assert "the budget is 0.001" in play.parties[NAME].halted.result().reason
    play.run(lambda: finished(play))
    assert play.coordinator.federation.ledger.count(NAME) == charged
    assert not differing(play, seed=1, points=3), "it holds after a compaction, too"


def test_a_budget_under_a_plan_without_privacy_means_to_leave(tmp_path: Path) -> None:
    play = played(tmp_path)
    until_version(play, 1)
    act(play, 1, "lower-budget", 1.0)
    play.run(play.parties[NAME].halted.done)
    assert "the plan trains without privacy" in play.parties[NAME].halted.result().reason
