"""A server whose disk is full reports it, has senders wait, drops nothing, and goes on."""

import errno
import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import DiskFailed, NotReady, OperatorError, UnknownParty
from secureps.messages.charge import Charge
from secureps.messages.coordinator_records import Finished
from secureps.messages.encoding import payload_digest
from secureps.messages.records import Incarnated
from secureps.messages.requests import (
    AskStatus,
    GetBlock,
    Heartbeat,
    Noted,
    Payload,
    PutBlock,
    Register,
    Status,
    Trouble,
)
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import Answer, Answered, Call, DiskReports, Step, WatchLost
from secureps.run.simulate.simulation import Conditions, Simulation
from secureps.service.executor import AGAIN_SECONDS
from secureps.store import checkpoint
from secureps.store.budget import BudgetLedger
from secureps.store.journal import MemoryJournal, SqliteJournal
from secureps.store.spool import DiskSpool, MemorySpool
from tests.kits.executor_kit import Stage
from tests.kits.federations import same, small_federation, small_plan, status_of, unharmed
from tests.kits.ledgers import charge
from tests.kits.roles_kit import HOLDER, World, make_plan, refused
from tests.service.test_executor import HEADER

FULL = OSError(errno.ENOSPC, "No space left on device")


class Disk:
    """A disk that is full for as long as a test says."""

    def __init__(self) -> None:
        self.full = False
        self.refusals = 0

    def guard(self, error: Exception = FULL) -> None:
        if self.full:
            self.refusals += 1
            raise error

    def is_tried_again(self) -> bool:
        assert self.refusals < 50, "what a test waits for does not come, and retries never end"
        return self.refusals > 2


def state_of(simulation: Simulation, client: str) -> str:
    return next(each.state for each in status_of(simulation).members if each.name == client)


def dropped(simulation: Simulation) -> list[Any]:
    fates = simulation.coordinator.federation.fates
    return [id for id, fate in fates.items() if fate.outcome == "dropped"]


class GuardedSpool(MemorySpool):
    """Payloads on a disk that may be full."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def put(self, key: str, *payload: bytes | memoryview) -> None:
        self._disk.guard()
        super().put(key, *payload)


class GuardedJournal(MemoryJournal):
    """Records on a disk that may be full."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def append(self, at: float, records: Sequence[Any]) -> None:
        self._disk.guard(DiskFailed("journal.db: cannot write: database or disk is full"))
        super().append(at, records)


