"""A data holder acts on its own client while a run is played: pauses it, has it leave."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from secureps.messages.member_records import OwnAct
from secureps.policy.plan import Plan
from secureps.roles.machine import WORKER
from secureps.roles.member.leaving import LEFT, PAUSED
from secureps.roles.member.member import Member
from secureps.run.simulate.simulation import Conditions, Simulation
from tests.kits.federations import OF_RECORDS, finished, small_federation, small_plan
from tests.kits.folding import differing

NAME = "client-02"


def plan(**changes: Any) -> Plan:
    group = small_plan().section.group[0].model_dump()
    group["rule"] |= {"quorum": 5, "minimum": 3}
    return small_plan(group=[group], **changes)


def played(made: Plan, folder: Path) -> Simulation:
    return small_federation(made, folder, Conditions(delay=lambda a, b, m: 0.05))


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
    play = played(plan(versions=9), tmp_path)
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
    play = played(plan(), tmp_path)
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
    play = played(plan(versions=6), tmp_path)
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
    made = plan(versions=6, **OF_RECORDS)
    play = played(made, tmp_path)
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
    play = played(plan(), tmp_path)
    until_version(play, 1)
    act(play, 1, "lower-budget", 1.0)
    play.run(play.parties[NAME].halted.done)
    assert "the plan trains without privacy" in play.parties[NAME].halted.result().reason
