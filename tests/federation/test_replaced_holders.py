"""A key holder that is lost is replaced while a run trains: a committee after another."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.client.worker import ClientWorker
from secureps.errors import Refused
from secureps.roles.coordinator.group import Phase
from secureps.roles.holder.holder import HolderLedger
from tests.federation.test_rosters import plan_of
from tests.kits.changing_roster import ChangingRoster
from tests.kits.federations import Tensors, same, status_of
from tests.kits.folding import differing
from tests.kits.streams import BUFFERED, seconds, stream_plan

NEW, LOST = "holder-9", "holder-1"


@cache
def unharmed() -> Tensors:
    """The model of a run that loses no holder."""
    with TemporaryDirectory() as folder:
        whole = ChangingRoster(plan_of("rlwe"), Path(folder))
        whole.play.run()
        return whole.play.model()


def committees(changing: ChangingRoster) -> list[tuple[str, ...]]:
    return [each.holders for each in changing.play.coordinator.federation.committees]


def test_without_rounds_no_cohort_has_updates_for_two_committees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = stream_plan("rlwe", BUFFERED, versions=8)
    changing = ChangingRoster(plan, tmp_path, cost=seconds)
    play, opened = changing.play, []
    changing.play_to(2)
    play.kill(LOST)
    changing.replace(LOST, NEW)
    play.start(NEW)
    grant = HolderLedger.release

    def noted(ledger: HolderLedger, step: Any, order: Any) -> None:
        opened.append((order.cohort, {receipt.committee for receipt in order.receipts}))
        grant(ledger, step, order)

    monkeypatch.setattr(HolderLedger, "release", noted)
    play.run()
    assert all(found == {cohort.committee} for cohort, found in opened)
    assert len({cohort.committee for cohort, _ in opened}) == 2


TWO = {"holder-0": "holder-8", "holder-1": "holder-9"}
"""Who is lost at once of 3 of 4, and who comes."""


def lose_two(changing: ChangingRoster) -> None:
    """Two are lost, and replaced one after the other."""
    for name in TWO:
        changing.play.kill(name)
    for name, new in TWO.items():
        changing.replace(name, new)
        changing.play.start(new)


@pytest.mark.parametrize("phase", [Phase.COLLECTING, Phase.OPENING])
def test_what_all_have_sealed_for_two_that_are_lost_is_opened_by_nobody(
    phase: Phase, tmp_path: Path
) -> None:
    """And nobody seals that version again: the run ends with what was made, and says why."""
    changing = ChangingRoster(plan_of("rlwe"), tmp_path)
    play = changing.play
    federation = play.coordinator.federation
    group = federation.groups["all"]
    play.run(lambda: (group.phase, group.version) == (phase, 2) and len(group.receipts) == 6)
    lose_two(changing)
    play.run()
    assert play.versions() == {"all": 2}
    assert federation.failure == "TooFew"
    assert "on the roster no more" in next(reversed(federation.fates.values())).reason
    said = {
        Phase.COLLECTING: "it has sealed version 2 of all for other key holders",
        Phase.OPENING: "they were asked to open updates of version 2",
    }
    assert said.get(phase, said[Phase.COLLECTING]) in federation.finished


def test_who_has_not_sealed_yet_makes_the_version_for_those_who_come(tmp_path: Path) -> None:
    """Who has sits out until the next one, which all make."""

    def slow(name: str, task: object) -> float:
        return 1.0 if name == "client-00" else 3.0

    changing = ChangingRoster(plan_of("rlwe"), tmp_path, cost=slow)
    play = changing.play
    federation = play.coordinator.federation
    group = federation.groups["all"]
    play.run(lambda: (len(group.receipts), group.version) == (1, 2))
    lose_two(changing)
    changing.play_to(3)
    assert federation.included == {f"client-{k:02}": 2 + (k > 0) for k in range(6)}
    worker = play.parties["client-00"].worker
    assert isinstance(worker, ClientWorker)
    assert set(TWO) < set(worker._sealer._committee("all", 2).holders)
    play.run()
    assert federation.included == {f"client-{k:02}": 5 + (k > 0) for k in range(6)}
    assert play.versions() == {"all": 6}


@pytest.mark.parametrize("away", ["client-00", "holder-0"])
def test_who_was_away_while_two_rosters_came_hears_of_both(away: str, tmp_path: Path) -> None:
    """What is sealed for those of the first in between needs it."""
    changing = ChangingRoster(plan_of("rlwe"), tmp_path)
    play = changing.play
    group = play.coordinator.federation.groups["all"]
    play.run(lambda: (group.phase, group.version) == (Phase.PREPARING, 1))
    play.kill(away)
    changing.replace(LOST, "holder-8")
    play.kill(LOST)
    play.start("holder-8")
    changing.play_to(2)
    play.run(lambda: len(group.receipts) >= 3)
    changing.replace("holder-8", NEW)
    play.kill("holder-8")
    play.start(NEW)
    play.start(away)
    machine: Any = play.parties[away].machine
    follower = machine._ledger.follower if away == "holder-0" else machine._follower
    play.run()
    assert not differing(play, seed=3, points=2), "rosters that came are part of a fold"
    for committee in play.coordinator.federation.committees:
        assert follower.number_of(committee.committee) >= 0
    assert same(play.model(), unharmed())


def test_the_holder_of_bfv_is_replaced_by_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All updates are encrypted for its key: with another one it would be another run."""
    caplog.set_level("INFO")
    changing = ChangingRoster(plan_of("bfv"), tmp_path)
    play = changing.play
    changing.play_to(1)
    play.kill("holder-0")
    changing.replace("holder-0", NEW)
    play.start(NEW)
    with pytest.raises(Refused, match="the coordinator's key holders are not those of this kit"):
        play.run()
    assert "nobody opens any, begin a new run from the last model" in caplog.text
    assert play.versions() == {"all": 1}


def test_a_status_says_whom_a_version_is_sealed_for(tmp_path: Path) -> None:
    changing = ChangingRoster(plan_of("rlwe"), tmp_path)
    play = changing.play

    def reason() -> str:
        play.run(lambda: play.coordinator._follower.roster == changing.issuer.roster)
        return status_of(play).groups[0].reason

    changing.play_to(1)
    assert "sealed for" not in reason()
    play.kill(LOST)
    changing.revoke(LOST)
    old = "version 1 is sealed for holder-0, holder-1, holder-2, holder-3"
    assert reason().endswith(old)
    changing.replace("", NEW)
    assert f"{old}, and from version 2 on for holder-0, holder-2, holder-3, {NEW}" in reason()
    play.start(NEW)
    changing.play_to(2)
    assert "sealed for" not in reason()
