"""A shard comes onto the roster while a run trains: it holds nothing, and harms nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from secureps.messages.orders import Configure, Finish, RosterChanged
from secureps.messages.requests import AskStatus, Status
from secureps.messages.run import COORDINATOR
from tests.kits.changing_roster import ChangingRoster
from tests.kits.federations import same, small_plan, unharmed

SPARE = "shard-2"


def status_of(changing: ChangingRoster) -> Status:
    asked = changing.play.network.transport("client-00").call(COORDINATOR, AskStatus())
    changing.play.run(asked.done)
    found: Status = asked.result()
    return found


def listed(changing: ChangingRoster) -> dict[str, tuple[bool, bool]]:
    """Shards of a status, and whether they have come and are here."""
    servers = status_of(changing).servers
    return {s.name: (s.registered, s.live) for s in servers if s.role == "shard"}


def test_nobody_waits_for_a_spare_shard(tmp_path: Path) -> None:
    changing = ChangingRoster(small_plan("plain"), tmp_path)
    changing.play_to(1)
    changing.admit_shard(SPARE)
    changing.play.run(lambda: listed(changing).get(SPARE) == (True, True))
    changing.play.kill(SPARE)
    changing.play.run(lambda: listed(changing)[SPARE] == (True, False))
    assert SPARE not in changing.play.reasons()
    assert all(SPARE not in group.reason for group in status_of(changing).groups)
    changing.play.run()
    assert same(changing.play.model(), unharmed("plain")[0])


def test_a_spare_shard_hears_of_the_run_and_of_rosters_alone(tmp_path: Path) -> None:
    changing = ChangingRoster(small_plan("rlwe"), tmp_path)
    play, heard = changing.play, list[Any]()
    changing.play_to(1)
    changing.admit_shard(SPARE)
    party = play.parties[SPARE]
    handle = party.machine.handle

    def noted(now: float, sender: str, event: Any) -> Any:
        if sender == COORDINATOR:
            heard.append(event)
        return handle(now, sender, event)

    party.machine.handle = noted  # type: ignore[method-assign]
    play.run()
    orders = {type(each) for each in heard if hasattr(each, "incarnation")}
    assert {Configure} <= orders <= {Configure, RosterChanged, Finish}
