"""Tensors of files where they lie: the same bytes as read, and damage that is found."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from secureps.buffers import Buffers
from secureps.errors import DamagedStore, DiskFailed
from secureps.exhaustion import exhaustion
from secureps.messages.encoding import payload_digest
from secureps.store import mapped_state
from secureps.store.checkpoint import read_state, write_state
from secureps.store.mapped_state import (
    SHORT,
    Scratch,
    checked,
    filed_tensors,
    map_state,
    read_tensors,
    room_for,
)

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
    filed = filed_tensors(whole, digest)
    assert write_state(tmp_path / "again", filed, {}) == digest
    mixed = filed | {"all/0000": TENSORS["all/0000"]}
    assert write_state(tmp_path / "mixed", mixed, {}) == digest
    os.truncate(whole, whole.stat().st_size - 1)
    with pytest.raises(DamagedStore, match="torn"):
        write_state(tmp_path / "torn", filed, {})
    assert not (tmp_path / "torn").exists()


def framed(header: object, body: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def tensor(**changes: object) -> dict[str, object]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 20,
        framed(b"{"),
        framed([1]),
        framed(tensor(dtype="BF16")),
        framed(tensor(shape=[3])),
        framed(tensor(shape=[-2])),
        framed(tensor(shape=[float("inf")])),
        framed(tensor(data_offsets=[8, 16])),
        framed(tensor(data_offsets=[-8, 0])),
        framed(tensor(data_offsets=[0])),
        framed({"a": 5}),
    ],
)
def test_what_is_no_state_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for digest in (None, bytes(32)):
        with pytest.raises(DamagedStore):
            filed_tensors(path, digest)
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
        lambda: filed_tensors(path, None),
        lambda: map_state(path, bytes(32)),
        lambda: read_tensors(path, bytes(32)),
        lambda: checked(path, "all/0000", bytes(32)),
        lambda: read_state(path),
    ):
        with pytest.raises(DamagedStore, match="no plain file"):
            read()
    os.close(end)


def test_a_file_that_is_longer_than_it_says_is_damage_and_takes_no_memory(tmp_path: Path) -> None:
    path, own = tmp_path / "file", payload_digest(TENSORS["all/0000"].tobytes())
    digest = write_state(path, TENSORS, {})
    for length in (path.stat().st_size + 1, 1 << 40):  # of a hole
        os.truncate(path, length)
        for read in (
            lambda: map_state(path, None),
            lambda: checked(path, "all/0000", own),
            lambda: checked(path, "all/0000", own, room_of(28)),
            lambda: read_state(path),
        ):
            with pytest.raises(DamagedStore, match="not a state file"):
                read()
    for whole in (map_state, read_tensors):
        with pytest.raises(DamagedStore, match=f"not all of its {1 << 40} bytes"):
            whole(path, digest)


def test_one_bit_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    digest = write_state(path, TENSORS, {})
    read_tensors(path, digest)
    last = "all/0002/codes"
    own = payload_digest(TENSORS[last].tobytes())
    assert checked(path, last, own) == TENSORS[last].data.cast("B")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for read in (map_state, read_tensors):
        with pytest.raises(DamagedStore, match="its digest is another"):
            read(path, digest)
    with pytest.raises(DamagedStore, match=f"{last} is damaged: its digest is another"):
        checked(path, last, own)
    with pytest.raises(DamagedStore, match="there is no all/0009"):
        checked(path, "all/0009", own)


def test_tensors_that_are_read_are_those_that_were_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    read = read_tensors(path, write_state(path, TENSORS, {"version": "1"}))
    assert sorted(read) == sorted(TENSORS)
    for name, each in read.items():
        assert (each.dtype, each.shape) == (TENSORS[name].dtype, TENSORS[name].shape)
        assert each.tobytes() == TENSORS[name].tobytes()
    path.write_bytes(b"")
    assert read["all/0000"].tolist() == list(range(7)), "they are in memory"
    with pytest.raises(DamagedStore):
        read_tensors(path, payload_digest(b""))


def room_of(length: int) -> memoryview:
    return Buffers(0).lend(room_for(length))


def test_a_tensor_is_read_with_the_header_after_it_or_mapped_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it lies decides how often the disk is asked, and nothing else."""
    many = {f"all/{k:04d}": np.full(700, k, np.float32) for k in range(60)}
    long = {"all/0099": np.arange(SHORT // 4 + 1, dtype=np.float32)}
    path, reads = tmp_path / "file", list[int]()
    write_state(path, many | long, {})
    read = mapped_state._read_into

    def counted(file: FileIO, start: int, room: memoryview) -> NDArray[np.uint8]:
        found = read(file, start, room)
        reads.append(found.size)
        return found

    monkeypatch.setattr(mapped_state, "_read_into", counted)
    for name, each in (many | long).items():
        for room in (None, room_of(2800), room_of(10_000), room_of(10 * SHORT)):
            found = checked(path, name, payload_digest(each.tobytes()), room)
            assert found.readonly
            assert found == each.data.cast("B")
    reads.clear()
    checked(path, "all/0000", payload_digest(many["all/0000"].tobytes()), room_of(10_000))
    assert reads == [len(room_of(10_000))]
    reads.clear()
    checked(path, "all/0059", payload_digest(many["all/0059"].tobytes()), room_of(10_000))
    assert reads[-1] == 2800


def refusing(tried: list[str], *, opens: bool) -> Callable[..., int]:
    """`os.open` of a file system that does not read past the system's memory, or of long pages."""
    direct, real = getattr(os, "O_DIRECT", 1 << 30), os.open

    def opened(path: str, flags: int, mode: int = 0o600) -> int:
        if not flags & direct:
            return real(path, flags, mode)
        tried.append(path)
        if not opens:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, os.O_WRONLY, mode)

    return opened


@pytest.mark.parametrize("way", ["direct", "does not open", "does not read", "has no such flag"])
def test_past_the_systems_memory_or_through_it_files_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    tried, has = list[str](), hasattr(os, "O_DIRECT")
    if way == "has no such flag":
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    elif way != "direct":
        monkeypatch.setattr(os, "open", refusing(tried, opens=way == "does not read"))
    for values in (1, 1 << 10, 1 << 16, (1 << 16) + 1):  # shorter and longer than a page, and whole
        path, tensors = tmp_path / "file", {"all/0000": np.arange(values, dtype=np.float32)}
        digest, own = write_state(path, tensors, {}), tensors["all/0000"].data.cast("B")
        assert read_tensors(path, digest)["all/0000"].tobytes() == own
        found = checked(path, "all/0000", payload_digest(own), room := room_of(4 * values))
        assert found == own
        assert np.shares_memory(np.asarray(found), np.asarray(room))
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(DamagedStore, match="its digest is another"):
            checked(path, "all/0000", payload_digest(own), room_of(4 * values))
        with pytest.raises(DamagedStore, match="its digest is another"):
            read_tensors(path, digest)
        os.truncate(path, len(data) - 1)
        with pytest.raises(DamagedStore, match="not a state file"):
            checked(path, "all/0000", payload_digest(own), room_of(4 * values))
    assert bool(tried) == (has and way.startswith("does not"))


@pytest.mark.parametrize("length", [1, 4096, 65_537])
def test_what_is_read_past_the_systems_memory_comes_to_lie_in_whole_pages(length: int) -> None:
    """Elsewhere a file system refuses, and the system's memory is gone through unseen."""
    for room in (mapped_state._pages(length), room_of(length)):
        assert np.asarray(room).ctypes.data % 4096 == len(room) % 4096 == 0
        assert len(room) >= length


def test_nothing_is_asked_for_behind_a_files_end(tmp_path: Path) -> None:
    """Past the system's memory some file system may refuse that, and all would be read again."""
    path, asked = tmp_path / "file", list[int]()
    path.write_bytes(b"x" * 5000)

    class Counted(FileIO):
        def readinto(self, room: Any, /) -> int | None:
            asked.append(len(room))
            return super().readinto(room)

    with Counted(path) as file:
        assert mapped_state._read_into(file, 0, memoryview(bytearray(8192))).size == 5000
    assert asked == [8192]


def test_address_space_that_is_used_up_is_no_damage_and_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is whole, and nobody is to restore it or to wait for its disk."""

    def used_up(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    path = tmp_path / "file"
    digest = write_state(path, TENSORS, {})
    monkeypatch.setattr("mmap.mmap", used_up)
    for action in (lambda: map_state(path, digest), lambda: Scratch(tmp_path).vector(10)):
        with pytest.raises(MemoryError, match="cannot be mapped") as found:
            action()
        assert exhaustion(found.value).startswith("memory is used up")


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
