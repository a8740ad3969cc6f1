"""A client that is always late, or lost its state, holds nobody up."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from secureps.messages import coordinator_records, member_records
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import Contribute
from secureps.run.simulate.simulation import Conditions
from secureps.run.up.folder import client_names
from secureps.store.journal import MemoryJournal
from secureps.store.spool import MemorySpool
from tests.kits.federations import OF_RECORDS, layout_of, small_federation, small_plan

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
    assert [charge.version for charge in member._ledger.charges] == bases
    ledger = late.play.coordinator.federation.ledger
    charges = Counter(charge.party for charge in ledger.charges)
    assert charges == dict.fromkeys(set(client_names(6)) - {LATE}, versions)
