"""An operator acts while a run is played: it pauses, wants a checkpoint, leaves a client out."""

from __future__ import annotations

import math
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from secureps.messages.acts import Act
from secureps.messages.member_records import OwnAct
from secureps.messages.requests import Noted
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import WORKER
from secureps.roles.member.member import LEFT, PAUSED, Member
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import client_names
from tests.kits.federations import (
    OF_RECORDS,
    finished,
    later,
    same,
    small_federation,
    small_plan,
)
from tests.kits.folding import differing
from tests.kits.streams import BUFFERED, stream, stream_plan

LONG = 300.0
"""Seconds that a pause takes: many deadlines of the plans."""


def say(play: Simulation, act: Act) -> Future[Any]:
    """As the operator's own tool says it."""
    return play.network.transport(COORDINATOR).call(COORDINATOR, act)


def slow(sender: str, to: str, message: object) -> float:
    return 0.05


@pytest.mark.slow
def test_a_pause_costs_no_budget_and_makes_no_version(tmp_path: Path) -> None:
    plan = small_plan("plain", **OF_RECORDS)
    play = small_federation(plan, tmp_path, Conditions(delay=slow))
    group = play.coordinator.federation.groups["all"]
    play.run(lambda: group.version == 1 and group.awaits("client-00"))
    play.run(say(play, Act("pause")).done)
    later(play, LONG)
    federation = play.coordinator.federation
    assert group.version == 1
    assert group.reason == "paused by the operator"
    assert len(group.receipts) == 6, "what is sent is acknowledged"
    assert federation.ledger.count("client-00") == 2
    wake = play.coordinator.wake()
    assert wake is None or wake > play.loop.now(), "nothing is asked again and again"
    play.run(say(play, Act("go-on")).done)
    play.run(lambda: finished(play))
    assert play.coordinator.federation.ledger.count("client-00") == 4


def test_a_round_has_its_whole_deadline_after_a_pause(tmp_path: Path) -> None:
    """Else it would close at once over whoever was there when the pause began."""
    play = stream(
        stream_plan("plain", {"name": "sync", "quorum": 6, "minimum": 2, "deadline": 10.0}),
        tmp_path,
        cost=lambda name, task: LONG + 5.0 if name == "client-05" else 1.0,
    )
    group = play.coordinator.federation.groups["all"]
    play.run(lambda: len(group.receipts) == 5 and group.version == 0)
    play.run(say(play, Act("pause")).done)
    later(play, LONG)
    assert (group.version, len(group.receipts)) == (0, 5)
    play.run(say(play, Act("go-on")).done)
    play.run(lambda: group.version == 1)
    assert play.coordinator.federation.included["client-05"] == 1


def test_a_paused_stream_goes_on_to_its_end(tmp_path: Path) -> None:
    play = stream(stream_plan("plain", BUFFERED), tmp_path)
    play.run(lambda: play.versions() == {"all": 1})
    say_and_wait(play, Act("pause", reason="a visit"))
    later(play, LONG)
    assert play.coordinator.federation.paused == "paused by the operator, a visit"
    assert play.versions()["all"] <= 2, "what was being made is the last"
    say_and_wait(play, Act("go-on"))
    assert play.coordinator.federation.paused == ""
    play.run(lambda: finished(play))
    assert play.versions() == {"all": 4}


@pytest.mark.slow
def test_a_checkpoint_is_made_when_it_is_wanted(tmp_path: Path) -> None:
    plan = small_plan("plain", checkpoint_every=4)
    whole = small_federation(plan, tmp_path / "whole")
    whole.run(lambda: finished(whole))
    play = small_federation(plan, tmp_path / "play", Conditions(delay=slow))
    federation = play.coordinator.federation
    group = federation.groups["all"]
    play.run(lambda: group.version == 2)
    assert [c.version_of("all") for c in federation.checkpoints] == [0]
    assert say_and_wait(play, Act("checkpoint")) == Noted()
    play.run(lambda: federation.checkpoints[-1].version_of("all") == 2)
    play.run(lambda: federation.checkpoints[-1].complete)
    known = len(federation.checkpoints)
    play.run(lambda: group.version == 3)
    assert len(federation.checkpoints) == known, "the next one is due by the plan"
    play.run(lambda: finished(play))
    assert same(play.model(), whole.model())


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


