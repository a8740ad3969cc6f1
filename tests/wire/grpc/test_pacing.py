"""The length of pieces, the number of payloads at once, and stalls."""

import queue
import threading
from contextlib import ExitStack
from functools import partial

import pytest

from secureps.wire.grpc import framing
from tests.kits.transport_kit import PATIENCE


def test_pieces_are_as_long_as_a_link_carries_in_a_moment() -> None:
    took = iter(
        [
            framing.FAST / 2,
            framing.FAST / 2,
            framing.FAST,
            framing.SLOW,
            framing.SLOW,
            framing.FAST / 2,
        ]
    )
    now, lengths, unit = [0.0], [], framing.SHORTEST
    for piece in framing.Pace(lambda: now[0]).cut(memoryview(bytes(14 * unit))):
        lengths.append(len(piece))
        now[0] += next(took)
    assert lengths == [unit, 2 * unit, 4 * unit, 4 * unit, 2 * unit, unit]


def test_a_payload_begins_as_the_last_one_ended_and_short_after_a_break() -> None:
    pace, unit = framing.Pace(lambda: 0.0), framing.SHORTEST

    def lengths(units: int) -> list[int]:
        return [len(piece) // unit for piece in pace.cut(memoryview(bytes(units * unit)))]

    assert lengths(7) == [1, 2, 4]
    assert lengths(20) == [8, 12]
    broken = pace.cut(memoryview(bytes(64 * unit)))
    next(broken)
    assert lengths(64) == [32, 32], "of a payload that is under way nothing is known yet"
    pace.shorten()
    del broken
    assert lengths(3) == [1, 2]


def test_a_server_goes_on_at_the_pace_of_each_connection_until_one_breaks() -> None:
    paces, unit = framing.Paces(), framing.SHORTEST

    def first(peer: str) -> int:
        with paces.pace_of(peer) as pace:
            begin, *_ = [len(piece) // unit for piece in pace.cut(memoryview(bytes(7 * unit)))]
        return begin

    assert [first("a"), first("a"), first("b")] == [1, 7, 1]
    with pytest.raises(ConnectionError), paces.pace_of("a"):
        raise ConnectionError
    assert [first("a"), first("b")] == [1, 7]


def test_a_server_forgets_the_pace_of_connections_of_long_ago() -> None:
    paces, unit = framing.Paces(), framing.SHORTEST
    for number in range(framing.REMEMBERED + 1):
        with paces.pace_of(str(number)) as pace:
            assert len(list(pace.cut(memoryview(bytes(3 * unit))))) == 2
    for peer, pieces in ((str(framing.REMEMBERED), 1), ("0", 2)):
        with paces.pace_of(peer) as pace:
            assert len(list(pace.cut(memoryview(bytes(3 * unit))))) == pieces


def test_a_piece_is_never_shorter_than_the_shortest_nor_longer_than_the_longest() -> None:
    assert framing.next_length(framing.SHORTEST, framing.SLOW) == framing.SHORTEST
    assert framing.next_length(framing.LONGEST, 0.0) == framing.LONGEST


def test_lanes_close_where_a_link_is_slow_and_open_where_it_is_not() -> None:
    lanes = framing.Lanes()
    assert lanes.open == framing.FIRST_LANES
    for _ in range(10):
        lanes.note_wait(framing.SLOW + 1)
    assert lanes.open == 1
    lanes.note_finished(framing.FAST + 0.1)
    lanes.note_wait(0.1)
    assert lanes.open == 1
    for _ in range(10):
        lanes.note_finished(0.1)
    assert lanes.open == framing.LANES


def test_what_moved_a_moment_ago_has_not_stalled_however_long_it_took() -> None:
    now, stalls = [0.0], list[float]()
    watch = framing.Stalls(1000.0, lambda: now[0])
    watch.close()  # no thread looks
    with watch.watch(lambda: stalls.append(now[0]), lambda seconds: None) as progress:
        now[0] = 900.0
        progress.note_movement()
        assert progress.longest == 900.0
        for now[0] in (1000.0, 1899.0):
            assert watch.take_stalled() == []
        now[0] = 1900.0
        assert watch.take_stalled() == [progress]
        progress.stall()
    assert (progress.over, stalls) == (True, [1900.0])
    assert watch.take_stalled() == []


def test_one_thread_calls_off_what_stalls_and_nothing_else() -> None:
    watch, stalled = framing.Stalls(0.05), queue.Queue[str]()
    before = set(threading.enumerate())
    quick = framing.Stalls(3600.0)
    with ExitStack() as stack:
        for name in ("a", "b"):
            call_off = partial(stalled.put, name)
            stack.enter_context(watch.watch(call_off, lambda seconds: None))
            stack.enter_context(quick.watch(call_off, lambda seconds: None))
        assert {stalled.get(timeout=PATIENCE), stalled.get(timeout=PATIENCE)} == {"a", "b"}
        assert len(set(threading.enumerate()) - before) == 2  # others may end meanwhile
        with watch.watch(partial(stalled.put, "after a rest"), lambda seconds: None):
            assert stalled.get(timeout=PATIENCE) == "after a rest"
    assert stalled.empty()
    for each in (watch, quick):
        each.close()


def test_payloads_wait_for_a_lane_and_no_longer_than_until_the_end() -> None:
    lanes = framing.Lanes()
    for _ in range(10):
        lanes.note_wait(framing.SLOW + 1)
    entered: queue.Queue[int] = queue.Queue()

    def enter() -> None:
        with lanes.take():
            entered.put(1)

    waiting = [threading.Thread(target=enter) for _ in range(2)]
    with lanes.take():
        waiting[0].start()
        assert entered.empty()
    assert entered.get(timeout=PATIENCE) == 1
    with lanes.take():
        waiting[1].start()
        lanes.close()
        assert entered.get(timeout=PATIENCE) == 1
    for thread in waiting:
        thread.join()
