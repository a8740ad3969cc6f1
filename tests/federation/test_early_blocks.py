"""Blocks that leave early change no bit and cost no update."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from secureps.client.trainer import Array, FitConfig, FitResult
from secureps.errors import DiskFailed
from secureps.messages.member_records import Sealed, SequencesBegun
from secureps.messages.requests import PutBlock, Submit
from secureps.messages.submission import UPDATE
from secureps.roles.member.tasks import Contribute, SealOn
from secureps.run.simulate.simulation import Conditions
from secureps.run.up.folder import client_names
from secureps.store.journal import MemoryJournal
from secureps.store.spool import MemorySpool
from tests.kits.federations import Walker, finished, same, small_federation, small_plan, unharmed

FIRST = client_names(6)[0]


class Watched:
    """A federation, and what its first client journals and sends in virtual time."""

    def __init__(self, cipher: str, folder: Path, versions: int = 2, **conditions: Any) -> None:
        self.journal = MemoryJournal()
        self.left: list[tuple[float, int, int]] = []
        """When which update's block left."""
        self.early = Counter[int]()
        """Blocks that left before their update was journalled, by sequence."""
        self.submitted: list[int] = []

        def journal(name: str) -> MemoryJournal:
            return self.journal if name == FIRST else MemoryJournal()

        own = Conditions(self._note, journal=journal, **conditions)
        self.play = small_federation(small_plan(cipher, versions=versions), folder, own)

    def records(self, kind: type[Any]) -> list[Any]:
        return [record for _, record in self.journal.replay() if isinstance(record, kind)]

    def _note(self, sender: str, to: str, message: Any) -> float:
        if sender == FIRST and isinstance(message, Submit) and message.receipt.purpose == UPDATE:
            self.submitted.append(message.receipt.id.sequence)
        if sender == FIRST and isinstance(message, PutBlock) and message.header.purpose == UPDATE:
            header = message.header
            self.left.append((self.play.loop.now(), header.sequence, header.block))
            sealed = {record.receipt.id.sequence for record in self.records(Sealed)}
            self.early[header.sequence] += header.sequence not in sealed
        return 0.0


@pytest.mark.parametrize(("cipher", "early"), [("plain", 0), ("bfv", 0), ("rlwe", 3)])
def test_only_what_nobody_can_open_leaves_before_its_update_is_journalled(
    cipher: str, early: int, tmp_path: Path
) -> None:
    """And not of the first update, which says that sealing goes well here."""
    watched = Watched(cipher, tmp_path, 3)
    watched.play.run()
    assert [watched.early[sequence] for sequence in (1, 2, 3)] == [0, early, early]
    assert len(watched.records(SequencesBegun)) == (2 if early else 0)
    assert same(watched.play.model(), unharmed(versions=3)[0])


class Failing(MemorySpool):
    """A spool whose disk refuses these blocks, by their number among all that are kept."""

    def __init__(self, fails: Iterable[int]) -> None:
        super().__init__()
        self._fails, self._kept = set(fails), 0

    def keep(self, name: str, pieces: Iterable[bytes | memoryview]) -> tuple[int, bytes]:
        self._kept += 1
        if self._kept in self._fails:
            raise DiskFailed("no space left")
        return super().keep(name, pieces)


@pytest.mark.parametrize(("cipher", "sent"), [("plain", [1, 2, 3]), ("rlwe", [1, 3, 5])])
def test_a_disk_that_fails_between_two_blocks_costs_a_second(
    cipher: str, sent: list[int], tmp_path: Path
) -> None:
    """The first block of one update, the third of another, and the last of a third.

    Sealed again they have other bytes and names, and nobody would delete the ones before.
    """
    spool = Failing((5, 12, 20))  # a founding model of four came before
    watched = Watched(cipher, tmp_path, 3, spool=lambda n: spool if n == FIRST else MemorySpool())
    watched.play.run()
    assert watched.submitted == sent
    assert same(watched.play.model(), unharmed(versions=3)[0])
    assert {key.split("/")[3] for key in spool.keys("update")} == {str(sent[-1])}
    assert len(spool.keys("update")) == 4


def test_sealing_and_sending_go_on_beside_each_other_in_virtual_time(tmp_path: Path) -> None:
    """A block that takes a second to seal leaves after its second, and not after four."""
    left: list[tuple[float, int]] = []

    def cost(name: str, task: object) -> float:
        return 1.0 if isinstance(task, Contribute | SealOn) else 0.0

    def note(sender: str, to: str, message: Any) -> float:
        if sender == FIRST and isinstance(message, PutBlock):
            left.append((play.loop.now(), message.header.block))
        return 0.0

    plan = small_plan("rlwe", versions=2)
    play = small_federation(plan, tmp_path, Conditions(note), cost=cost)
    play.run()
    updates = [at for at, _ in left[-4:]]
    assert [at - updates[0] for at in updates] == [0.0, 1.0, 2.0, 3.0]
    assert sorted(block for _, block in left[-4:]) == [0, 1, 2, 3]
    assert same(play.model(), unharmed(versions=2)[0])


class Sharing(Walker):
    """Trains in the arrays of a model that all clients of the process share."""

    model: ClassVar[dict[str, Array]] = {}

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        result = super().fit(parameters, config)
        for name, values in result.parameters.items():
            self.model.setdefault(name, np.empty_like(values))[...] = values
        return dataclasses.replace(result, parameters=dict(self.model))


def test_others_train_in_the_same_arrays_before_an_update_is_sealed(tmp_path: Path) -> None:
    play = small_federation(small_plan("rlwe", versions=2), tmp_path, kind=Sharing)
    play.run()
    assert same(play.model(), unharmed(versions=2)[0])


def test_who_is_killed_again_and_again_does_not_crowd_out_what_waits(tmp_path: Path) -> None:
    """Its acknowledged update waits for a slow client, while later ones are cut off in sealing."""
    plan = small_plan("rlwe", {"name": "ssp", "slack": 2, "minimum": 6}, versions=2)
    submitted, sent, slow = list[int](), Counter[int](), client_names(6)[1]

    def cost(name: str, task: object) -> float:
        return 300.0 if name == slow and isinstance(task, Contribute) else 0.0

    def note(sender: str, to: str, message: Any) -> float:
        if sender == FIRST and isinstance(message, Submit) and message.receipt.purpose == UPDATE:
            submitted.append(message.receipt.id.sequence)
        if sender == FIRST and isinstance(message, PutBlock) and message.header.purpose == UPDATE:
            sent[message.header.sequence] += 1
        return 0.0

    play = small_federation(plan, tmp_path, Conditions(note), cost=cost)
    play.run(lambda: bool(submitted))
    for _ in range(12):
        known, until = max(sent), play.loop.now() + 1.0
        play.run(lambda: sent[known + 1] > 1 or play.loop.now() > until)  # noqa: B023
        play.kill(FIRST)
        play.start(FIRST)
    play.run(lambda: finished(play) or len(submitted) > 20)
    assert finished(play)
