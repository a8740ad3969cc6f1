"""How many waits for disks stand in series in a version."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from secureps.run.simulate.simulation import Conditions
from secureps.store.journal import Journal, SqliteJournal
from secureps.store.served_runs import ServedJournal
from secureps.store.spool import DiskSpool
from tests.kits.federations import small_federation, small_plan
from tests.kits.slow_disks import slow_disks

CLIENTS = 3


def on_disk(folder: Path) -> Conditions:
    """Journals and payloads of real processes."""

    def journal(name: str) -> Journal:
        (folder / name).mkdir()
        own = SqliteJournal(folder / name / "journal.db")
        return ServedJournal(own, folder / name / "runs") if name.startswith("holder") else own

    return Conditions(journal=journal, spool=lambda name: DiskSpool(folder / name / "spool"))


def test_a_version_waits_for_few_disks_one_after_another(tmp_path: Path) -> None:
    """Of three clients the shard and the coordinator hear one a little before the others."""
    changes = {"clients": CLIENTS, "shards": 1, "block_size": 1024, "checkpoint_every": 100}
    plan = small_plan("rlwe-2-of-3", **changes)
    with slow_disks() as disks:
        simulation = small_federation(plan, tmp_path, on_disk(tmp_path), clients=CLIENTS)
        simulation.run(lambda: simulation.versions() == {"all": 2})
        before = disks.waits
        simulation.run(lambda: simulation.versions() == {"all": 3})
        simulation.close()
    waits = [Path(each).relative_to(tmp_path) for each in disks.waits[len(before) :]]
    assert disks.waits[: len(before)] == before, "version 3 begins with version 2"
    parties = Counter(place.parts[0].partition("-")[0] for place in waits)
    assert parties == {"client": 6, "shard": 14, "coordinator": 10, "holder": 3}, waits
