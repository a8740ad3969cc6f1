"""Damaged checkpoints are recognised, and the last good one is taken."""

import dataclasses
import errno
import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch

from secureps.errors import ConfigError, DamagedStore, DiskFailed, Malformed, OperatorError
from secureps.exhaustion import name_limit
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import payload_digest, to_plain
from secureps.messages.format import FORMAT
from secureps.messages.run import (
    GroupPlacement,
    GroupVersion,
    Placement,
    RunInfo,
    Schema,
    TensorSpec,
)
from secureps.roles.coordinator.state import WriteManifest
from secureps.service.lead import CoordinatorWorker
from secureps.store import checkpoint
from secureps.store.checkpoint import (
    _PIECE,
    HEADER_LIMIT,
    Manifest,
    Scratch,
    ShardFile,
    Tally,
    checkpoint_directories,
    checkpoint_path,
    claim,
    find_tensors,
    header_end,
    load_checkpoint,
    load_newest,
    map_state,
    prune,
    read_metadata,
    read_state,
    tensor_name,
    write_manifest,
    write_state,
)
from secureps.store.durability import _WaitedFile

RUN = RunInfo(
    '{"plan":1}',
    Schema((TensorSpec("w", (4, 2), "float32"),)),
    b"l" * 32,
    b"h" * 32,
    b"r" * 32,
    b"n" * 32,
)
PLACEMENT = Placement(1, ("shard-0", "shard-1"), (GroupPlacement("all", ("shard-1", "shard-0")),))


def state(seed: int) -> dict[str, Any]:
    values = np.random.default_rng(seed).normal(size=9).astype(np.float32)
    return {
        tensor_name("all", 3): values,
        tensor_name("all", 3, "m"): values * 2,
        tensor_name("all", 3, "steps"): np.array(7, np.int64),
    }


def write_checkpoint(root: Path, number: int) -> Manifest:
    directory = checkpoint_path(root, number)
    files = []
    for n in range(2):
        path = directory / f"shard-{n}.safetensors"
        digest = write_state(path, state(number * 2 + n), {"shard": f"shard-{n}", "epoch": "1"})
        files.append(ShardFile(f"shard-{n}", path.name, digest, path.stat().st_size))
    manifest = Manifest(
        FORMAT,
        number,
        RUN.id.hex(),
        RUN,
        (GroupVersion("all", number),),
        tuple(files),
        PLACEMENT,
        unsafe=("a",),
        tallies=(
            Tally(number, Charge("a", "all", 0, 1.1, 0.01, 100)),
            Tally(1, release=Release("a", "all", 0, 3.0, 9.0, 2.5, 1, 0.0)),
        ),
    )
    write_manifest(directory, manifest)
    return manifest


# --- state files ------------------------------------------------------------------

ARRAYS = hnp.arrays(
    dtype=st.sampled_from(sorted(checkpoint._TYPES)),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
ANY_PATH = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


@pytest.mark.slow
@ANY_PATH
@given(
    tensors=st.dictionaries(st.text("ab/", min_size=1, max_size=4), ARRAYS, max_size=4),
    metadata=st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=4),
)
def test_what_is_written_is_read(
    tmp_path: Path, tensors: dict[str, Any], metadata: dict[str, str]
) -> None:
    path = tmp_path / "state.safetensors"
    digest = write_state(path, tensors, metadata)
    read, told = read_state(path)
    assert told == metadata
    for found in (read, read_state(path, digest=digest)[0]):
        assert set(found) == set(tensors)
        for name, array in tensors.items():
            assert found[name].dtype == array.dtype
            assert found[name].shape == array.shape
            assert found[name].tobytes() == array.tobytes()
            assert found[name].flags.writeable


def test_the_same_input_makes_the_same_bytes(tmp_path: Path) -> None:
    metadata = {str(n): "x" for n in range(20)}
    first = write_state(tmp_path / "a", state(1), metadata)
    again = dict(reversed(state(1).items()))
    assert write_state(tmp_path / "b", again, dict(reversed(metadata.items()))) == first
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert payload_digest((tmp_path / "a").read_bytes()) == first
    assert os.listdir(tmp_path) in (["a", "b"], ["b", "a"])


