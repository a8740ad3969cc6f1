"""Copies of checkpoints equal the originals, never delay a run, and are complete or invisible."""

import logging
import threading
import uuid
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from secureps.errors import DiskFailed, OperatorError
from secureps.files.objects import ObjectStore
from secureps.messages.orders import WriteCheckpoint
from secureps.messages.run import Placement
from secureps.roles.coordinator.state import WriteManifest
from secureps.run.export import Model, export, newest_model
from secureps.service import checkpoint_copies
from secureps.service.checkpoint_copies import CheckpointCopies, CopiedCheckpoints, parts_at
from secureps.store.checkpoint import checkpoint_path
from tests.kits.checkpoints import SHARDS
from tests.kits.object_stores import content
from tests.kits.polling import until
from tests.run.test_export import write

WAIT = 20.0


class Store(ObjectStore):
    """A store in memory that refuses on demand, or is cut off in the middle."""

    def __init__(self, url: str = "") -> None:
        super().__init__(url or f"memory://{uuid.uuid4()}/run/checkpoints")
        self.down, self.tries = False, 0
        self.order: list[str] = []

    def create(self, name: str, data: bytes) -> None:
        self.tries += 1
        if self.down:
            raise DiskFailed(f"{self.name}/{name}: PermissionError: Forbidden")
        super().create(name, data)
        self.order.append(name)


class Copying:
    """The copies of one server; waits until everything is copied or trouble is reported."""

    def __init__(self, folder: Path, store: Store, party: str = "coordinator") -> None:
        self.copies = CheckpointCopies(party, folder, store)
        self.told: list[str] = []
        self._changed = threading.Condition()
        self.copies.start(self._trouble)

    def _trouble(self, text: str) -> None:
        with self._changed:
            self.told.append(text)
            self._changed.notify_all()

    def until_told(self, number: int) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.told) >= number, WAIT), self.told
            return self.told[number - 1]

    def close(self) -> None:
        self.copies.stop()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_copies, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(checkpoint_copies, "LONGEST_WAIT", 0.05)


def copied_model(url: str) -> Model:
    with TemporaryDirectory() as folder:
        return export(url.removesuffix("/checkpoints"), Path(folder) / "model.safetensors")


def whole(store: Store, number: int) -> bool:
    return f"{number:06d}/manifest.json" in store.sizes()


def test_what_was_there_and_what_is_made_is_copied_parts_first(tmp_path: Path) -> None:
    write(tmp_path, 3)
    tensors = write(tmp_path, 7)
    store = Store()
    with closing(Copying(tmp_path, store)) as copying:
        until(lambda: whole(store, 3))
        assert store.order == [
            f"{number}/{file}"
            for number in ("000007", "000003")
            for file in ("shard-0.safetensors", "shard-1.safetensors", "manifest.json")
        ], "the newest first"
        made = write(tmp_path, 8)
        copying.copies.on_work(WriteManifest(8, (), Placement(1, (), ()), ()), 0.1)
        until(lambda: whole(store, 8))
        assert copying.told == []
    assert copied_model(store.name).tensors.keys() == tensors.keys()
    assert (
        copied_model(store.name).tensors["body.weight"].tobytes() == made["body.weight"].tobytes()
    )


def test_a_store_that_refuses_is_told_and_tried_until_it_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "secureps")
    write(tmp_path, 1)
    store = Store()
    store.down = True
    with closing(Copying(tmp_path, store)) as copying:
        said = copying.until_told(1)
        assert said.startswith("does not copy checkpoints: memory://")
        assert said.endswith("/000001/shard-0.safetensors: PermissionError: Forbidden")
        until(lambda: store.tries > 3)
        assert copying.told == [said], "once, however often it is tried"
        store.down = False
        assert copying.until_told(2) == ""
        until(lambda: whole(store, 1))
    assert newest_model(tmp_path).number == 1
    assert sum(said in line for line in caplog.messages) == 1
    assert any("copies checkpoints to" in line for line in caplog.messages)


def test_a_process_that_ends_before_says_so_and_the_next_one_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        write(tmp_path, number)
    store = Store()
    store.down = True
    with closing(Copying(tmp_path, store)) as copying:
        copying.until_told(1)
    assert any("2 checkpoints are not at memory://" in line for line in caplog.messages)
    again = Store(store.name)
    part = checkpoint_path(tmp_path, 2) / "shard-1.safetensors"
    again._files.pipe_file(again._path("000002/shard-1.safetensors"), part.read_bytes()[:50])
    with pytest.raises(
        OperatorError, match=r"no checkpoint is whole: .*000002/manifest.json: absent"
    ):
        copied_model(again.name)
    with closing(Copying(tmp_path, again)):
        until(lambda: whole(again, 1))
    assert copied_model(again.name).number == 2
    assert content(again, "000002/shard-1.safetensors") == part.read_bytes()


