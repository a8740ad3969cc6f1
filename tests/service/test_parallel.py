"""Loops and parallel blocks: order, errors, and the same bits."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.client.runner import Joining
from secureps.client.sealing import OutboxSealer, draft_receipt, finish_sealing
from secureps.client.worker import Site
from secureps.config.sections import parse
from secureps.config.site_files import ServeSection
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.rlwe import RlweSealing
from secureps.errors import ConfigError, InternalError
from secureps.messages.submission import UPDATE, SubmissionId
from secureps.roles.shard.state import Limit
from secureps.service.loop import PATIENCE, WRITERS, RealLoop, VirtualLoop, WaveLoop, in_order
from secureps.store.spool import MemorySpool
from tests.kits.committee_kit import BASE, Bench
from tests.kits.federations import same, small_federation, unharmed
from tests.kits.federations import small_plan as plan_of
from tests.kits.rlwe_kit import place
from tests.kits.sealed_blocks import cut
from tests.kits.transport_kit import never

some_threads = pytest.mark.parametrize("threads", [1, 2, 5])
FEW = CipherParameters("rlwe", 32, 65_534)


@some_threads
def test_what_is_made_comes_in_order(threads: int) -> None:
    assert list(in_order(threads, lambda n: n * n, range(40))) == [n * n for n in range(40)]
    assert list(in_order(threads, lambda n: n, [])) == []


@pytest.mark.parametrize("threads", [2, 5])
def test_as_many_work_at_once_as_there_are_threads(threads: int) -> None:
    """With fewer threads at once the barrier would break."""
    barrier = threading.Barrier(threads, timeout=30)
    assert list(in_order(threads, lambda n: (barrier.wait(), n)[1], range(3 * threads))) == list(
        range(3 * threads)
    )


@some_threads
def test_few_are_begun_before_the_first_is_taken(threads: int) -> None:
    begun: list[int] = []
    made = in_order(threads, begun.append, range(100))
    for taken in range(1, 20):
        next(made)
        assert len(begun) <= taken + threads
    made.close()  # type: ignore[attr-defined]
    assert len(begun) <= 19 + threads


@some_threads
def test_an_error_ends_it_when_nobody_works_any_more(threads: int) -> None:
    begun, ended = [], []

    def make(n: int) -> int:
        begun.append(n)
        if n == 3:
            raise InternalError("the third")
        ended.append(n)
        return n

    with pytest.raises(InternalError, match="the third"):
        list(in_order(threads, make, range(100)))
    assert sorted(ended) == sorted(set(begun) - {3})
    assert len(begun) <= 4 + threads


def payloads(bench: Bench, threads: int) -> tuple[bytes, ...]:
    outbox, id = MemorySpool(), SubmissionId("c1", "all", 1)
    receipt = draft_receipt(bench.pinned.run.id, id, UPDATE, 0, BASE, None, False)
    sealer = OutboxSealer(bench.kit.identities["c1"], {}, bench.sealed_for, outbox, threads)
    layout = bench.pinned.layout.group("all")
    sealed = finish_sealing(sealer.seal(bench.pinned, receipt, cut(layout, np.arange(layout.size))))
    assert [header.block for header in sealed.headers] == list(range(len(sealed.headers)))
    assert len(sealed.headers) == 4
    return tuple(outbox.get(header.key) for header in sealed.headers)


def test_a_client_seals_the_same_bits_with_any_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr("secureps.crypto.rlwe.os.urandom", lambda n: bytes(range(n)))
    alone = payloads(bench, 1)
    assert len(set(alone)) == 4
    assert payloads(bench, 2) == payloads(bench, 3) == alone


def test_no_two_threads_seal_one_block() -> None:
    """Sealing the same block twice under one key would reveal both plaintexts."""
    sealing, values = RlweSealing(FEW, place(64)), np.arange(64)

    def seal(block: int) -> bytes | None:
        try:
            return sealing.seal(block, values)
        except InternalError:
            return None

    made = list(in_order(4, seal, [block for block in range(50) for _ in range(4)]))
    assert [sum(m is not None for m in made[4 * b : 4 * b + 4]) for b in range(50)] == [1] * 50


@pytest.mark.slow
@pytest.mark.parametrize("cipher", ["plain", "bfv", "rlwe"])
def test_a_run_is_the_same_with_any_threads(
    cipher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients and shards use 3 threads for every sum, step and sealing."""
    told: set[tuple[str, int]] = set()

    def spied(who: str) -> Callable[..., Iterator[Any]]:
        def ordered(
            threads: int, action: Callable[[Any], Any], items: Iterable[Any]
        ) -> Iterator[Any]:
            told.add((f"{who} {action.__name__}", threads))
            return in_order(threads, action, items)

        return ordered

    monkeypatch.setattr("secureps.service.shard.worker.in_order", spied("shard"))
    monkeypatch.setattr("secureps.client.sealing.in_order", spied("client"))
    monkeypatch.setattr("secureps.run.simulate.simulation.Limit", partial(Limit, threads=3))
    monkeypatch.setattr("secureps.run.simulate.simulation.Site", partial(Site, threads=3))
    simulation = small_federation(plan_of(cipher), tmp_path)
    simulation.run()
    assert same(simulation.model(), unharmed("plain")[0])
    assert told == {("shard add_block", 3), ("shard step_block", 3), ("client call", 3)}


