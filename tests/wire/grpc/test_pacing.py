"""The length of pieces, and stalls."""

import os
import queue
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from secureps.wire.grpc import framing
from tests.kits.transport_kit import PATIENCE


@pytest.mark.parametrize("length", [0, 1, framing.SHORTEST, 3 * framing.LONGEST + 7])
@pytest.mark.parametrize("head", [b"", b"head"])
def test_pieces_begin_short_grow_and_are_the_payload(length: int, head: bytes) -> None:
    payload = os.urandom(length)
    cut = list(framing.pieces(memoryview(payload), head))
    assert b"".join(cut) == head + payload
    sizes = [len(piece) for piece in cut]
    assert all(size <= framing.LONGEST for size in sizes)
    assert len(sizes) <= 1 or sizes[0] == len(head) + framing.SHORTEST
    assert sizes[1:-1] == sorted(sizes[1:-1])


def test_what_moved_a_moment_ago_has_not_stalled_however_long_it_took() -> None:
    now, cancelled = [0.0], list[float]()
    watch = framing.Stalls(1000.0, lambda: now[0])
    watch.close()  # no thread looks
    call = SimpleNamespace(cancel=lambda: cancelled.append(now[0]))
    with watch.watch(call) as progress:
        now[0] = 900.0
        progress.note_movement()
        for now[0] in (1000.0, 1899.0):
            watch.cancel_stalled()
            assert not progress.stalled
        for now[0] in (1900.0, 5000.0):
            watch.cancel_stalled()
    assert (progress.stalled, cancelled) == (True, [1900.0])


def test_one_thread_cancels_what_stalls_and_nothing_else() -> None:
    watch, stalled = framing.Stalls(0.05), queue.Queue[str]()
    before = set(threading.enumerate())
    quick = framing.Stalls(3600.0)

    def call(name: str) -> SimpleNamespace:
        return SimpleNamespace(cancel=lambda: stalled.put(name))

    with ExitStack() as stack:
        for name in ("a", "b"):
            stack.enter_context(watch.watch(call(name)))
            stack.enter_context(quick.watch(call(name)))
        assert {stalled.get(timeout=PATIENCE), stalled.get(timeout=PATIENCE)} == {"a", "b"}
        assert len(set(threading.enumerate()) - before) == 2  # others may end meanwhile
        with watch.watch(call("after a rest")):
            assert stalled.get(timeout=PATIENCE) == "after a rest"
    assert stalled.empty()
    for each in (watch, quick):
        each.close()