def test_strides_and_byte_order_do_not_matter(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    plain = write_state(tmp_path / "a", {"x": np.ascontiguousarray(array.T)}, {})
    assert write_state(tmp_path / "b", {"x": array.T.astype(">f4")}, {}) == plain
    assert write_state(tmp_path / "c", {"x": array.T}, {}) == plain


def test_torch_opens_a_shard_file_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1)
    loaded = load_torch(tmp_path / "000001" / "shard-1.safetensors")
    expected = state(3)
    assert set(loaded) == set(expected)
    for name, array in expected.items():
        assert np.array_equal(loaded[name].numpy(), array)


@pytest.mark.parametrize(
    "tensors",
    [
        {"x": np.array(["text"])},
        {"x": np.array([1j])},
        {"x": np.array([None])},
        {"__metadata__": np.zeros(1)},
    ],
)
def test_what_has_no_place_in_a_state_file(tmp_path: Path, tensors: Any) -> None:
    with pytest.raises(Malformed):
        write_state(tmp_path / "a", tensors, {})
    assert os.listdir(tmp_path) == []


def test_metadata_and_some_tensors_are_read_by_themselves(tmp_path: Path) -> None:
    tensors = {name: np.ones(3, np.float32) for name in ("a/0000", "a/0001/m", "a-b/0000")}
    write_state(tmp_path / "x", tensors, {"version.a": "3"})
    assert read_metadata(tmp_path / "x") == {"version.a": "3"}
    found, told = read_state(tmp_path / "x", "a/")
    assert (sorted(found), told) == (["a/0000", "a/0001/m"], {"version.a": "3"})
    for content in (b"", b"\xff" * 8, (tmp_path / "x").read_bytes()[:30]):
        (tmp_path / "y").write_bytes(content)
        with pytest.raises(DamagedStore):
            read_metadata(tmp_path / "y")


# --- checkpoints ------------------------------------------------------------------


def test_directories_are_listed_whole_or_not_the_newest_first(tmp_path: Path) -> None:
    assert checkpoint_directories(tmp_path / "absent") == []
    for number in (2, 10, 1):
        checkpoint_path(tmp_path, number).mkdir()
    for other in ("notes", "12"):
        (tmp_path / other).mkdir()
    names = [path.name for path in checkpoint_directories(tmp_path)]
    assert names == ["000010", "000002", "000001"]


@pytest.mark.slow
def test_any_damage_to_any_file_falls_back_to_the_previous(tmp_path: Path) -> None:
    older = write_checkpoint(tmp_path, 1)
    write_checkpoint(tmp_path, 2)
    directory = tmp_path / "000002"
    for name in sorted(os.listdir(directory)):
        path = directory / name
        whole = path.read_bytes()
        for index in range(len(whole)):
            damaged = bytearray(whole)
            damaged[index] ^= 1 << (index % 8)
            for content in (bytes(damaged), whole[:index])[: 1 if index % 8 else 2]:
                path.write_bytes(content)
                found, manifest, complaints = load_newest(tmp_path)
                assert (found, manifest) == (tmp_path / "000001", older)
                assert len(complaints) == 1
                assert str(path) in complaints[0]
        path.write_bytes(whole + b" ")
        assert load_newest(tmp_path)[1] == older
        path.unlink()
        assert load_newest(tmp_path)[1] == older
        path.write_bytes(whole)
    assert load_newest(tmp_path)[1].number == 2


