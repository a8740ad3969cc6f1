"""Survival: a client that is late, gone, or lost what it had holds nobody up."""

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from secureps.messages import coordinator_records, member_records
from secureps.messages.coordinator_records import RoundOpened
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator import status
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import Contribute
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.run.up.folder import client_names
from secureps.service.metrics import Metrics, hide_names
from secureps.store.journal import MemoryJournal
from secureps.store.spool import MemorySpool
from tests.kits.cheats import journalled
from tests.kits.federations import OF_RECORDS, layout_of, small_federation, small_plan
from tests.kits.streams import ASYNC, BUFFERED, PRIORITY, SSP, stream, stream_plan

LATE = "client-05"
DEADLINE, EXTENSIONS = 10.0, 1
TRAINING = 23.0
"""Seconds that the late client trains for: longer than deadline and extension together."""


class Late:
    """A federation of which one client is always late, and what that client keeps."""

    def __init__(self, folder: Path, versions: int) -> None:
        self.spools: dict[str, MemorySpool] = {}
        self.journals: dict[str, MemoryJournal] = {}
        conditions = Conditions(
            spool=lambda name: self.spools.setdefault(name, MemorySpool()),
            journal=lambda name: self.journals.setdefault(name, MemoryJournal()),
        )
        rule = {"quorum": 5, "deadline": DEADLINE, "extensions": EXTENSIONS}
        plan = small_plan(rule=rule, versions=versions, **OF_RECORDS)
        self.play = small_federation(plan, folder, conditions, cost=self.cost)

    @staticmethod
    def cost(name: str, task: object) -> float:
        return TRAINING if name == LATE and isinstance(task, Contribute) else 0.0

    def journalled(self, party: str, kind: type[Any]) -> list[Any]:
        return [record for _, record in self.journals[party].rows if isinstance(record, kind)]


def test_a_client_that_is_always_late_is_pulled_along_and_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    versions = 14
    late = Late(tmp_path, versions)
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, len(late.spools[LATE].keys()))
        return late.play._over()

    with caplog.at_level(logging.INFO, "secureps"):
        late.play.run(over)

    # Every round closes at its first deadline, by quorum, without it.
    closed = late.journalled("coordinator", coordinator_records.CohortClosed)
    assert [record.cohort.version for record in closed] == list(range(1, versions + 1))
    assert {record.reason for record in closed} == {"deadline: 5 of 6 have arrived, quorum 5"}
    assert late.journalled("coordinator", coordinator_records.RoundExtended) == []
    assert all(m.id.client != LATE for record in closed for m in record.cohort.members)
    assert late.play.loop.now() == pytest.approx(versions * DEADLINE)

    # Whatever it sends is dropped, with the reason, and it goes on from the newest version.
    bases = [record.receipt.version for record in late.journalled(LATE, member_records.Sealed)]
    told = [m for m in caplog.messages if m.startswith(f"{LATE}: {LATE}/all/")]
    pattern = (
        r"client-05: client-05/all/(\d+) was dropped: client-05/all/\1 was trained on version "
        r"(\d+), the open base is (\d+); pull and train again"
    )
    found = [re.fullmatch(pattern, line) for line in told]
    assert [int(match[2]) for match in found if match] == bases == [0, 2, 4, 6, 9, 11]
    assert all(int(match[3]) - int(match[2]) in (2, 3) for match in found if match)
    assert late.play.parties[LATE].halted.result().reason == f"all {versions} versions are made"

    # Its outbox never holds more than one update, and shards do not keep what nobody wants.
    assert most == layout_of(late.play).group("all").blocks
    assert late.spools[LATE].keys() == []

    # What it sealed it has spent, by its own record; what was summed is the coordinator's.
    member = late.play.parties[LATE].machine
    assert isinstance(member, Member)
    assert [charge.version for charge in member._ledger.facts] == bases
    ledger = late.play.coordinator.federation.ledger
    charges = Counter(charge.party for charge in ledger.facts)
    assert charges == dict.fromkeys(set(client_names(6)) - {LATE}, versions)


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
