"""Every rule says what it waits for, in status and metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from secureps.messages.coordinator_records import RoundOpened
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator import status
from secureps.run.simulate.simulation import Simulation
from secureps.run.up.folder import client_names
from secureps.service.metrics import Metrics, hide_names
from tests.kits.cheats import journalled
from tests.kits.streams import ASYNC, BUFFERED, PRIORITY, SSP, stream, stream_plan

SYNC = {"name": "sync", "quorum": 5}
EXPECTED = {
    "sync": r"\d of 6 have arrived; waits for client-\d\d(, client-\d\d)*( and \d more)?",
    "ssp": r"\d members have sent; cohort \d waits for client-\d\d(, client-\d\d)*( and \d more)?"
    r"( at clock \d|, \d clocks? behind, \d+ s left)",
    "buffered": r"\d of 5 updates are here, the minimum cohort is 5",
    "priority": r"\d of 6 updates are here(, the minimum cohort is 5|; \d members train)",
    "async": r"0 of 1 updates are here, the minimum cohort is 1",
}


def halfway(rule: dict[str, Any], folder: Path) -> Simulation:
    """Version 2 is there, and some train for the next."""
    play = stream(stream_plan("plain", rule), folder)
    group = play.coordinator.federation.groups
    play.run(
        lambda: (
            "all" in group
            and group["all"].version == 2
            and group["all"].phase.value == "collecting"
            and any(group["all"].awaits(name) for name in client_names(6))
        )
    )
    return play


@pytest.mark.parametrize(
    "rule", [SYNC, SSP, BUFFERED, PRIORITY, ASYNC], ids=lambda rule: rule["name"]
)
def test_every_rule_says_what_it_waits_for(rule: dict[str, Any], tmp_path: Path) -> None:
    play = halfway(rule, tmp_path)
    machine, now = play.coordinator, play.loop.now()
    shown = status.status(machine._tx(now), (), machine.servers)
    (group,) = shown.groups
    assert re.fullmatch(EXPECTED[rule["name"]], group.reason), group.reason
    assert "\n" not in group.reason
    training = {name for name in client_names(6) if machine.federation.groups["all"].awaits(name)}
    assert set(group.late) == training
    assert {m.name for m in shown.members if m.state == "trains"} == training
    assert {m.state for m in shown.members} <= {"trains", "waits"}
    metrics = Metrics()
    metrics.on_state(machine, now)
    why = hide_names(group.reason, machine.federation.members)
    assert "client-0" not in why
    labels = {"group": "all", "why": why}
    assert metrics.registry.get_sample_value("secureps_group_waits", labels) == 1


@pytest.mark.parametrize("rule", [SSP, BUFFERED, PRIORITY], ids=lambda rule: rule["name"])
def test_a_stream_without_members_waits_for_members(rule: dict[str, Any], tmp_path: Path) -> None:
    play = stream(stream_plan("rlwe", rule), tmp_path, 4)
    group = play.coordinator.federation.groups
    play.run(lambda: play.loop.now() > 60)
    reason = group["all"].reason
    assert reason.endswith("; waits for members: 4 are live, a cohort needs 5")
    assert reason.count("waits for members") == 1


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("waits for ada, eve and 3 more at clock 2", "waits for clients at clock 2"),
        ("ada trains; eve.b.", "clients trains; clients."),
        ("waits for ada, 2 clocks behind, 17 s left", "waits for clients, 2 clocks behind"),
        ("adamant: shard-0 is away", "adamant: shard-0 is away"),
        ("5 of 6 are here; ada", "5 of 6 are here; clients"),
    ],
)
def test_metrics_name_no_client(reason: str, told: str) -> None:
    assert hide_names(reason, {"ada", "eve", "eve.b"}) == told


def test_who_went_before_a_restart_is_not_invited_for_its_lease(tmp_path: Path) -> None:
    """The journal does not say who has gone: nobody waits to a deadline to find that out."""
    rule, gone = SYNC | {"deadline": 100.0}, "client-05"
    play = stream(stream_plan("plain", rule, versions=9, lease=20.0), tmp_path)

    def version() -> int:
        return play.versions().get("all", -1)

    play.run(lambda: version() == 1)
    play.kill(gone)
    play.run(lambda: gone not in play.coordinator.live(play.loop.now()) and version() >= 2)
    play.kill(COORDINATOR)
    play.start(COORDINATOR)
    play.run(lambda: play.coordinator.federation.incarnation == 2)
    at, reached = play.loop.now(), version()
    assert gone in play.coordinator.live(at), "for all that the journal says"
    before = len(journalled(play, RoundOpened))
    play.run(lambda: version() >= reached + 3)
    rounds = journalled(play, RoundOpened)[before:]
    assert [gone in each.invited for each in rounds] == [False] * len(rounds)
    assert all(len(each.invited) == 5 for each in rounds)
    assert play.loop.now() - at < 100.0