def test_none_at_all_differs_from_none_whole(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(OperatorError, match="no checkpoint here: servers write") as caught:
            load_newest(root)
        assert not isinstance(caught.value, DamagedStore)
    (tmp_path / "000001").mkdir()
    with pytest.raises(DamagedStore, match="no checkpoint is whole"):
        load_newest(tmp_path)


def test_a_renamed_checkpoint_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1)
    shutil.move(tmp_path / "000001", tmp_path / "000005")
    with pytest.raises(DamagedStore, match="belongs to checkpoint 1"):
        load_checkpoint(tmp_path / "000005")


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "a/b", "", "..", ".hidden"])
def test_file_names_stay_in_the_directory(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_checkpoint(tmp_path, 1)
    bad = dataclasses.replace(manifest, files=(ShardFile("shard-0", name, bytes(32), 0),))
    with pytest.raises(Malformed):
        write_manifest(tmp_path / "000001", bad)
    (tmp_path / "000001" / "manifest.json").write_bytes(checkpoint._encode_manifest(to_plain(bad)))
    with pytest.raises(DamagedStore, match="not a file name"):
        load_checkpoint(tmp_path / "000001")


def test_of_a_manifest_there_is_one_form_alone(tmp_path: Path) -> None:
    """The digest covers sorted fields, so other orders of fields have the same digest."""
    plain = to_plain(write_checkpoint(tmp_path, 1))
    path = tmp_path / "000001" / "manifest.json"
    assert path.read_bytes() == checkpoint._encode_manifest(plain)
    path.write_bytes(checkpoint._encode_manifest(dict(reversed(plain.items()))))
    with pytest.raises(DamagedStore, match="does not match its own digest"):
        load_checkpoint(tmp_path / "000001")


def test_a_manifest_of_another_run_is_damaged(tmp_path: Path) -> None:
    manifest = dataclasses.replace(write_checkpoint(tmp_path, 1), id="00")
    write_manifest(tmp_path / "000001", manifest)
    with pytest.raises(DamagedStore, match="digest"):
        load_checkpoint(tmp_path / "000001")


@pytest.mark.parametrize(
    ("format", "why"),
    [(3, "reads checkpoints since format 4"), (FORMAT + 1, "knows formats up to")],
)
def test_formats_that_are_not_read_are_refused_by_name(
    tmp_path: Path, format: int, why: str
) -> None:
    """No older checkpoint is used instead."""
    for number in (1, 2):
        write_checkpoint(tmp_path, number)
    path = tmp_path / "000002" / "manifest.json"
    plain = json.loads(path.read_text()) | {"format": format, "more": 3}
    path.write_text(json.dumps(plain))
    for read in (load_checkpoint, lambda path: load_newest(path.parent)):
        with pytest.raises(ConfigError, match=rf"format {format}, .* {why}"):
            read(tmp_path / "000002")


@pytest.mark.parametrize(
    ("says", "size", "whole"),
    [
        (8, 16, True),
        (9, 16, False),
        (HEADER_LIMIT, 2 * HEADER_LIMIT, True),
        (HEADER_LIMIT + 1, 2 * HEADER_LIMIT, False),
    ],
)
def test_a_header_ends_within_its_file_and_has_a_limit(
    says: int, size: int, whole: bool, tmp_path: Path
) -> None:
    begin = says.to_bytes(8, "little")
    if whole:
        assert header_end(tmp_path, begin + b"{", size) == 8 + says
        begin = begin[:7]
    with pytest.raises(DamagedStore, match="its header is not whole"):
        header_end(tmp_path, begin, size)


def test_the_newest_checkpoints_stay_and_the_first_and_what_is_wanted(tmp_path: Path) -> None:
    for number in range(9):
        write_checkpoint(tmp_path, number)
    (checkpoint_path(tmp_path, 7) / "manifest.json").unlink()  # never completed
    (checkpoint_path(tmp_path, 4) / "notes.txt").write_text("somebody's own")
    assert prune(tmp_path, keep=2, wanted=(3, 99)) == (8, 7, 6, 3, 0)
    assert [int(each.name) for each in checkpoint_directories(tmp_path)] == [8, 7, 6, 3, 0]
    assert load_checkpoint(checkpoint_path(tmp_path, 3)).number == 3
    assert load_newest(tmp_path)[0].name == "000008"


def test_a_checkpoint_stays_until_it_is_copied(tmp_path: Path) -> None:
    for number in range(7):
        write_checkpoint(tmp_path, number)
    assert prune(tmp_path, 2, uncopied=(2, 4)) == (6, 5, 4, 2, 0)
    assert prune(tmp_path, 2) == (6, 5, 0)


def test_shards_are_told_what_stays_only_by_a_folder_that_has_the_first(tmp_path: Path) -> None:
    """A standby's folder lacks the checkpoints before its takeover, which shards still have."""
    for number in (0, 3, 6, 8):
        write_checkpoint(tmp_path, number)
    section = SimpleNamespace(keep=2)
    machine: Any = SimpleNamespace(plan=SimpleNamespace(section=section))
    nothing: Any = SimpleNamespace(stay=frozenset())
    worker = CoordinatorWorker(machine, tmp_path)
    assert worker._prune(nothing) == (8, 6, 0)
    shutil.rmtree(checkpoint_path(tmp_path, 0))
    assert worker._prune(nothing) == ()


def test_a_manifest_of_an_older_placement_comes_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[tuple[int, Any]]()
    monkeypatch.setattr(
        "secureps.service.lead.write_manifest",
        lambda path, manifest: written.append((int(path.name), manifest.placement.epoch)),
    )
    federation = SimpleNamespace(pinned=SimpleNamespace(run=SimpleNamespace(id=b"")))
    plan = SimpleNamespace(section=SimpleNamespace(keep=0))
    machine: Any = SimpleNamespace(plan=plan, federation=federation)
    worker = CoordinatorWorker(machine, tmp_path)
    for number, epoch in ((1, 0), (1, 1), (1, 0), (1, 1), (0, 2)):
        placement: Any = SimpleNamespace(epoch=epoch)
        worker.work(WriteManifest(number, (), placement, ()))
    assert written == [(1, 0), (1, 1), (1, 1)]


OTHER = b"o" * 32


def test_a_folder_of_checkpoints_is_of_one_run(tmp_path: Path) -> None:
    """Whoever comes first has it, also with the checkpoints of a version that made no mark."""
    for root in (tmp_path / "fresh", tmp_path / "old"):
        if root.name == "old":
            write_checkpoint(root, 7)
            (root / "000008").mkdir()  # incomplete: it tells nobody's
            with pytest.raises(ConfigError, match=f"{RUN.id.hex():.8}"):
                claim(root, OTHER)
        claim(root, RUN.id)
        claim(root, RUN.id)
        with pytest.raises(ConfigError, match="has checkpoints of another run"):
            claim(root, OTHER)
        claim(root, RUN.id)


def test_a_mark_whose_maker_was_killed_keeps_no_run_out(tmp_path: Path) -> None:
    (tmp_path / ".run").touch()
    claim(tmp_path, RUN.id)


def test_a_disk_that_takes_no_mark_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskFailed):
        claim(tmp_path / "file" / "checkpoints", RUN.id)


