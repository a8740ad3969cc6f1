"""Secrecy: opened sums tell no more of a client's number of examples than its receipt."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.client.sealing import OutboxSealer
from secureps.client.trainer import FitConfig, FitResult
from secureps.messages.member_records import Sealed
from secureps.messages.submission import Cohort, SubmissionId
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Simulation
from secureps.run.up.folder import client_names
from secureps.service.shard.states import GroupValues
from secureps.service.shard.worker import Stepping
from tests.kits.federations import Tensors, Walker, small_federation, small_plan
from tests.kits.sealed_blocks import looked_at

COUNTS = (5, 812, 7, 64, 65, 9)
SIZE = 217
"""Values of the model that travel."""


class Counted(Walker):
    def __init__(self, number: int, examples: int, moves: bool = True) -> None:
        super().__init__(number)
        self.examples_held, self.moves = examples, moves

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        made = replace(super().fit(parameters, config), examples=self.examples_held)
        return made if self.moves else replace(made, parameters=parameters)


def plan_of(cipher: str) -> Plan:
    """Two versions; a cohort may lack one of six clients, and up to 1024 examples count."""
    group = {"clip": 3.0, "range": 1.0, "most_examples": 1024, "rule": {"quorum": 5, "start": 5}}
    return small_plan(cipher, versions=2, group=[group])


class Shards:
    """What all shards open, cohort by cohort, and beside it what clients sealed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sums: dict[int, list[NDArray[np.int64]]] = {}
        self.cohorts: dict[int, Cohort] = {}
        self.sealed: dict[SubmissionId, NDArray[np.int64]] = {}
        step, seal, shards = Stepping.step, OutboxSealer.seal, self

        def stepped(self: Stepping, block: int, opened: NDArray[np.int64]) -> GroupValues:
            cohort = self._cohort
            blocks = shards.sums.setdefault(cohort.number, [np.empty(0, np.int64)] * 4)
            blocks[block] = opened.copy()
            shards.cohorts[cohort.number] = cohort
            return step(self, block, opened)

        def sealing(self: OutboxSealer, pinned: Any, receipt: Any, blocks: Iterable[Any]) -> Sealed:
            made, again = looked_at(pinned.layout.group(receipt.id.group), blocks)
            shards.sealed[receipt.id] = made.astype(np.int64)
            return seal(self, pinned, receipt, again)

        monkeypatch.setattr(Stepping, "step", stepped)
        monkeypatch.setattr(OutboxSealer, "seal", sealing)

    def opened(self) -> Iterator[tuple[Cohort, NDArray[np.int64]]]:
        for number, blocks in sorted(self.sums.items()):
            yield self.cohorts[number], np.concatenate(blocks)


def played(plan: Plan, folder: Path, counts: Sequence[int], moves: bool = True) -> Simulation:
    """A run in which one client is killed after the first version."""
    simulation = small_federation(plan, folder, kind=lambda i: Counted(i, counts[i], moves))
    simulation.run(lambda: simulation.versions()["all"] == 1)
    simulation.kill("client-01")
    simulation.run()
    return simulation


@pytest.mark.parametrize("cipher", ["plain", "rlwe"])
def test_two_sums_that_differ_by_a_dropout_are_sums_of_values_and_of_nothing_else(
    cipher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, plan = Shards(monkeypatch), plan_of(cipher)
    simulation = played(plan, tmp_path, COUNTS)
    (first, whole), (second, fewer) = shards.opened()
    assert {m.id.client for m in first.members} == {*client_names(6)}
    assert {m.id.client for m in second.members} == {*client_names(6)} - {"client-01"}
    for cohort, total in ((first, whole), (second, fewer)):
        assert total.size == SIZE
        assert np.array_equal(total, sum(shards.sealed[m.id] for m in cohort.members))
    public = {member.id.client: member.examples for member in first.members}
    assert public == dict(zip(client_names(6), COUNTS, strict=True)), "by its receipts alone"
    assert simulation.versions() == {"all": 2}


def test_no_opened_integer_depends_on_a_number_unless_a_value_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of updates that change nothing, sums are the same whatever the clients count by.

    There is one sum: nobody trains from a model once more under another version.
    """
    seen = []
    for name, counts in (("some", COUNTS), ("others", (1,) * 6)):
        shards = Shards(monkeypatch)
        played(plan_of("plain"), tmp_path / name, counts, moves=False)
        seen.append([total.tobytes() for _, total in shards.opened()])
        monkeypatch.undo()
    assert seen[0] == seen[1]
    assert len(seen[0]) == 1
