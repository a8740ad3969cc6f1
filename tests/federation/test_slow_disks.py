"""How often a version waits for disks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from secureps.run.simulate.simulation import Conditions
from secureps.store.envelope_keys import ServedJournal
from secureps.store.journal import Journal, SqliteJournal
from secureps.store.spool import DiskSpool
from tests.kits.federations import small_federation, small_plan


def test_a_version_waits_for_few_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three clients, a shard, the coordinator and three holders, with all that is on disk."""
    waits = list[Path]()

    def wait(file: int) -> None:
        waits.append(Path(os.readlink(f"/proc/self/fd/{file}")))

    class Noted(SqliteJournal):
        def append(self, at: float, records: Sequence[Any]) -> None:
            waits.append(self._path)
            super().append(at, records)

    def journal(name: str) -> Journal:
        (tmp_path / name).mkdir()
        own = Noted(tmp_path / name / "journal.db")
        return ServedJournal(own, tmp_path / name / "runs") if name.startswith("holder") else own

    monkeypatch.setattr(os, "fsync", wait)
    monkeypatch.setattr(os, "fdatasync", wait)
    conditions = Conditions(
        journal=journal, spool=lambda name: DiskSpool(tmp_path / name / "spool")
    )
    changes = {"clients": 3, "shards": 1, "block_size": 1024, "checkpoint_every": 100}
    plan = small_plan("rlwe-2-of-3", **changes)
    simulation = small_federation(plan, tmp_path, conditions, clients=3)
    simulation.run(lambda: simulation.versions() == {"all": 2})
    waits.clear()
    simulation.run(lambda: simulation.versions() == {"all": 3})
    simulation.close()
    parties = (place.relative_to(tmp_path).parts[0].partition("-")[0] for place in waits)
    assert Counter(parties) == {"client": 22, "shard": 16, "coordinator": 10, "holder": 9}