def test_a_coordinator_writes_no_manifest_among_those_of_another_run(tmp_path: Path) -> None:
    before = write_checkpoint(tmp_path, 1)
    machine: Any = SimpleNamespace(
        plan=SimpleNamespace(section=SimpleNamespace(keep=1)),
        federation=SimpleNamespace(pinned=SimpleNamespace(run=SimpleNamespace(id=OTHER))),
    )
    with pytest.raises(ConfigError, match="another run"):
        CoordinatorWorker(machine, tmp_path).work(WriteManifest(1, (), PLACEMENT, ()))
    assert load_checkpoint(tmp_path / "000001") == before


# --- tensors where they lie -----------------------------------------------------------


TENSORS = {
    "all/0000": np.arange(7, dtype=np.float32),
    "all/0000/step": np.array([3]),
    "all/0001": np.zeros((0, 4), np.float32),
    "all/0002/codes": np.arange(9, dtype=np.uint8).reshape(3, 3),
}


def test_mapped_tensors_are_those_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    digest = write_state(path, TENSORS, {"version": "1"})
    mapped, (read, _) = map_state(path, digest), read_state(path)
    assert sorted(mapped) == sorted(read)
    for name, each in mapped.items():
        assert (each.dtype, each.shape, each.tobytes()) == (
            read[name].dtype,
            read[name].shape,
            read[name].tobytes(),
        )
        assert each.size == 0 or not each.flags.writeable
    path.unlink()
    assert mapped["all/0000"].tolist() == list(range(7)), "the file is there as long as the map"


def test_a_file_of_somebody_elses_library_is_mapped_too(tmp_path: Path) -> None:
    path = tmp_path / "initial.safetensors"
    save_file({"half": np.arange(3, dtype=np.float16), "flag": np.array([True])}, path)
    mapped, known = map_state(path, None), load_file(path)
    assert {n: v.tolist() for n, v in mapped.items()} == {n: v.tolist() for n, v in known.items()}


def test_a_file_that_is_copied_from_files_is_the_one_that_is_written_from_memory(
    tmp_path: Path,
) -> None:
    whole = tmp_path / "whole"
    digest = write_state(whole, TENSORS, {})
    filed, _ = find_tensors(whole, digest)
    assert write_state(tmp_path / "again", filed, {}) == digest
    mixed = filed | {"all/0000": TENSORS["all/0000"]}
    assert write_state(tmp_path / "mixed", mixed, {}) == digest
    os.truncate(whole, whole.stat().st_size - 1)
    with pytest.raises(DamagedStore, match="torn"):
        write_state(tmp_path / "torn", filed, {})
    assert not (tmp_path / "torn").exists()


