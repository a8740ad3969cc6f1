"""Payloads gathered piece by piece, in memory that is theirs as it is filled."""

from __future__ import annotations

import os

import numpy as np
import pytest

from secureps.buffers import Buffers
from secureps.wire.grpc.uploads import HUGE, LARGE, Gathering


@pytest.mark.parametrize("size", [0, 1, HUGE - 1, HUGE, LARGE - 1, LARGE, 3 * HUGE + 5])
@pytest.mark.parametrize("piece", [1000, 1 << 20, 5 << 20])
def test_what_came_is_whole_and_read_only(size: int, piece: int) -> None:
    data, gathering = os.urandom(size), Gathering(size, Buffers(0))
    for start in range(0, size, piece):
        assert gathering.have == start
        gathering.add(memoryview(data)[start : start + piece])
    whole = gathering.whole()
    assert whole == data
    assert gathering.have == len(whole) == size
    assert memoryview(whole).readonly


def test_a_payload_of_which_little_has_come_takes_little() -> None:
    """Else whoever begins many uploads of large blocks takes a huge page for a byte of each."""
    gathering = Gathering(1 << 50, Buffers(0))  # more than there is
    gathering.add(memoryview(bytes(HUGE - 1)))
    assert gathering.have == HUGE - 1
    with pytest.raises(MemoryError):
        gathering.add(memoryview(b"x"))


def test_a_large_payload_comes_into_the_buffer_of_one_before() -> None:
    buffers, seen = Buffers(LARGE), set()
    for number in range(3):
        gathering = Gathering(LARGE, buffers)
        for _ in range(LARGE // 1024):
            gathering.add(memoryview(bytes([number]) * 1024))
        whole = gathering.whole()
        assert whole == bytes([number]) * LARGE
        seen.add(np.frombuffer(whole, np.uint8).__array_interface__["data"][0])
        del gathering, whole
    assert len(seen) == 1


def test_a_large_payload_is_gathered_in_one_place() -> None:
    """No copy is made of what is there, beyond the first page, and none in the end."""
    size = 4 * HUGE
    gathering = Gathering(size, Buffers(0))
    gathering.add(memoryview(bytes(HUGE)))
    first = gathering.whole()
    gathering.add(memoryview(b"x" * (size - HUGE)))
    whole = gathering.whole()
    assert isinstance(first, memoryview)
    assert isinstance(whole, memoryview)
    assert first.obj is whole.obj
    assert first[-1] == whole[-1] == ord("x")


def test_a_payload_that_lies_in_the_heap_is_copied_nowhere() -> None:
    gathering = Gathering(LARGE - 1, Buffers(0))
    gathering.add(memoryview(bytes(LARGE - 1)))
    assert isinstance(gathering.whole(), bytes)