def test_less_than_one_thread_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 thread or more, got 0"):
        Joining("a:1", Path("kit"), "c1", Path("state"), threads=0)
    with pytest.raises(ConfigError, match="threads"):
        parse(ServeSection, {"name": "s", "kit": "k", "state": "s", "threads": 0}, "a file")


def test_writes_wait_for_the_disk_side_by_side_and_keep_no_worker_waiting() -> None:
    loop, together = RealLoop(), threading.Barrier(WRITERS + 1)
    writes = [loop.write(together.wait) for _ in range(WRITERS)]
    assert loop.offload(lambda: "done", 0.0).result(10) == "done"
    assert not any(write.done() for write in writes)
    together.wait(10)
    assert all(write.exception(10) is None for write in writes)
    loop.stop()
    assert isinstance(loop.write(lambda: None).exception(10), RuntimeError)


def test_under_virtual_time_a_write_has_ended_on_return() -> None:
    assert VirtualLoop().write(lambda: 3).result(0) == 3
    with pytest.raises(ZeroDivisionError):
        VirtualLoop().write(lambda: 1 // 0).result(0)


def test_actions_run_in_order_and_waits_take_no_time() -> None:
    loop, seen = WaveLoop(10.0), list[str]()
    began = time.monotonic()
    loop.call_later(3.0, lambda: seen.append("late"))
    loop.call_later(1.0, lambda: seen.append("soon"))
    loop.call_later(0.0, lambda: seen.append("now"))
    loop.run(never)
    assert seen == ["now", "soon", "late"]
    assert time.monotonic() - began < 1.0
    assert loop.now() >= 13.0


def test_what_is_too_far_away_is_left() -> None:
    loop, seen = WaveLoop(), list[int]()

    def again() -> None:
        seen.append(1)
        loop.call_later(PATIENCE / 4 + 0.01, again)

    again()
    loop.run(never)
    assert len(seen) == 4


def test_it_ends_when_it_is_told() -> None:
    loop, seen = WaveLoop(), list[int]()
    for number in range(3):
        loop.call_later(0.0, partial(seen.append, number))
    loop.run(lambda: len(seen) == 2)
    assert seen == [0, 1]


def test_work_is_done_in_its_turn_and_files_are_written_at_once() -> None:
    loop = WaveLoop()
    work, file = loop.offload(lambda: 1, 5.0), loop.write(lambda: 2)
    assert not work.done()
    assert file.result(0) == 2
    loop.run(never)
    assert work.result(0) == 1


def test_what_fails_is_its_futures() -> None:
    loop = WaveLoop()
    failed = loop.offload(lambda: 1 // 0, 0.0)
    loop.run(never)
    with pytest.raises(ZeroDivisionError):
        failed.result(0)
