"""A key holder that is lost is replaced while a run trains: a committee after another."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator.group import Phase
from secureps.roles.holder.ledger import HolderLedger
from secureps.run.simulate.simulation import Simulation
from tests.federation.test_rosters import plan_of
from tests.kits.changing_roster import ChangingRoster
from tests.kits.federations import same
from tests.kits.streams import BUFFERED, seconds, stream_plan

NEW, LOST = "holder-9", "holder-1"


def committees(changing: ChangingRoster) -> list[tuple[str, ...]]:
    return [each.holders for each in changing.play.coordinator.federation.committees]


def opening(play: Simulation) -> bool:
    return play.coordinator.federation.groups["all"].phase is Phase.OPENING


@pytest.mark.parametrize("lost", ["holder-0", "holder-3"])
def test_a_lost_holder_is_replaced_and_the_model_is_that_of_a_run_that_lost_none(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ChangingRoster(plan_of("rlwe"), tmp_path / "whole", monkeypatch)
    whole.play.run()
    changing = ChangingRoster(plan_of("rlwe"), tmp_path / "changing", monkeypatch)
    play = changing.play
    changing.play_to(2)
    play.kill(lost)
    changing.replace(lost, NEW)
    play.start(NEW)
    play.run(lambda: play.versions()["all"] >= 4)
    stays = "holder-2"
    play.kill(stays)  # 3 of 4 are needed: without it the new one opens with the others
    play.run()
    assert len(committees(changing)) == 2
    assert NEW in committees(changing)[1]
    assert lost not in committees(changing)[1]
    assert same(play.model(), whole.play.model())


def test_both_committees_open_under_kills_of_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ChangingRoster(plan_of("rlwe"), tmp_path / "whole", monkeypatch)
    whole.play.run()
    for party in (COORDINATOR, "shard-0", "holder-0", NEW, "client-00"):
        changing = ChangingRoster(plan_of("rlwe"), tmp_path / party, monkeypatch)
        play = changing.play
        changing.play_to(1)
        changing.replace(LOST, NEW)
        play.start(NEW)
        play.kill(LOST)
        play.run(partial(opening, play))
        play.kill(party)
        play.start(party)
        changing.play_to(3)
        play.kill(party)
        play.start(party)
        play.run()
        assert len(committees(changing)) == 2
        assert same(play.model(), whole.play.model()), party


def test_without_rounds_no_cohort_has_updates_for_two_committees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = stream_plan("rlwe", BUFFERED, versions=8)
    changing = ChangingRoster(plan, tmp_path, monkeypatch, cost=seconds)
    play, opened = changing.play, []
    changing.play_to(2)
    play.kill(LOST)
    changing.replace(LOST, NEW)
    play.start(NEW)
    grant = HolderLedger.grant

    def noted(ledger: HolderLedger, step: Any, order: Any) -> None:
        opened.append((order.cohort, {receipt.committee for receipt in order.receipts}))
        grant(ledger, step, order)

    monkeypatch.setattr(HolderLedger, "grant", noted)
    play.run()
    assert all(found == {cohort.committee} for cohort, found in opened)
    assert len({cohort.committee for cohort, _ in opened}) == 2


def test_who_is_not_told_of_the_new_holder_is_refused_and_harms_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seals for those that it knows; the others make the versions."""
    changing = ChangingRoster(plan_of("rlwe"), tmp_path, monkeypatch)
    play = changing.play
    changing.play_to(2)
    kept: Any = play.parties["client-00"].machine
    monkeypatch.setattr(kept.committees, "take", lambda order: None)
    play.kill(LOST)
    changing.replace(LOST, NEW)
    play.start(NEW)
    play.run()
    federation = play.coordinator.federation
    assert federation.included["client-00"] == 3
    assert federation.included["client-01"] == 6


def test_a_smaller_roster_changes_nothing_and_who_was_replaced_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = ChangingRoster(plan_of("rlwe"), tmp_path, monkeypatch)
    play = changing.play
    changing.play_to(1)
    play.kill(LOST)
    changing.revoke(LOST)  # three are left of four: they go on
    changing.play_to(2)
    assert len(committees(changing)) == 1
    changing.replace("", NEW)
    play.start(NEW)
    changing.play_to(3)
    assert [NEW in each for each in committees(changing)] == [False, True]
    play.kill(NEW)
    changing.here = (changing.here - {NEW}) | {LOST}
    changing.sign()
    changing.tell()
    play.run()
    assert len(committees(changing)) == 2
