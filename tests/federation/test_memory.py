"""Exactness: little memory, slow disks and blocks that leave early change no bit."""

import dataclasses
import os
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pytest

from secureps.client.trainer import Array, FitConfig, FitResult
from secureps.client.worker import ClientWorker
from secureps.errors import ConfigError, DiskFailed, Refused
from secureps.messages.member_records import Sealed, SequencesBegun
from secureps.messages.requests import PutBlock, Submit
from secureps.messages.submission import UPDATE
from secureps.policy.memory import footprint, sealing_memory
from secureps.policy.plan import Plan
from secureps.roles.member.tasks import Contribute, SealOn
from secureps.roles.shard.memory_report import memory_used
from secureps.run.check import assume_service
from secureps.run.simulate.simulation import Conditions
from secureps.run.up.folder import client_names
from secureps.store.envelope_keys import ServedJournal
from secureps.store.journal import Journal, MemoryJournal, SqliteJournal
from secureps.store.spool import DiskSpool, MemorySpool
from tests.kits.federations import (
    Tensors,
    Walker,
    events_of,
    finished,
    killed_at,
    layout_of,
    same,
    small_federation,
    small_plan,
    unharmed,
)
from tests.kits.privacy_kit import PRIVACY
from tests.kits.shoppers import SYNC, shopping, sparse_plan
from tests.kits.thin_group import FED_BACK, THIN

LITTLE = 16 * 4 * 3
"""Bytes: the least for blocks of 16 values and Adam's two vectors; a group has seven or eight."""


def plan_of(cipher: str) -> Plan:
    return small_plan(cipher, versions=3, block_size=16)


@cache
def with_enough(cipher: str) -> Tensors:
    with TemporaryDirectory() as folder:
        play = small_federation(plan_of(cipher), Path(folder))
        play.run(lambda: finished(play))
        return play.model()


@pytest.mark.parametrize(
    ("cipher", "memory"), [("plain", LITTLE), ("rlwe", LITTLE), ("plain", 40 * LITTLE)]
)
def test_memory_changes_no_bit(cipher: str, memory: int, tmp_path: Path) -> None:
    play = small_federation(plan_of(cipher), tmp_path, Conditions(memory=memory))
    play.run(lambda: finished(play))
    assert same(play.model(), with_enough(cipher))
    used = memory_used(play.coordinator.telemetry)
    assert used.keys() == {"shard-0", "shard-1"}
    for each in used.values():
        assert each.memory == memory
        assert each.resident <= each.memory
        assert each.hits + each.waits > 0


def test_less_than_the_least_is_refused_with_the_least(tmp_path: Path) -> None:
    play = small_federation(plan_of("plain"), tmp_path, Conditions(memory=LITTLE - 1))
    with pytest.raises(Refused, match=r'is too little for what this shard holds: .*"1 KiB"'):
        play.run(lambda: finished(play))
    assert play.parties["shard-0"].halted.result(0).error is ConfigError