@pytest.mark.parametrize("party", ["shard-1", "coordinator"])
def test_checkpoints_that_cannot_be_written_are_told_whatever_else_waits(
    party: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation, disk = small_federation(small_plan(), tmp_path), Disk()
    write, own = checkpoint._write, "manifest.json" if party == "coordinator" else "shard-1"

    def guarded(path: Path, pieces: Any, mode: int | None) -> bytes:
        if "checkpoints" in path.parts and path.name.startswith(own):
            disk.guard(DiskFailed(f"{path}: cannot write: No space left on device"))
        return write(path, pieces, mode)

    monkeypatch.setattr(checkpoint, "_write", guarded)

    def shown() -> bool:
        status = status_of(simulation)
        said = f"{party} waits for its own disk: "
        return all(said in each.reason for each in status.groups)

    simulation.run(lambda: simulation.versions()["all"] >= 1)
    disk.full = True
    simulation.run(lambda: disk.is_tried_again() and shown())
    disk.full = False
    simulation.run()
    assert not any(each.trouble for each in status_of(simulation).servers)
    assert dropped(simulation) == []
    assert same(simulation.model(), unharmed()[0])


@pytest.mark.parametrize("what", ["journal", "outbox"])
def test_a_client_waits_for_its_own_disk_and_trains_no_update_twice(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    disk, own = Disk(), "client-02"
    journal, spool = {own: GuardedJournal(disk)}, {own: GuardedSpool(disk)}
    conditions = Conditions(
        journal=lambda name: (what == "journal" and journal.get(name)) or MemoryJournal(),
        spool=lambda name: (what == "outbox" and spool.get(name)) or MemorySpool(),
    )
    simulation = small_federation(small_plan(), tmp_path, conditions)
    simulation.run(lambda: simulation.versions()["all"] >= 1)
    disk.full = True
    waits = "waits for its own disk"  # where that disk is, is said at home alone

    def shown() -> bool:
        return state_of(simulation, own).endswith(f": {waits}")

    simulation.run(lambda: disk.is_tried_again() and shown())
    assert f"; {own} {waits}" in status_of(simulation).groups[0].reason
    assert any("the disk of this process refuses" in line for line in caplog.messages)
    disk.full = False
    simulation.run(lambda: waits not in state_of(simulation, own))
    simulation.run()
    assert dropped(simulation) == []
    assert same(simulation.model(), unharmed()[0])
    trainer = simulation.parties[own].worker._site.trainer  # type: ignore[attr-defined]
    assert trainer.fits == 4


def test_a_coordinator_whose_journal_is_full_answers_and_shows_it(tmp_path: Path) -> None:
    disk = Disk()
    journal = {"coordinator": GuardedJournal(disk)}
    conditions = Conditions(journal=lambda name: journal.get(name) or MemoryJournal())
    simulation = small_federation(small_plan(), tmp_path, conditions)
    simulation.run(lambda: simulation.versions()["all"] >= 1)
    disk.full = True
    simulation.run(lambda: disk.refusals > 0)
    coordinator = simulation.parties["coordinator"]
    seen = coordinator.request("shard-0", AskStatus())
    said = coordinator.request("client-00", Heartbeat("client-00"))
    foreign = coordinator.request("nobody", AskStatus())
    simulation.run(lambda: seen.done() and said.done() and foreign.done())
    assert disk.full
    status = seen.result()
    assert isinstance(status, Status)
    assert any("coordinator waits for its own disk" in group.reason for group in status.groups)
    waits = said.exception()
    assert isinstance(waits, NotReady)
    assert waits.retry_after == AGAIN_SECONDS
    assert isinstance(foreign.exception(), UnknownParty)
    disk.full = False
    simulation.run()
    assert same(simulation.model(), unharmed()[0])


def test_the_end_of_a_run_is_shown_once_it_is_in_the_journal(tmp_path: Path) -> None:
    disk = Disk()

    class FullAtTheEnd(GuardedJournal):
        def append(self, at: float, records: Sequence[Any]) -> None:
            if disk.refusals == 0 and any(isinstance(each, Finished) for each in records):
                disk.full = True
            super().append(at, records)

    journal = {"coordinator": FullAtTheEnd(disk)}
    conditions = Conditions(journal=lambda name: journal.get(name) or MemoryJournal())
    simulation = small_federation(small_plan(), tmp_path, conditions)
    simulation.run(lambda: disk.refusals > 0)
    seen = simulation.parties["coordinator"].request("shard-0", AskStatus())
    simulation.run(seen.done)
    assert disk.full
    assert simulation.coordinator.federation.finished, "it has ended, for all it knows"
    status = seen.result()
    assert isinstance(status, Status)
    assert (status.finished, status.failure) == ("", "")
    disk.full = False
    simulation.run()
    assert status_of(simulation).finished
    assert same(simulation.model(), unharmed()[0])


def test_a_sender_is_asked_to_wait_whatever_the_disk_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for error in (FULL, DiskFailed("spool: cannot write: Input/output error")):
        stage = Stage(lambda s, e: Step([], [Answer(Noted())]))
        disk = Disk()
        take = stage.worker.take

        def guarded(request: Any, payload: bytes | memoryview) -> Callable[[], None]:
            disk.guard(error)  # noqa: B023
            return take(request, payload)  # noqa: B023

        stage.worker.take = guarded  # type: ignore[method-assign]
        disk.full = True
        answers = [stage.executor.request("a", PutBlock(HEADER, b"abc")) for _ in range(2)]
        stage.play()
        for answer in answers:
            refusal = answer.exception()
            assert isinstance(refusal, NotReady)
            assert refusal.retry_after == AGAIN_SECONDS
            assert str(refusal) == f"me waits for its own disk: {error}"
        disk.full = False
        good = stage.executor.request("a", PutBlock(HEADER, b"abc"))
        stage.play()
        assert good.result() == Noted()
        waits = f"waits for its own disk: {error}"
        assert stage.machine.troubles == [waits, ""], "said once each"
        assert not stage.executor.halted.done()
    said = [record.message for record in caplog.records]
    assert len([line for line in said if "the disk of this process refuses" in line]) == 2
    assert len([line for line in said if "the disk works again" in line]) == 2


def test_what_cannot_be_read_now_is_asked_for_again() -> None:
    stage = Stage(lambda s, e: Step([], [Answer(Payload(b"d" * 32), attach="k")]))

    def fetch(key: str) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    stage.worker.fetch = fetch  # type: ignore[method-assign]
    answer = stage.executor.request("a", Heartbeat("a"))
    stage.play()
    assert isinstance(answer.exception(), NotReady)
    assert not stage.executor.halted.done()


def test_an_answer_that_cannot_be_kept_is_kept_later() -> None:
    payload, ask = b"abc", GetBlock(bytes(32), "all", 1, 0)
    stage = Stage(lambda s, e: Step([], [Call("there", ask)] if s == "a" else []))
    disk, keep = Disk(), stage.worker.keep
    failures = iter([DiskFailed("full"), DiskFailed("full")])

    def guarded(request: Any, payload: bytes | memoryview, digest: bytes) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        keep(request, payload, digest)

    stage.worker.keep = guarded  # type: ignore[method-assign]
    stage.executor.request("a", Heartbeat("a"))
    stage.play()
    stage.line.calls[0][2].set_result(Payload(payload_digest(payload), payload))
    stage.play()
    assert stage.worker.kept["kept"] == payload
    assert stage.machine.heard[-1] == (
        "there",
        Answered(ask, Payload(payload_digest(payload)), len(payload)),
    )
    assert not disk.full


def test_the_newest_word_is_the_last_that_is_heard() -> None:
    own = DiskReports("shard-a")
    assert own.report_trouble("full") == [Call(COORDINATOR, Trouble("shard-a", "full"))]
    own.report_trouble("")
    assert own.repeat_if_stale(Trouble("shard-a", "")) == []
    again = own.repeat_if_stale(Trouble("shard-a", "full"))
    assert again == [Call(COORDINATOR, Trouble("shard-a", ""))], "it overtook the newer one"


def test_everybody_speaks_for_their_own_disk() -> None:
    world = World(make_plan())
    world.servers()
    world.enter("c0")
    refused(world, "shard-b", Trouble("shard-a", "full"), UnknownParty, "speaks as shard-a")
    assert not any(each.trouble for each in world.coordinator.servers)
    world.give("shard-a", Trouble("shard-a", "fu\x1b[31mll" + "x" * 9999))
    (trouble,) = [each.trouble for each in world.coordinator.servers if each.trouble]
    assert trouble.startswith("fu?[31mll")
    assert len(trouble) < 1000
    world.give("shard-a", Trouble("shard-a", ""))
    assert not any(each.trouble for each in world.coordinator.servers)


def test_a_server_s_trouble_is_told_until_it_comes_anew() -> None:
    """A server that ended for its trouble is shown as away, with the reason."""
    world = World(make_plan())
    world.servers()
    world.enter("c0")

    def told() -> str:
        (holder,) = [each for each in world.coordinator.servers if each.name == HOLDER]
        return holder.trouble

    register = Register(HOLDER, "", 1.0, world.federation.incarnation)
    world.give(HOLDER, Trouble(HOLDER, "takes no part in the run: no"))
    world.give(HOLDER, register)
    assert told() == "takes no part in the run: no", "it is the same process, and says more"
    world.give(HOLDER, WatchLost())
    assert told() == "takes no part in the run: no"
    assert f"{HOLDER} takes no part in the run: no" in world.status().groups[0].reason
    world.give(HOLDER, register)
    assert told() == ""


def test_a_spool_whose_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, disk = DiskSpool(tmp_path), Disk()
    spool.put("a", b"1")

    def fsync(handle: int) -> None:
        disk.guard()

    monkeypatch.setattr("os.fsync", fsync)
    disk.full = True
    for key in ("a", "b"):
        with pytest.raises(DiskFailed, match="No space left on device"):
            spool.put(key, b"2")
    disk.full = False
    assert (spool.get("a"), spool.keys()) == (b"1", ["a"])
    spool.put("b", b"2")
    assert spool.get("b") == b"2"


def test_a_journal_whose_disk_is_full_goes_on_when_there_is_space(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append(0.0, [Incarnated(1)])
    journal._base.execute("PRAGMA max_page_count = 1")  # as many as there are
    many = [Incarnated(number) for number in range(2, 2000)]
    with pytest.raises(DiskFailed, match="full"):
        journal.append(1.0, many)
    assert [record for _, record in journal.replay()] == [Incarnated(1)]
    journal._base.execute("PRAGMA max_page_count = 100000")
    journal.append(2.0, many)
    journal.close()
    again = SqliteJournal(path)
    assert [record for _, record in again.replay()] == [Incarnated(1), *many]
    again.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk that a file fills and empties."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("a disk of its own needs root, and leave to mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    big = folder / "big"
    with suppress(OSError), big.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return big


@pytest.mark.slow
def test_ledgers_and_journals_on_a_real_full_disk_say_so_and_go_on(small_disk: Path) -> None:
    ledger = BudgetLedger(small_disk / "ledgers" / "a.db")
    run, spent = bytes(32), Charge("a", "all", 0, 1.0, 0.01, 1)
    charge(BudgetLedger(small_disk / "ledgers" / "b.db"), run, replace(spent, party="b"))
    journal = SqliteJournal(small_disk / "journal.db")
    journal.append(0.0, [Incarnated(1)])
    big = fill(small_disk)
    for refuses in (
        lambda: charge(ledger, run, spent),
        lambda: BudgetLedger(small_disk / "ledgers" / "b.db").facts(),
        lambda: journal.append(1.0, [Incarnated(number) for number in range(2, 500)]),
        lambda: SqliteJournal(small_disk / "other.db"),
        lambda: DiskSpool(small_disk / "spool").put("a", bytes(9999)),
    ):
        with pytest.raises((DiskFailed, OperatorError)) as caught:
            refuses()
        assert type(caught.value) is DiskFailed, caught.value
    big.unlink()
    charge(ledger, run, spent)
    journal.append(1.0, [Incarnated(2)])
    journal.close()
    assert [fact for _, fact in ledger.facts()] == [spent]
