"""Membership: a revoked client is in no later cohort; newcomers wait; lost holders are replaced."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.errors import Refused
from secureps.messages import coordinator_records as records
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import Outcome
from secureps.policy.plan import Plan
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.state import REVOKED
from tests.kits.changing_roster import BEGUN, ChangingRoster
from tests.kits.cheats import journalled
from tests.kits.federations import Tensors, finished, later, same, small_plan, status_of, unharmed
from tests.kits.folding import differing

NEW = "client-05"


def plan_of(cipher: str, wait: float = 0.0, **changes: Any) -> Plan:
    return small_plan(cipher, {"quorum": 5}, newcomers_wait=wait, versions=6, **changes)


def included(changing: ChangingRoster, client: str) -> int:
    return changing.play.coordinator.federation.included[client]


def apart(changing: ChangingRoster) -> dict[str, str]:
    """What `secureps status` says of servers that something is wrong with."""
    return {each.name: each.trouble for each in changing.play.coordinator.servers if each.trouble}


def test_a_shard_that_was_away_hears_of_who_came_before_the_client_is_let_in(
    tmp_path: Path,
) -> None:
    changing = ChangingRoster(plan_of("rlwe"), tmp_path, [NEW])
    play, before = changing.play, changing.play._kit
    changing.play_to(2)
    play.kill("shard-0")
    changing.admit(NEW)

    def back() -> None:
        assert NEW not in play.coordinator.federation.members
        assert apart(changing) == {"shard-0": "goes by roster 1, and the coordinator by 2"}
        play._kit = before  # its own kit is as it was
        play.start("shard-0")

    play.loop.call_later(3.0, back)
    play.run()
    assert included(changing, NEW) >= 1
    assert apart(changing) == {}


@pytest.mark.parametrize(("cipher", "sent"), [("plain", False), ("rlwe", True)])
def test_a_revoked_client_is_in_no_cohort_that_closes_afterwards(
    cipher: str, sent: bool, tmp_path: Path
) -> None:
    """Whether its update was there already or not; the others make the version without it."""

    def slow(name: str, task: object) -> float:
        return 3.0 if name == ("client-00" if sent else NEW) else 1.0

    changing = ChangingRoster(plan_of(cipher), tmp_path, cost=slow)
    play = changing.play
    changing.play_to(2)
    (group,) = play.coordinator.federation.model_groups

    def asked() -> bool:
        return group.phase is Phase.COLLECTING and NEW in group.invited

    play.run(lambda: asked() and (not sent or NEW in group.open_receipts.clients))
    version, known = group.version, included(changing, NEW)
    changing.revoke(NEW)
    federation = play.coordinator.federation
    play.run(lambda: NEW in federation.isolated)
    assert NEW not in play.coordinator.live(play.loop.now())
    play.run(lambda: finished(play))
    assert included(changing, NEW) == known
    assert play.versions() == {"all": 6}
    assert federation.isolated == {NEW: REVOKED}
    fates = [fate for id, fate in federation.fates.items() if id.client == NEW]
    dropped = [fate for fate in fates if fate.outcome == Outcome.DROPPED]
    assert [fate.version for fate in dropped] == [version] * sent
    halt = play.parties[NEW].halted.result()
    assert halt.error is not None
    assert "roster no more" in halt.reason


def test_a_cohort_that_no_holder_was_asked_to_open_closes_anew_without_who_is_revoked(
    tmp_path: Path,
) -> None:
    """By the new roster the holder would refuse it, and all its members would pay for it."""
    changing = ChangingRoster(plan_of("bfv"), tmp_path)
    play = changing.play
    (group,) = play.coordinator.federation.model_groups
    play.run(lambda: (group.phase, group.version) == (Phase.HOLDING, 2))
    changing.revoke(NEW)
    play.run(lambda: finished(play))
    assert journalled(play, records.CohortBurnt) == []
    assert included(changing, NEW) == 2
    assert play.versions() == {"all": 6}


def test_who_is_revoked_while_the_coordinator_is_down_is_out_when_it_is_back(
    tmp_path: Path,
) -> None:
    changing = ChangingRoster(plan_of("rlwe"), tmp_path)
    play = changing.play
    changing.play_to(2)
    known = included(changing, NEW)
    play.kill(COORDINATOR)
    changing.issuer.revoke(NEW)
    play._kit = changing.issuer.kit
    play.start(COORDINATOR)  # its kit is the new one, and its journal knows nothing of it
    play.run(lambda: finished(play))
    assert included(changing, NEW) == known
    assert play.coordinator.federation.isolated == {NEW: REVOKED}


def test_who_comes_waits_for_as_long_as_the_plan_says(tmp_path: Path) -> None:
    """Else somebody with power over the roster fills a cohort around one client."""
    changing = ChangingRoster(plan_of("rlwe", wait=3600.0), tmp_path, [NEW])
    play = changing.play
    everybody = [name for name in play.parties if name != NEW]
    changing.play_to(2)
    changing.admit(NEW, *everybody)
    changing.play_to(3)
    assert NEW not in play.coordinator.federation.members
    changing.tell(*everybody, at=BEGUN + 3599, text=False)
    changing.play_to(4)
    assert NEW not in play.coordinator.federation.members
    changing.tell(*everybody, at=BEGUN + 3601, text=False)
    play.run()
    assert play.versions() == {"all": 6}


def test_nothing_is_sealed_or_opened_by_a_roster_that_expired(tmp_path: Path) -> None:
    """A coordinator that keeps the new one back holds everybody up, and changes nothing else."""
    changing = ChangingRoster(small_plan("rlwe"), tmp_path, holds=60)
    play = changing.play
    everybody = tuple(play.parties)
    changing.tell(*everybody)
    changing.play_to(2)
    changing.tell(*everybody, at=BEGUN + 61, text=False)
    later(play, 8.0)
    assert play.versions() == {"all": 2}
    assert any("expired" in s.trouble for s in play.coordinator.servers)
    changing.issuer.unix += 61
    changing.issuer.sign()
    changing.tell()
    play.run()
    assert same(play.model(), unharmed()[0])


COMES, LOST = "holder-9", "holder-1"


@cache
def whole_model() -> Tensors:
    with TemporaryDirectory() as folder:
        whole = ChangingRoster(plan_of("rlwe"), Path(folder))
        whole.play.run()
        return whole.play.model()


def committees(changing: ChangingRoster) -> list[tuple[str, ...]]:
    return [each.holders for each in changing.play.coordinator.federation.committees]


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
    changing.replace("holder-8", COMES)
    play.kill("holder-8")
    play.start(COMES)
    play.start(away)
    machine: Any = play.parties[away].machine
    follower = machine.follower if away == "holder-0" else machine._follower
    play.run()
    assert not differing(play, seed=3, points=2), "rosters that came are part of a fold"
    for committee in play.coordinator.federation.committees:
        assert follower.number_of(committee.committee) >= 0
    assert same(play.model(), whole_model())


def test_the_holder_of_bfv_is_replaced_by_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All updates are encrypted for its key: with another one it would be another run."""
    caplog.set_level("INFO")
    changing = ChangingRoster(plan_of("bfv"), tmp_path)
    play = changing.play
    changing.play_to(1)
    play.kill("holder-0")
    changing.replace("holder-0", COMES)
    play.start(COMES)
    with pytest.raises(Refused, match="the coordinator's key holders are not those of this kit"):
        play.run()
    assert "nobody can open them, begin a new run from the last model" in caplog.text
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
    changing.replace("", COMES)
    assert f"{old}, and from version 2 on for holder-0, holder-2, holder-3, {COMES}" in reason()
    play.start(COMES)
    changing.play_to(2)
    assert "sealed for" not in reason()
