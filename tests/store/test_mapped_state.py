"""Tensors of files where they lie: the same bytes as read, and damage that is found."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from secureps.errors import DamagedStore, DiskFailed
from secureps.exhaustion import exhaustion
from secureps.messages.encoding import payload_digest
from secureps.store.checkpoint import (
    _PIECE,
    Scratch,
    filed_tensors,
    map_state,
    map_tensor,
    read_state,
    read_tensors,
    write_state,
)
from secureps.store.durability import _WaitedFile

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
        lambda: map_tensor(path, "all/0000", bytes(32)),
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
            lambda: map_tensor(path, "all/0000", own),
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
    assert map_tensor(path, last, own).tolist() == TENSORS[last].tolist()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for read in (map_state, read_tensors):
        with pytest.raises(DamagedStore, match="its digest is another"):
            read(path, digest)
    with pytest.raises(DamagedStore, match=f"{last} is damaged: its digest is another"):
        map_tensor(path, last, own)
    with pytest.raises(DamagedStore, match="there is no all/0009"):
        map_tensor(path, "all/0009", own)


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


def test_a_tensor_is_mapped_and_is_the_same(tmp_path: Path) -> None:
    many = {f"all/{k:04d}": np.full(700, k, np.float32) for k in range(60)}
    long = {"all/0099": np.arange(_PIECE // 4 + 1, dtype=np.float32)}
    empty = {"all/0100": np.empty(0, np.float32)}
    path = tmp_path / "file"
    write_state(path, many | long | empty, {})
    for name, each in (many | long | empty).items():
        found = map_tensor(path, name, payload_digest(each.tobytes()))
        assert found.tolist() == each.tolist()
        assert found.size == 0 or not found.flags.writeable


def test_a_disk_that_fails_is_damage_that_is_found_before_anything_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, long = tmp_path / "file", np.arange(_PIECE // 4 + 1, dtype=np.float32)
    digest = write_state(path, {"all/0000": np.zeros(3, np.float32), "all/0001": long}, {})
    read, real = list[int](), _WaitedFile.readinto

    def fails(self: _WaitedFile, room: Any) -> int:
        read.append(self.tell())
        if self.tell() > 0 or len(room) > 4096:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, room)

    monkeypatch.setattr(_WaitedFile, "readinto", fails)
    monkeypatch.setattr("mmap.mmap", lambda *_, **__: pytest.fail("it is mapped"))
    for action in (
        lambda: map_state(path, digest),
        lambda: map_tensor(path, "all/0000", bytes(32)),
        lambda: map_tensor(path, "all/0001", bytes(32)),
        lambda: read_tensors(path, digest),
    ):
        read.clear()
        with pytest.raises(DamagedStore, match="Input/output error"):
            action()
        assert read


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