def test_what_an_earlier_process_copied_is_not_copied_again(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path, number)
    store = Store()
    with closing(Copying(tmp_path, store)):
        until(lambda: whole(store, 1))
    again = Store(store.name)
    with closing(Copying(tmp_path, again)):
        until(lambda: "000002/manifest.json" in again.order)
    assert again.order == ["000002/manifest.json"], "the newest is compared, the others are not"


def test_another_runs_checkpoints_are_left_alone_and_it_is_told(tmp_path: Path) -> None:
    write(tmp_path / "one", 0)
    write(tmp_path / "two", 0, unsafe=("client-00",))
    store = Store()
    with closing(Copying(tmp_path / "one", store)):
        until(lambda: whole(store, 0))
    before = content(store, "000000/manifest.json")
    with closing(Copying(tmp_path / "two", Store(store.name))) as copying:
        said = copying.until_told(1)
        assert "000000/manifest.json is there, and is another: nothing is written over it" in said
        write(tmp_path / "two", 1)
        copying.copies.on_work(WriteManifest(1, (), Placement(1, (), ()), ()), 0.1)
        until(lambda: whole(store, 1))
    assert content(store, "000000/manifest.json") == before


def test_servers_without_a_shared_folder_copy_their_own_parts(tmp_path: Path) -> None:
    """The manifest is copied after the last part of any server."""
    for party in ("coordinator", *SHARDS):
        write(tmp_path / party, 4)
        for path in checkpoint_path(tmp_path / party, 4).iterdir():
            if not path.name.startswith({"coordinator": "manifest"}.get(party, party)):
                path.unlink()
    store = Store()
    with closing(Copying(tmp_path / "coordinator", store)) as coordinator:
        assert "000004 lacks shard-0.safetensors" in coordinator.until_told(1)
        with (
            closing(Copying(tmp_path / "shard-0", store, "shard-0")),
            closing(Copying(tmp_path / "shard-1", store, "shard-1")) as shard,
        ):
            until(lambda: whole(store, 4))
            assert store.order[-1] == "000004/manifest.json"
            write(tmp_path / "shard-1", 5)
            shard.copies.on_work(WriteCheckpoint(1, 5, ()), 0.1)
            until(lambda: "000005/shard-1.safetensors" in store.order)
        assert coordinator.until_told(2) == ""
    assert copied_model(store.name).number == 4


def test_a_part_that_is_damaged_here_is_never_copied(tmp_path: Path) -> None:
    write(tmp_path, 1)
    part = checkpoint_path(tmp_path, 1) / "shard-0.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"!")
    store = Store()
    with closing(Copying(tmp_path, store)) as copying:
        assert "damaged: its digest is another" in copying.until_told(1)
    assert store.sizes() == {}


class Liar(Store):
    """A store whose objects are longer than announced."""

    def sizes(self, folder: str = "") -> dict[str, int]:
        return {name: min(size, 10_000) for name, size in super().sizes(folder).items()}


def test_of_a_store_that_lies_no_more_is_read_than_a_file_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_copies, "MANIFEST_LIMIT", 20_000)
    for number in (1, 2, 3):
        write(tmp_path, number)
    store = Store()
    with closing(Copying(tmp_path, store)):
        until(lambda: whole(store, 3) and whole(store, 1))
    place = store._path("000003/manifest.json")
    store._files.pipe_file(place, store._files.cat_file(place) + b" " * 30_000)
    place = store._path("000002/shard-0.safetensors")
    store._files.pipe_file(place, store._files.cat_file(place) + b"!" * 30_000)
    liar = Liar(store.name)
    brought = tmp_path / "brought"
    brought.mkdir()
    assert newest_model(CopiedCheckpoints(liar, brought)).number == 1
    assert max(path.stat().st_size for path in brought.rglob("*.*")) <= 20_000
    parts = parts_at(liar, "shard-0.safetensors")
    assert {part.parent.name: part.stat().st_size <= 10_000 for part in parts} == {
        "000003": True,
        "000002": True,
        "000001": True,
    }


def test_a_copy_that_was_changed_is_passed_over_and_named_by_its_url(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path, number)
    store = Store()
    with closing(Copying(tmp_path, store)):
        until(lambda: whole(store, 1))
    part = content(store, "000002/shard-0.safetensors")
    store._files.pipe_file(store._path("000002/shard-0.safetensors"), b"!" + part[1:])
    found = copied_model(store.name)
    assert found.number == 1
    assert found.complaints == (
        f"{store.name}/000002/shard-0.safetensors: damaged: its digest is another",
    )
