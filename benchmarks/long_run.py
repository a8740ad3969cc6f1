"""How large is a coordinator's journal after 10,000 versions, and how soon does it start from it?

A real coordinator, its journal on disk, and parties by rote that answer at once: five rows on the
way, with bytes of the file, of the fold, and of the archive in it, and the seconds of a start, by
the clock and of CPU. The privacy ledger, of three clients here, grows all the while, as it must.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.report import Row, report
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.service.replay import compact_if_due, replayed
from secureps.store.journal import SqliteJournal
from tests.kits.folding import said_nothing
from tests.kits.roles_kit import World, make_charter, make_plan

VERSIONS, LOOKS = 10_000, 5
MOST_SECONDS = 3.0
BUDGET = 10**6


class LongRun:
    """A coordinator that goes on from version to version, its journal in a folder."""

    def __init__(self, folder: Path, versions: int) -> None:
        privacy = {
            "noise_multiplier": 50.0,
            "max_grad_norm": 1.0,
            "records": 1000,
            "sample_rate": 0.01,
            "delta": 1e-5,
            "budget": BUDGET,
        }
        self.plan = make_plan(versions=versions + 1, privacy=privacy, training={"local_steps": 1})
        self.path = folder / "journal.db"
        self._journal = SqliteJournal(self.path)
        self._world = World(self.plan)
        self._world.start()
        self._note()

    def play(self, version: int) -> None:
        """Goes on until a version is committed."""
        world = self._world
        while world.group().version < version:
            world.now += 0.01
            world.pump(1)
            self._note()
            compact_if_due("coordinator", world.coordinator, self._journal)
            if len(world.receipts) > 1000:
                world.receipts.clear()

    def _note(self) -> None:
        """Journals what is new, and forgets what was said."""
        world = self._world
        for transaction in world.journal:
            self._journal.append(world.now, transaction)
        for said in (world.journal, world.sent, world.told):
            said.clear()

    def look(self) -> Row:
        """The journal now, and what a start from it takes."""
        machine = Coordinator(make_charter(self.plan))
        base = self._journal._base
        archive = base.execute("SELECT total(length(rows)) FROM archive").fetchone()[0]
        fold = base.execute("SELECT total(length(body)) FROM fold").fetchone()[0]
        self._journal.close()
        wall, cpu = time.perf_counter(), time.process_time()
        self._journal = SqliteJournal(self.path)
        rows = sum(1 for _ in replayed(machine, self._journal))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert said_nothing(machine.folded()) == said_nothing(self._world.coordinator.folded())
        return {
            "versions": self._world.group().version,
            "rows ever": self._journal.mark.seq,
            "rows read": rows,
            "file MB": self.path.stat().st_size / 1e6,
            "fold MB": fold / 1e6,
            "archive MB": archive / 1e6,
            "start s": wall,
            "CPU s": cpu,
        }

    def close(self) -> None:
        """Closes the journal."""
        self._journal.close()


def measure(versions: int, looks: int = LOOKS) -> list[Row]:
    """A row for each part of the way."""
    with (
        tempfile.TemporaryDirectory(prefix="secureps-long-") as folder,
        closing(LongRun(Path(folder), versions)) as run,
    ):
        rows: list[Row] = []
        for part in range(1, looks + 1):
            run.play(part * versions // looks)
            rows.append(run.look())
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--versions", type=int, default=VERSIONS)
    rows = measure(parser.parse_args().versions)
    report("long_run", "A coordinator's journal, and a start from it", rows)
    assert float(rows[-1]["CPU s"]) <= MOST_SECONDS, f"a start takes more than {MOST_SECONDS} s"


if __name__ == "__main__":
    main()