def test_killed_at_any_time_it_is_the_same_model(tmp_path: Path) -> None:
    conditions = Conditions(memory=LITTLE)
    events = events_of(small_federation(plan_of("plain"), tmp_path / "whole", conditions))
    for moment in range(events // 3, events, events // 3):
        play = small_federation(plan_of("plain"), tmp_path / str(moment), conditions)
        killed_at(play, "shard-0", moment)
        assert same(play.model(), with_enough("plain")), moment


def test_row_blocks_come_and_go(tmp_path: Path) -> None:
    """A limit within which one row-block of a shard's two or three is made in memory."""
    models = []
    for memory in (None, 68_000):
        plan = sparse_plan("plain", SYNC)
        play, _ = shopping(plan, tmp_path / str(memory), Conditions(memory=memory))
        play.run(partial(finished, play))
        models.append(play.model())
    assert same(*models)


@pytest.mark.parametrize(("sparse", "memory"), [(False, 68_000), (True, 300_000), (False, None)])
def test_check_predicts_what_is_in_memory_and_in_files(
    sparse: bool, memory: int | None, tmp_path: Path
) -> None:
    """Of the busiest shard, within 1.5 times."""
    conditions = Conditions(memory=memory)
    if sparse:
        plan = sparse_plan("plain", SYNC)
        play, _ = shopping(plan, tmp_path, conditions, [[0, 1, 2, 3]] * 8)
    else:
        plan = small_plan(block_size=1024, shards=1)
        play = small_federation(plan, tmp_path, conditions, kind=lambda i: Walker(i, (100, 100)))
    play.run(lambda: finished(play))
    groups = layout_of(play).groups
    used = footprint(plan, groups, replace(assume_service(plan), memory=memory))
    resident, files = [], []
    for shard in assume_service(plan).shards:
        states = play.parties[shard].worker._states  # type: ignore[attr-defined]
        held = [made.nbytes for made in states._kept.values() if not made.mapped]
        known = {each.name: states._state.group(each.name).states for each in groups}
        newest = [states.values(at, max(its)).nbytes for at, its in known.items() if its]
        most = max(newest) if memory is None else memory
        made = [each for each in newest if each <= most]
        resident.append(sum(held) + max(made, default=0))  # one more is being made
        files.append(sum(path.stat().st_size for path in (tmp_path / shard / "states").iterdir()))
    assert max(resident) / 1.5 <= used.state <= 1.5 * max(resident)
    assert max(files) / 1.5 <= used.files <= 1.5 * max(files)


RULE = {"quorum": 1, "minimum": 1}
VALUES = 1 << 20
MOST_ERROR = 1.25
"""Of the prediction, either way."""
CLIENT = PRIVACY | {"placement": "local"}


class Still(Walker):
    """Returns what it got, in memory of its own."""

    def parameters(self, seed: int) -> Tensors:
        return {"body": np.full(VALUES, 0.5, np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        return FitResult({"body": parameters["body"] + np.float32(1e-5)}, 10, {}, 1)


def peak(patch: pytest.MonkeyPatch, folder: Path, **changes: Any) -> tuple[float, int]:
    """What one client takes to make its second update, and what is said of it, in bytes."""
    plan = small_plan("plain", versions=2, shards=1, block_size=1 << 19, local=(), **changes)
    draft, seal, peaks = ClientWorker._draft_update, ClientWorker._seal, list[int]()

    def begun(self: ClientWorker, *given: Any) -> Any:
        tracemalloc.start()
        return draft(self, *given)

    def watched(self: ClientWorker, made: Any) -> Any:
        try:
            return (yield from seal(self, made))
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    patch.setattr(ClientWorker, "_draft_update", begun)
    patch.setattr(ClientWorker, "_seal", watched)
    spools = Conditions(spool=lambda name: DiskSpool(folder / name / "spool"))
    small_federation(plan, folder, spools, clients=1, kind=Still).run()
    (group,) = plan.lay_out_sizes({"all": VALUES})
    return peaks[-1] + 2 * 4 * VALUES, sealing_memory(plan, group)  # pulled, and trained


PRIVATE = {"rule": RULE, "weighting": "uniform", "clip": 1.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"group": [{"rule": RULE}]},
        {"group": [{"rule": RULE} | FED_BACK]},
        {"group": [{"rule": RULE} | FED_BACK | {"codec": ("rotate", "round")}]},
        {"group": [{"rule": RULE} | FED_BACK | {"feedback": False}]},
        {"group": [{"rule": RULE, "codec": ("rotate",), "clip": 1.0, "range": 1.0}]},
        {"group": [{"rule": RULE, "codec": THIN[:1], "clip": 1.0, "range": 1.0}]},
        {"group": [PRIVATE], "privacy": CLIENT},
        {"group": [PRIVATE | {"codec": ("rotate",)}], "privacy": CLIENT},
        {"group": [PRIVATE | {"codec": THIN[:2]}], "privacy": CLIENT},
    ],
)
def test_a_client_needs_what_is_said(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needed, said = peak(monkeypatch, tmp_path, **changes)
    assert needed / MOST_ERROR < said < needed * MOST_ERROR


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
