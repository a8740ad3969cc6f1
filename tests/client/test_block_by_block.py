"""A contribution is sealed block by block, and the blocks of a one-time key leave meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secureps.client.block_by_block import BlockByBlock
from secureps.client.exchange import ExchangeWorker
from secureps.client.integers import UpdateIntegers
from secureps.client.sealing import OutboxSealer, Sealing, draft
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import DiskFailed
from secureps.messages.submission import UPDATE, BlockHeader, SubmissionId
from secureps.policy.block_codes import block_codes
from secureps.roles.member.tasks import (
    Aim,
    BlockSealed,
    Contribute,
    Contributed,
    SealOn,
    in_own_order,
)
from secureps.store.budget import MemoryLedger
from secureps.store.spool import MemorySpool
from tests.client.test_worker import CLIENT_PRIVACY
from tests.kits.committee_kit import BASE, Bench
from tests.kits.member_kit import Client
from tests.kits.roles_kit import SCHEMA, make_plan
from tests.kits.sealed_blocks import cut, made_of

AIMS = (Aim("all", 0, 3),)
TASK = Contribute((), (), AIMS)
HEADERS = Client().joined().sealed(0, 3).headers


def sealing(task: Contribute, breaks: bool = False) -> Sealing[Contributed]:
    """Two blocks that may leave, and then the rest."""
    yield HEADERS[0]
    if breaks:
        raise DiskFailed("no space left")
    yield HEADERS[1]
    return Contributed((), (), told="all of it")


def test_blocks_come_one_by_one_and_then_all_of_it() -> None:
    making = BlockByBlock()
    found = [making.begin(sealing, TASK), making.go_on(), making.go_on()]
    assert found == [*map(BlockSealed, HEADERS[:2]), Contributed((), (), told="all of it")]


def test_other_work_between_two_blocks_is_no_sealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure of a worker that does other things after each block, ten seconds each."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    making, figures = BlockByBlock(), list[float]()

    def seal(task: Contribute) -> Sealing[Contributed]:
        began = time.perf_counter()
        for header in HEADERS[:2]:
            clock[0] += 1.0
            yield header
        clock[0] += 1.0
        figures.append(time.perf_counter() - began - making.between)
        return Contributed((), ())

    for _ in range(2):
        done = making.begin(seal, TASK)
        while isinstance(done, BlockSealed):
            clock[0] += 10.0
            done = making.go_on()
    assert figures == [3.0, 3.0]


def test_what_a_disk_cut_off_is_sealed_anew() -> None:
    """A key seals each block once: not from there on, under the same key."""
    making = BlockByBlock()
    making.begin(lambda task: sealing(task, breaks=True), TASK)
    with pytest.raises(DiskFailed):
        making.go_on()
    assert making.go_on() == Contributed((), (), again=AIMS)
    assert making.begin(sealing, TASK) == BlockSealed(HEADERS[0])


def sealed_ahead(bench: Bench, outbox: MemorySpool) -> Iterator[BlockHeader]:
    id = SubmissionId("c1", "all", 1)
    receipt = draft(bench.pinned.run.id, id, UPDATE, 0, BASE, None, False)
    sealer = OutboxSealer(bench.kit.identities["c1"], {}, bench.sealed_for, outbox, MemoryLedger())
    layout = bench.pinned.layout.group("all")
    blocks = reversed(list(cut(layout, np.arange(layout.size))))
    made = yield from sealer.seal(bench.pinned, receipt, blocks)
    assert [header.block for header in made.headers] == [0, 1, 2, 3]
    assert made.receipt.blocks == tuple(header.digest for header in made.headers)


def test_a_block_is_in_the_outbox_when_it_may_leave_and_none_after_it_is() -> None:
    outbox, found = MemorySpool(), list[int]()
    for header in sealed_ahead(Bench(), outbox):
        found.append(header.block)
        assert len(outbox.keys("")) == len(found)
        assert outbox.has(header.key)
    assert found == [3, 2, 1], "the last one goes with the receipt"


@pytest.mark.parametrize("private", [False, True])
def test_every_client_seals_in_its_own_order(private: bool) -> None:
    """Else all of them would send their first blocks to the same few shards at once."""
    plan = make_plan(**CLIENT_PRIVACY) if private else make_plan()
    layout, update = plan.layout(SCHEMA).group("all"), made_of(np.full(60, 0.01, np.float32))
    codes, aim = block_codes(plan, layout, 0, ()), Aim("all", 0, 4)
    starts = set()
    for client in ("c0", "c1", "c2", "c3"):
        made = UpdateIntegers(client, plan, layout, aim, UnsafeSeed(3).derive)
        _, blocks = made.make(codes, update, 1, 1.0)
        found = [block for block, _ in blocks]
        assert found == in_own_order(client, range(layout.blocks))
        starts.add(found[0])
    assert len(starts) > 1


def test_a_push_waits_for_an_update_that_is_sealed_anew() -> None:
    """The disk failed between two blocks: no update came of it, and one will."""
    told, ends = list[Any](), [Contributed((), (), again=AIMS), Contributed((), ())]
    other: Any = dict.fromkeys(("take", "keep", "fetch", "seconds", "expect"))
    worker: Any = SimpleNamespace(work=lambda task: ends.pop(0), **other)
    exchange: Any = SimpleNamespace(sealed=told.append)
    for ended in (0, 1):
        ExchangeWorker(worker, exchange).work(SealOn())
        assert len(told) == ended
