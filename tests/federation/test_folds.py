"""A compacted journal gives the same state and the same model."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.audit.entries import entries
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import Fold
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.store import journal_rows
from secureps.store.journal import SqliteJournal, read_rows
from tests.kits.federations import FEWER, OF_RECORDS, Tensors, same, small_federation, small_plan
from tests.kits.folding import differing, made, said_nothing, through_json
from tests.kits.streams import stream, stream_plan

RULES: dict[str, dict[str, Any]] = {
    "ssp": {"name": "ssp", "slack": 2},
    "buffered": {"name": "buffered", "buffer": 5, "max_staleness": 4, "deadline": 1e6},
    "priority": {
        "name": "priority",
        "buffer": 5,
        "pool": 6,
        "max_staleness": 4,
        "ageing": 1000.0,
        "deadline": 1e6,
    },
}
ROUNDS: dict[str, dict[str, Any]] = {
    "plain": {"cipher": "plain", "checkpoint_every": 2},
    "bfv": {"cipher": "bfv"},
    "committee": {"cipher": "rlwe-2-of-3", "checkpoint_every": 1, **OF_RECORDS},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROUNDS)
def test_a_fold_stands_for_rows_of_rounds(kind: str, tmp_path: Path) -> None:
    plan = small_plan(**ROUNDS[kind], clients=FEWER)
    simulation = small_federation(plan, tmp_path, clients=FEWER)
    simulation.run()
    assert not differing(simulation, seed=1, points=6)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_fold_stands_for_rows_of_streams(rule: str, tmp_path: Path) -> None:
    simulation = stream(stream_plan("rlwe", RULES[rule]), tmp_path, 6)
    simulation.run()
    assert not differing(simulation, seed=2, points=4)


class Both(SqliteJournal):
    """A journal that is compacted, beside one of the same rows that is not."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / "journal.db")
        self.whole = SqliteJournal(folder / "whole.db")
        self.compactions = 0
        self.folds: list[tuple[int, Fold]] = []

    def append(self, at: float, records: Sequence[Any]) -> None:
        super().append(at, records)
        self.whole.append(at, records)

    def compact(self, fold: Fold) -> None:
        super().compact(fold)
        self.compactions += 1
        self.folds.append((self.mark.seq, through_json(fold)))


def compacting(folder: Path) -> tuple[Simulation, dict[str, Both]]:
    journals: dict[str, Both] = {}

    def journal(name: str) -> Both:
        journals[name] = Both(folder / "journals" / name)
        return journals[name]

    plan = small_plan("rlwe-2-of-3", versions=6, checkpoint_every=2, **OF_RECORDS)
    return small_federation(plan, folder, Conditions(journal=journal)), journals


@cache
def unharmed() -> Tensors:
    with TemporaryDirectory() as folder:
        simulation, _ = compacting(Path(folder))
        simulation.run()
        return simulation.model()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_and_compacted_a_run_ends_in_the_same_model(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an auditor reads the same of it."""
    expected = unharmed()
    monkeypatch.setattr(journal_rows, "LEAST", 3_000)
    monkeypatch.setattr(SqliteJournal, "is_due", property(lambda journal: journal._grown > 3_000))
    simulation, journals = compacting(tmp_path)
    rng, deaths = random.Random(seed), Counter[str]()
    while not simulation.coordinator.federation.finished:
        left = [rng.randrange(40, 160)]

        def later(left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] < 0 or bool(simulation.coordinator.federation.finished)

        simulation.run(later)
        victim = rng.choice(sorted(simulation.parties))
        if not simulation.parties[victim].halted.done():
            simulation.kill(victim)
            simulation.start(victim)
            deaths[victim] += 1
    simulation.run()
    assert same(simulation.model(), expected)
    assert sum(deaths.values()) > 10
    for name, journal in journals.items():
        assert journal.compactions > 1, f"{name} has {journal.mark.seq} rows"
        rows, all_rows = list(read_rows(journal._path)), list(read_rows(journal.whole._path))
        assert list(entries(b"", rows)) == list(entries(b"", all_rows))
        given = [(row.at, row.record) for row in all_rows]
        for seq, fold in rng.sample(journal.folds, min(3, len(journal.folds))):
            by_rows = made(simulation, name, given[:seq])
            assert said_nothing(fold) == said_nothing(by_rows), f"{name} at row {seq}"
    gone = [
        each
        for each in journals.values()
        if journal_rows.last_archived(each._path, each._base).seq > 10
    ]
    assert journals[COORDINATOR] in gone
    simulation.close()
