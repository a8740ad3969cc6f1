"""Blocks that are read out of files: where they come to lie, and when nobody waits for them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from secureps.buffers import Buffers
from secureps.messages.encoding import payload_digest
from secureps.service.shard import block_reads
from secureps.service.shard.block_reads import THREADS, BlockReads, FiledBlock
from secureps.store.checkpoint import write_state
from secureps.store.mapped_state import SHORT, checked, room_for


def filed(path: Path, values: int, alone: bool = True) -> FiledBlock:
    block = np.arange(values, dtype=np.float32)
    write_state(path, {"g/0000": block}, {})
    own = block.data.cast("B")
    return FiledBlock(path, "g/0000", payload_digest(own), block.nbytes * alone)


def test_a_block_is_the_same_ahead_and_now_and_wherever_it_comes_to_lie(tmp_path: Path) -> None:
    reads = BlockReads(Buffers(1 << 20))
    for number, values in enumerate((1, 5000, SHORT // 4, SHORT // 4 + 1)):
        block = filed(tmp_path / str(number), values)
        wanted = np.arange(values, dtype=np.float32).data.cast("B")
        assert reads.now(block) == wanted
        assert reads.now(block._replace(alone=0)) == wanted
        ahead = reads.ahead(block)
        assert (ahead is None) is (values > SHORT // 4)
        assert ahead is None or ahead.result() == wanted
        assert reads.ahead(block._replace(alone=0)) is None


def test_memory_of_blocks_that_nobody_has_any_more_is_used_again(tmp_path: Path) -> None:
    buffers = Buffers(1 << 20)
    reads, block = BlockReads(buffers), filed(tmp_path / "a", 5000)
    first = reads.now(block)
    assert first is not None
    begin = np.asarray(first).ctypes.data
    second = reads.now(block)
    assert second is not None
    assert np.asarray(second).ctypes.data != begin, "somebody has it"
    del first
    third = reads.now(block)
    assert third is not None
    assert np.asarray(third).ctypes.data == begin
    del third
    assert buffers.kept(room_for(block.alone)) is not None, "it is a buffer of theirs"


def test_a_long_block_is_mapped_and_takes_no_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(length: int) -> memoryview:
        raise AssertionError(f"{length} bytes are taken")

    buffers = Buffers(0)
    monkeypatch.setattr(buffers, "lend", refuse)
    assert BlockReads(buffers).now(filed(tmp_path / "a", SHORT // 4 + 1)) is not None


def test_what_is_not_whole_is_nothing_and_no_error(tmp_path: Path) -> None:
    reads, block = BlockReads(Buffers(0)), filed(tmp_path / "a", 500)
    for broken in (
        block._replace(digest=bytes(32)),
        block._replace(tensor="g/0001"),
        block._replace(path=tmp_path / "absent"),
    ):
        ahead = reads.ahead(broken)
        assert ahead is not None
        assert ahead.result() is None
        assert reads.now(broken) is None


def test_a_few_are_read_at_once_beside_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, block = threading.Barrier(THREADS), filed(tmp_path / "a", 500)

    def reading(*given: object) -> memoryview:
        together.wait(10)
        return checked(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(block_reads, "checked", reading)
    reads = BlockReads(Buffers(0))
    ahead = [reads.ahead(block) for _ in range(THREADS)]
    assert all(each is not None and each.result() is not None for each in ahead)


def test_where_no_thread_can_begin_a_block_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reads, block = BlockReads(Buffers(0)), filed(tmp_path / "a", 500)
    monkeypatch.setattr(threading.Thread, "start", none_left)
    assert reads.ahead(block) is None
    assert reads.now(block) is not None