def framed(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


def tensor(**changes: object) -> dict[str, object]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 20,
        framed(b"{"),
        framed(b"[" * 100_000),
        framed([1]),
        framed(tensor(dtype="BF16")),
        framed(tensor(shape=[3])),
        framed(tensor(shape=[-2])),
        framed(tensor(shape=[float("inf")])),
        framed(tensor(data_offsets=[8, 16])),
        framed(tensor(data_offsets=[-8, 0])),
        framed(tensor(data_offsets=[0])),
        framed({"a": 5}),
        framed(tensor() | {"__metadata__": {"b": 5}}),
        framed(tensor() | {"__metadata__": 5}),
    ],
)
def test_what_is_no_state_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for read in (read_state, read_metadata):
        with pytest.raises(DamagedStore):
            read(path)
    for digest in (None, bytes(32)):
        with pytest.raises(DamagedStore):
            find_tensors(path, digest)
        with pytest.raises(DamagedStore):
            map_state(path, digest)
    with pytest.raises(DamagedStore):
        map_state(tmp_path / "absent", None)


def test_a_pipe_in_a_files_place_is_damage_and_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # else whoever opened it would wait for this
    os.write(end, bytes(64))
    for read in (
        lambda: find_tensors(path, None),
        lambda: map_state(path, bytes(32)),
        lambda: read_state(path, digest=bytes(32)),
        lambda: read_state(path),
    ):
        with pytest.raises(DamagedStore, match="no plain file"):
            read()
    os.close(end)


def test_a_file_that_is_longer_than_it_says_is_damage_and_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    digest = write_state(path, TENSORS, {})
    for length in (path.stat().st_size + 1, 1 << 40):  # of a hole
        os.truncate(path, length)
        for read in (
            lambda: map_state(path, None),
            lambda: read_state(path),
        ):
            with pytest.raises(DamagedStore, match="not a state file"):
                read()
    for whole in (lambda: map_state(path, digest), lambda: read_state(path, digest=digest)):
        with pytest.raises(DamagedStore, match=f"not all of its {1 << 40} bytes"):
            whole()


def test_one_bit_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    digest = write_state(path, TENSORS, {})
    read_state(path, digest=digest)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for read in (lambda: map_state(path, digest), lambda: read_state(path, digest=digest)):
        with pytest.raises(DamagedStore, match="its digest is another"):
            read()


def test_a_disk_that_fails_is_damage_that_is_found_before_anything_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, long = tmp_path / "file", np.arange(_PIECE // 4 + 1, dtype=np.float32)
    digest = write_state(path, {"all/0000": np.zeros(3, np.float32), "all/0001": long}, {})
    read, real = list[int](), _WaitedFile.readinto

    def fails(self: _WaitedFile, room: Any) -> int:
        read.append(self.tell())
        if self.tell() > 0 or len(room) > io.DEFAULT_BUFFER_SIZE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, room)

    monkeypatch.setattr(_WaitedFile, "readinto", fails)
    monkeypatch.setattr("mmap.mmap", lambda *_, **__: pytest.fail("it is mapped"))
    for action in (
        lambda: map_state(path, digest),
        lambda: read_state(path, digest=digest),
    ):
        read.clear()
        with pytest.raises(DamagedStore, match="Input/output error"):
            action()
        assert read


def test_address_space_that_is_used_up_is_no_damage_and_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is whole, so that neither a restore nor waiting would help."""

    def used_up(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    path = tmp_path / "file"
    digest = write_state(path, TENSORS, {})
    monkeypatch.setattr("mmap.mmap", used_up)
    for action in (lambda: map_state(path, digest), lambda: Scratch(tmp_path).vector(10)):
        with pytest.raises(MemoryError, match="cannot be mapped") as found:
            action()
        assert name_limit(found.value).startswith("memory is used up")


def test_room_in_a_file_is_there_for_as_long_as_somebody_has_it(tmp_path: Path) -> None:
    room = Scratch(tmp_path / "states")
    vector = room.vector(1000)
    vector[:] = 3
    assert vector.sum() == 3000
    assert list((tmp_path / "states").iterdir()) == [], "it has no name"


def test_a_full_disk_is_an_error_and_not_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(DiskFailed, match="no room: No space left"):
        Scratch(tmp_path).vector(10)
