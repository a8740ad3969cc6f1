"""How large are journals after 10,000 versions, and how soon do parties start from them?

A whole federation in virtual time: a coordinator, two shards and three clients with the machines,
workers and journals of real processes. Training costs nothing, and each record is protected, so
that the privacy ledger grows all the while. Every state folder is copied as `secureps backup` does
it, and each party starts from its copy. Journals lie in /dev/shm where there is one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

from benchmarks.report import Row, report
from benchmarks.soak import JournalSize, grown, journal_size
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.plan import Plan
from secureps.roles.machine import Fold, Foldable, Machine
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.service.executor import compact_if_due, replay
from secureps.store.backup import backup
from secureps.store.journal import Journal, SqliteJournal
from tests.kits.federations import Walker

VERSIONS = 10_000
LOOKS = (0.1, 0.25, 0.5, 0.75, 1.0)
MOST_SECONDS = 3.0
MOST_STANDING = 0.2
"""Seconds of CPU for which a loop may stand still while its journal is compacted."""
PARTIES = ("coordinator", "shard-0", "client-0")
CLIENTS = 3
MEMORY = Path("/dev/shm")


def make_plan(versions: int) -> Plan:
    """Two blocks on two shards, in the clear, and a budget for all versions."""
    group = {
        "clip": 3.0,
        "range": 1.0,
        "most_examples": 32,
        "rule": {"quorum": CLIENTS, "minimum": 2, "deadline": 10.0},
        "optimizer": {"name": "adam", "learning_rate": 0.1},
    }
    privacy = {
        "noise_multiplier": 50.0,
        "max_grad_norm": 1.0,
        "records": 1000,
        "sample_rate": 0.01,
        "delta": 1e-5,
        "budget": 1e6,
    }
    plan = {
        "name": "long",
        "versions": versions,
        "shards": 2,
        "block_size": 16,
        "cipher": {"name": "plain", "capacity": 8},
        "group": [group],
        "privacy": privacy,
        "training": {"local_steps": 1},
    }
    return Plan(parse(PlanSection, plan, "long_run"))


def _without_reasons(fold: Fold) -> Fold:
    """Leaves out what each group waits for, of which a coordinator journals nothing."""
    groups = [
        [name, {**group, "reason": ""} if "reason" in group else group]
        for name, group in fold.state.get("groups", ())
    ]
    return Fold(fold.records, {**fold.state, "groups": groups})


class Standing:
    """For how much CPU a compaction, or a part of one, kept each party's loop: the most so far."""

    def __init__(self) -> None:
        self.most = dict.fromkeys(PARTIES, 0.0)

    def __call__(self, party: str, machine: Machine, journal: Journal) -> None:
        """Compacts, as `compact_if_due` does."""
        began = time.thread_time()
        compact_if_due(party, machine, journal)
        self.most[party] = max(self.most.get(party, 0.0), time.thread_time() - began)


class LongRun:
    """A federation that goes on from version to version, its journals in a folder."""

    def __init__(self, folder: Path, versions: int) -> None:
        self._folder = folder
        self._sizes: dict[str, list[JournalSize]] = {name: [] for name in PARTIES}
        trainers = {name: Walker(number, (3, 3)) for number, name in enumerate(names())}
        conditions = Conditions(journal=self._journal)
        cast = Cast(trainers, UnsafeSeed(3))
        self._simulation = Simulation(make_plan(versions + 1), cast, folder, conditions)

    def _journal(self, name: str) -> SqliteJournal:
        path = self._path(name)
        path.parent.mkdir(exist_ok=True)
        return SqliteJournal(path)

    def _path(self, name: str) -> Path:
        return self._folder / name / "journal.db"

    def play(self, version: int) -> None:
        """Goes on until a version is committed."""
        self._simulation.run(lambda: self._simulation.versions()["all"] >= version)

    def look(self, version: int) -> Iterator[Row]:
        """The journals now, and what a start from each takes."""
        for name in PARTIES:
            with tempfile.TemporaryDirectory(dir=self._folder) as copies:
                copy = Path(copies) / name
                backup(self._folder / name, copy)
                yield {"versions": version, "of": name, **self._start(name, copy / "journal.db")}

    def _start(self, name: str, copy: Path) -> Row:
        here = self._simulation.parties[name].machine
        machine = self._simulation._make(name).machine
        assert isinstance(here, Foldable)
        assert isinstance(machine, Foldable)
        wall, cpu = time.perf_counter(), time.process_time()
        with closing(SqliteJournal(copy)) as journal:
            rows = sum(1 for _ in replay(machine, journal))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            ever = journal.mark.seq
        assert _without_reasons(machine.make_fold()) == _without_reasons(here.make_fold())
        size, version = journal_size(self._path(name)), self._simulation.versions()["all"]
        self._sizes[name].append(size)
        wrong = list(grown(self._sizes[name], CLIENTS, version, CLIENTS * version))
        assert not wrong, f"the journal of {name} has {wrong} after {version} versions"
        return {
            "rows ever": ever,
            "rows read": rows,
            "rows MB": size.rows / 1e6,
            "fold MB": size.fold / 1e6,
            "archive MB": size.archive / 1e6,
            "file MB": size.file / 1e6,
            "start s": wall,
            "CPU s": cpu,
        }

    def close(self) -> None:
        """Closes the journals."""
        self._simulation.close()


def names() -> tuple[str, ...]:
    """Of the clients."""
    return tuple(f"client-{number}" for number in range(CLIENTS))


def measure(versions: int) -> list[Row]:
    """A row for each party at each part of the way."""
    memory = MEMORY if MEMORY.is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="secureps-long-", dir=memory) as folder,
        closing(LongRun(Path(folder), versions)) as run,
        mock.patch("secureps.service.executor.compact_if_due", Standing()) as standing,
    ):
        rows: list[Row] = []
        for part in LOOKS:
            run.play(version := round(part * versions))
            rows += [
                {**row, "stands s": standing.most[str(row["of"])]} for row in run.look(version)
            ]
            print(f"version {version}: starts in {rows[-len(PARTIES)]['CPU s']:.2f} s", flush=True)
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--versions", type=int, default=VERSIONS)
    began = time.monotonic()
    rows = measure(parser.parse_args().versions)
    report("long_run", f"Journals, and a start from them; {time.monotonic() - began:.0f} s", rows)
    for row in rows[-len(PARTIES) :]:
        assert float(row["CPU s"]) <= MOST_SECONDS, f"a start takes more than {MOST_SECONDS} s"
        assert float(row["stands s"]) <= MOST_STANDING, f"a loop stands for {row['stands s']} s"


if __name__ == "__main__":
    main()
