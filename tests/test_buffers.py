"""Buffers that are used again, and never while somebody reads them."""

import mmap
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest

from secureps import buffers
from secureps.buffers import Buffers

MIB = 1 << 20


def place(buffer: memoryview) -> int:
    """The address of a buffer."""
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address


def test_memory_is_lent_again() -> None:
    buffers = Buffers(4 * MIB)
    first = buffers.lend(MIB - 5)
    at = place(first)
    assert len(first) == MIB - 5
    assert not first.readonly
    del first
    again = buffers.lend(MIB - 70)
    assert place(again) == at
    assert len(again) == MIB - 70
    assert place(buffers.lend(MIB)) != at


@pytest.mark.parametrize(
    "look",
    [
        lambda lent: lent,
        lambda lent: lent[5:],
        lambda lent: lent.toreadonly()[:7],
        lambda lent: np.frombuffer(lent, np.uint8),
        lambda lent: np.frombuffer(lent, "<u8").astype("<u8", copy=False)[3:].reshape(-1, 1)[1:],
        lambda lent: np.frombuffer(lent[8:], np.uint64).view(np.uint8).data.toreadonly(),
        lambda lent: np.asarray(lent)[4:].view("<f4"),
    ],
)
def test_what_somebody_still_reads_is_not_lent(look: Callable[[memoryview], Any]) -> None:
    buffers = Buffers(4 * MIB)
    lent = buffers.lend(MIB)
    lent[:] = bytes(MIB)
    at, seen = place(lent), look(lent)
    del lent
    other = buffers.lend(MIB)
    other[:] = b"\xff" * MIB
    assert place(other) != at
    assert not np.asarray(seen).any()
    del seen
    assert place(buffers.lend(MIB)) == at


def test_no_more_is_kept_than_it_says() -> None:
    buffers = Buffers(2 * MIB)
    many = [buffers.lend(MIB) for _ in range(5)]
    del many
    kept = [buffers.lend_kept(MIB) for _ in range(3)]
    assert sum(each is not None for each in kept) == 2
    assert buffers.lend_kept(MIB) is None
    large = buffers.lend(3 * MIB)
    del large
    assert buffers.lend_kept(3 * MIB) is None


def test_a_small_payload_takes_no_large_buffer() -> None:
    buffers = Buffers(16 * MIB)
    large = buffers.lend(8 * MIB)
    del large
    assert buffers.lend_kept(MIB) is None
    assert buffers.lend_kept(8 * MIB) is not None


@pytest.mark.parametrize(
    ("length", "mapped", "huge"),
    [
        (MIB, MIB, 0),
        (MIB + 1, 2 * MIB, 2 * MIB),
        (3 * MIB, 4 * MIB, 2 * MIB),
        (3 * MIB + 1, 4 * MIB, 4 * MIB),
        (7 * MIB, 8 * MIB, 6 * MIB),
    ],
)
def test_memory_is_in_huge_pages_of_which_half_of_one_at_most_is_not_used(
    length: int, mapped: int, huge: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mapping is of whole ones: a kernel puts no other at the begin of one."""
    seen, asked = [], list[tuple[int, int]]()

    class Mapping(mmap.mmap):
        def __new__(cls, fileno: int, size: int, **flags: int) -> "Mapping":
            seen.append(size)
            return super().__new__(cls, fileno, size, **flags)

        def madvise(self, option: int, *part: int) -> None:
            assert option == getattr(mmap, "MADV_HUGEPAGE", None)
            asked.append((part[0], part[1]))

    monkeypatch.setattr(mmap, "mmap", Mapping)
    assert len(Buffers(MIB).lend(length)) == length
    assert seen == [mapped]
    if hasattr(mmap, "MADV_HUGEPAGE"):
        assert asked == ([(0, huge)] if huge else [])


def test_threads_get_buffers_of_their_own() -> None:
    buffers, wrong = Buffers(8 * MIB), []

    def work(number: int) -> None:
        for _ in range(200):
            lent = np.frombuffer(buffers.lend(MIB // 4), np.uint8)
            lent[:] = number
            if not (lent == number).all():
                wrong.append(number)

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_let_go_is_kept_no_more_and_what_is_lent_comes_back() -> None:
    buffers = Buffers(4 * MIB)
    lent = buffers.lend(MIB)
    buffers.lend(MIB)
    buffers.free_kept()
    assert buffers.lend_kept(MIB) is None
    lent[:] = bytes(MIB)
    del lent
    assert buffers.lend_kept(MIB) is not None


def test_where_memory_has_one_kind_it_is_lent_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, which knows no flags of it."""
    monkeypatch.setattr(buffers, "_PRIVATE", {})
    lent = Buffers(1 << 20).lend(5 << 20)
    lent[:] = bytes([7]) * len(lent)
    assert lent[-1] == 7