def test_a_client_that_is_left_out_is_in_no_version_until_it_is_taken_back(tmp_path: Path) -> None:
    plan = small_plan(versions=5, rule={"minimum": 3})
    play = small_federation(plan, tmp_path, Conditions(delay=slow))
    federation = play.coordinator.federation
    own = federation.groups["all"]
    play.run(lambda: own.version == 1 and own.awaits("client-02"))
    say_and_wait(play, Act("leave-out", "client-02", "broken data"))
    assert federation.isolated == {"client-02": "by the operator, broken data"}
    play.run(lambda: own.version == 3)
    assert federation.included["client-02"] == 1
    assert {federation.included[name] for name in client_names(6)} == {1, 3}
    play.kill(COORDINATOR)
    play.start(COORDINATOR)
    federation = play.coordinator.federation
    own = federation.groups["all"]
    play.run(lambda: own.version == 3)
    assert "client-02" in federation.isolated, "a restart forgets no act"
    say_and_wait(play, Act("take-back", "client-02"))
    play.run(lambda: finished(play))
    assert own.version == 5
    assert federation.included["client-02"] >= 2
    assert federation.failure == ""
    assert not play.parties["client-02"].halted.done() or (
        play.parties["client-02"].halted.result().error is None
    )


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


# --- acts of a data holder ----------------------------------------------------------


NAME = "client-02"


def played(folder: Path, **changes: Any) -> Simulation:
    plan = small_plan(rule={"quorum": 5, "minimum": 3}, **changes)
    return small_federation(plan, folder, Conditions(delay=slow))


def act(play: Simulation, number: int, what: str, budget: float | None = None) -> None:
    """As the process hears of a line in its state folder; its ledger was lowered before."""
    ledger = play._ledgers[NAME]
    if budget is not None and budget < (ledger.limit or math.inf):
        ledger.lower(budget)
    play.parties[NAME].heard(WORKER, OwnAct(number, what, budget))


def until_version(play: Simulation, version: int) -> None:
    play.run(lambda: play.coordinator.federation.groups["all"].version == version)


def journal_of(play: Simulation) -> list[OwnAct]:
    rows = play._stores[NAME].journal.replay()
    return [record for _, record in rows if isinstance(record, OwnAct)]


def member(play: Simulation) -> Member:
    machine = play.parties[NAME].machine
    assert isinstance(machine, Member)
    return machine


@pytest.mark.slow
def test_a_client_that_is_paused_rests_until_it_goes_on(tmp_path: Path) -> None:
    play = played(tmp_path, versions=9)
    federation = play.coordinator.federation
    until_version(play, 1)
    act(play, 1, "pause")
    until_version(play, 4)
    assert federation.why_gone == {NAME: PAUSED}
    assert federation.retired == set(), "it may come back"
    before = federation.included[NAME]
    act(play, 1, "go-on")  # the number of what is done already
    until_version(play, 5)
    assert federation.included[NAME] == before
    act(play, 2, "go-on")
    play.run()
    assert federation.included[NAME] > before
    assert journal_of(play) == [OwnAct(1, "pause"), OwnAct(2, "go-on")]
    assert play.parties[NAME].halted.result().error is None


def test_a_pause_survives_a_restart_and_hears_of_the_end(tmp_path: Path) -> None:
    play = played(tmp_path)
    until_version(play, 1)
    act(play, 1, "pause")
    play.run(lambda: NAME in play.coordinator.federation.why_gone)
    included = play.coordinator.federation.included[NAME]
    play.kill(NAME)
    play.start(NAME)
    play.run()
    assert play.coordinator.federation.included[NAME] == included
    assert play.parties[NAME].halted.result().reason == "all 4 versions are made"


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
    assert member(play)._appraiser.budget.budget == 0.001
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
